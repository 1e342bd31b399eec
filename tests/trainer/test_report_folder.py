"""The folder of an engine's reports: whoever is killed leaves it, and the next engine removes it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.rollout.report_folder import PREFIX, ReportFolder, remove, sweep

OWNER = """
import sys
from trainer.rollout.report_folder import ReportFolder
folder = ReportFolder()
print(folder.path, flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


def owner() -> tuple[subprocess.Popen[str], Path]:
    """A process that has such a folder."""
    made = subprocess.Popen([sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert made.stdout is not None
    return made, Path(made.stdout.readline().strip())


def test_one_whose_owner_was_killed_is_removed_by_the_next_and_one_that_is_in_use_stays(place: Path) -> None:
    killed, left = owner()
    living, used = owner()
    killed.kill()
    killed.communicate()
    mine = ReportFolder()
    assert sorted(place.iterdir()) == sorted([used, mine.path]) and not left.exists()
    living.communicate("\n")
    assert list(place.iterdir()) == [mine.path], "who ends by itself leaves nothing"
    remove(str(mine.path))
    assert list(place.iterdir()) == []


def test_what_is_not_ours_to_remove_stays(place: Path) -> None:
    elsewhere = place / "elsewhere"
    elsewhere.mkdir()
    (place / f"{PREFIX}link").symlink_to(elsewhere)
    (place / f"{PREFIX}file").touch()
    fresh, old = place / f"{PREFIX}fresh", place / f"{PREFIX}old"  # of a release that had no locks
    for each in (fresh, old):
        each.mkdir()
    os.utime(old, (1.0, 1.0))
    sweep(place)
    assert not old.exists() and len(list(place.iterdir())) == 4
    if os.geteuid() == 0:
        os.chown(fresh, 12345, 12345)
        os.utime(fresh, (1.0, 1.0))
        sweep(place)
        assert fresh.exists(), "another user's"
