"""Where a process without Ray keeps its snapshots: the programs of one user must not count each other's crashes."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from devkit.debug.inworker import boot, hooks


def test_the_children_of_two_clusters_keep_theirs_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folders = []
    for place in ('{"hub_id": "a"}', '{"hub_id": "b"}', '{"hub_id": "a"}'):
        monkeypatch.setenv(boot.PLACE, place)
        folders.append(hooks.crash_folder())
    assert folders[0] == folders[2] != folders[1]
    assert folders[0].is_relative_to(tmp_path)
