"""Which files CI runs once more."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.failed_tests import failed_files

ONE, TWO, OTHER = "tests/a.py::test_1", "tests/a.py::test_2[x::y]", "tests/b.py::test_1"


@pytest.mark.parametrize(
    ("failed", "files"),
    [
        ([], []),
        ([ONE], ["tests/a.py"]),
        ([OTHER, ONE, TWO], ["tests/a.py", "tests/b.py"]),
        (["tests/broken.py"], ["tests/broken.py"]),
        ([ONE, TWO, OTHER, "tests/c.py::test_1"], []),
    ],
    ids=["none", "one", "two of a file", "a file that cannot be read", "too many"],
)
def test_only_a_few_files_are_run_again(tmp_path: Path, failed: list[str], files: list[str]) -> None:
    cache = tmp_path / "lastfailed"
    cache.write_text(json.dumps(dict.fromkeys(failed, True)))
    assert failed_files(3, cache) == files


def test_without_a_run_there_is_nothing(tmp_path: Path) -> None:
    assert failed_files(3, tmp_path / "none") == []
