"""The documentation: what is made from the code is up to date, and what it names exists."""

from __future__ import annotations

import re

import pytest

from scripts import generate_docs


def test_generated_parts_are_up_to_date() -> None:
    assert generate_docs.stale(write=False) == [], "make docs writes them anew"


def test_the_tree_has_a_line_for_each_module() -> None:
    # given the modules on disk, by another way than the tree takes
    modules = {path.name for room in ("devkit", "trainer") for path in (generate_docs.ROOT / room).rglob("*.py")}
    # when the tree is made
    lines = [line.split(maxsplit=1) for line in generate_docs.tree().splitlines()[1:-1]]
    # then each stands there and says what it is
    assert modules - {"__init__.py"} <= {line[0] for line in lines}
    assert [line[0] for line in lines if len(line) == 1] == []


def test_marks_that_are_missing_are_an_error() -> None:
    with pytest.raises(SystemExit, match="0 places for tree"):
        generate_docs.with_generated("no marks", "tree", "body")


@pytest.mark.parametrize("file", ["README.md", "CONTRIBUTING.md", "docs/index.md", "docs/cli.md"])
def test_links_lead_somewhere(file: str) -> None:
    path = generate_docs.ROOT / file
    links = re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8"))
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_make_verbs_that_are_named_exist() -> None:
    makefile = (generate_docs.ROOT / "Makefile").read_text(encoding="utf-8")
    verbs = set(re.findall(r"^([a-z]+):", makefile, flags=re.MULTILINE))
    texts = [(generate_docs.ROOT / file).read_text(encoding="utf-8") for file in ("README.md", "CONTRIBUTING.md")]
    named = {verb for text in texts for verb in re.findall(r"(?:`|^)make ([a-z]+)", text, flags=re.MULTILINE)}
    assert named
    assert named <= verbs
