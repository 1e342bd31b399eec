"""What a user reads is in the field's own words: some that this project once had for itself are not in it any more."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts import generate_docs

ROOT = generate_docs.ROOT
FOREIGN = re.compile(r"\b(mend(?:s|ed|ing)?|whom|told)\b", re.IGNORECASE)
SENTENCE = re.compile(r"\A(?!import )(?!.*\nimport )(?=.*[a-z,:] [a-z])", re.DOTALL)
CODE = re.compile(r"`[^`]*`")
READ = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]


@pytest.mark.parametrize("path", READ, ids=lambda path: path.name)
def test_a_page_is_in_the_fields_words(path: Path) -> None:
    lines = [CODE.sub("", line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [line for line in lines if FOREIGN.search(line)] == []


@pytest.mark.parametrize("package", ["devkit", "trainer"])
def test_what_is_printed_is_in_the_fields_words(package: str) -> None:
    said = [(path, text) for path in sorted((ROOT / package).rglob("*.py")) for text in _sentences(path)]
    assert len(said) > 100
    assert [(path.name, text) for path, text in said if FOREIGN.search(text)] == []


def _sentences(path: Path) -> Iterator[str]:
    """Texts of more than one word in it that are no documentation, code or regular expression."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documentation = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and isinstance(node.body[0] if node.body else None, ast.Expr)
    }
    texts = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in documentation]
    yield from (text.value for text in texts if isinstance(text.value, str) and SENTENCE.search(text.value))
