"""Each mistake of the seeds, made anew and small: found at its line and nothing else, and nothing once corrected."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from devkit.lint.read import Wish
from devkit.lint.rules import RULES
from devkit.lint.run import lint
from devkit.lint.source import Source

FOLDER = Path(__file__).parent / "fixtures"
MISTAKES = sorted(path for path in FOLDER.iterdir() if ".fixed." not in path.name)
CORRECTED = sorted(path for path in FOLDER.iterdir() if ".fixed." in path.name)


def found(path: Path) -> list[tuple[int, str]]:
    record = lint([Source(path.name, path.read_bytes())], Wish())
    return sorted((finding.line, finding.rule) for finding in record.findings)


def expected(path: Path) -> list[tuple[int, str]]:
    lines = re.findall(r"^# expect (\d+): ([a-z-]+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return sorted((int(line), rule) for line, rule in lines)


@pytest.mark.parametrize("path", MISTAKES, ids=lambda path: path.name)
def test_a_mistake_is_found_at_its_line(path: Path) -> None:
    assert expected(path)
    assert found(path) == expected(path)


@pytest.mark.parametrize("path", CORRECTED, ids=lambda path: path.name)
def test_a_corrected_version_gives_no_finding(path: Path) -> None:
    assert found(path) == []


def test_each_mistake_has_a_corrected_version() -> None:
    fixed = {path.name.replace(".fixed", "") for path in CORRECTED}
    assert fixed == {path.name for path in MISTAKES}


def test_each_rule_has_a_mistake_that_it_finds() -> None:
    assert {rule for path in MISTAKES for _, rule in expected(path)} == set(RULES)
