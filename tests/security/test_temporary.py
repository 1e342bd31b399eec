"""Temporary folders lie where nobody else can put another one in their place."""

from __future__ import annotations

import ast
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from devkit.debug.inworker import private
from devkit.smoke.cluster import short_temporary_folder
from trainer import own_files
from trainer.agent.tools import python
from trainer.rollout.report_folder import ReportFolder, remove

ROOT = Path(__file__).parents[2]
MAKES = frozenset({"mkdtemp", "TemporaryDirectory"})
ALLOWED = {
    "devkit/doctor/onnode/collective.py": "NCCL's log, which nothing is run of; it travels to nodes on its own",
}


def placeless(text: str) -> Iterator[str]:
    """The calls that make a folder wherever TMPDIR says."""
    if not any(each in text for each in MAKES):
        return
    for node in ast.walk(ast.parse(text)):
        is_one = isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in MAKES
        if isinstance(node, ast.Call) and is_one and "dir" not in {each.arg for each in node.keywords}:
            yield ast.unparse(node)


def test_each_says_where_it_is_made() -> None:
    assert list(placeless("tempfile.mkdtemp(prefix='x')")) and not list(placeless("tempfile.mkdtemp(dir=place)"))
    files = [path for package in ("trainer", "devkit") for path in (ROOT / package).rglob("*.py")]
    found = {path.relative_to(ROOT).as_posix() for path in files if list(placeless(path.read_text()))}
    assert found == ALLOWED.keys()


@pytest.fixture
def volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which anybody may rename anything, as TMPDIR."""
    path = tmp_path / "volume"
    path.mkdir()
    path.chmod(0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    return path


def test_none_is_made_where_others_may_rename_it(volume: Path) -> None:
    assert own_files.temporary() == private.temporary() == short_temporary_folder() == "/tmp"
    assert not python.run("import os; print(os.getcwd())", 20.0, 2**30, 1000).startswith(str(volume))
    reports = ReportFolder()
    try:
        assert not list(volume.iterdir())
    finally:
        remove(str(reports.path))


def test_a_folder_of_ones_own_and_one_with_the_sticky_bit_are_as_they_were(volume: Path) -> None:
    for mode in (0o700, 0o755, 0o1777):
        volume.chmod(mode)
        assert own_files.temporary() == private.temporary() == str(volume)
    volume.chmod(0o777)
    (below := volume / "below").mkdir(0o700)
    tempfile.tempdir = str(below)
    assert own_files.temporary() == private.temporary() == "/tmp", "the folder above it may be renamed"


@pytest.mark.needs_root
def test_a_folder_of_anothers_is_theirs_to_rename_in(volume: Path) -> None:
    volume.chmod(0o755)
    os.chown(volume, 61002, -1)
    assert own_files.temporary() == private.temporary() == "/tmp"
