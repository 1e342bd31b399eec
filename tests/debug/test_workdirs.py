"""A file that is not found by a relative path: where it was looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from devkit.debug.crash_page import clues_of
from devkit.debug.inworker import crashes, workdirs
from devkit.debug.inworker.identity import DRIVER, identify
from tests.debug.test_other_versions import raised_by


def test_a_relative_path_is_told_with_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    document = crashes.taken(raised_by(lambda: Path("step_3/model.pt").read_bytes()), DRIVER, 0, identify())
    assert list(clues_of(document)) == [f"'step_3/model.pt' was looked for in {tmp_path}"]
    whole = crashes.taken(raised_by(lambda: (tmp_path / "none").read_text()), DRIVER, 0, identify())
    assert "relative" not in whole


def test_a_copy_of_rays_is_called_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "session_1/runtime_resources/working_dir_files/_ray_pkg_0a1b"
    copy.mkdir(parents=True)
    monkeypatch.chdir(copy)
    found = workdirs.of_errors([KeyError("x"), raised_by(lambda: Path("out.txt").read_text())])
    assert found is not None and workdirs.said(found).endswith("_ray_pkg_0a1b, a copy of the job's working_dir")
