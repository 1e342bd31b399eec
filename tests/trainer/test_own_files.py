"""A run's files are not written through what another user has put under their names; one's own links still lead on."""

from __future__ import annotations

import os
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.security.users import MALLORY, needs_users
from trainer import checkpoints, own_files, samples
from trainer.errors import DataError, TrainerError
from trainer.learner import snapshot
from trainer.profiling import Recording
from trainer.retrieval.embeddings import Identity, store, stored
from trainer.tracking import JsonLines, TensorboardLog

SECRET = "what is mine"
VECTORS = np.ones((5, 3), np.float32)


@pytest.fixture
def treasure(tmp_path: Path) -> Path:
    """A file of the user's, to which links lead."""
    path = tmp_path / "treasure"
    path.write_text(SECRET)
    return path


def lay(path: Path, target: Path, uid: int | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)
    if uid is not None:
        os.chown(path, uid, uid, follow_symlinks=False)


def put_in_place(folder: Path) -> None:
    partial = folder / "global_step_6.partial"
    partial.mkdir()
    checkpoints._put_in_place(partial, folder / "global_step_6")


def trace(folder: Path) -> None:
    recording = Recording("torch", torch.device("cpu"))
    torch.ones(2).sum()
    recording.stop(folder / "step_3.rank_0")


MADE: dict[str, Callable[[Path], object]] = {  # by the name of the file; links there are replaced, whose ever they are
    "latest_checkpointed_iteration.txt.new": put_in_place,
    "state.json.new": lambda folder: checkpoints._write_durably(folder / "state.json", "{}"),
    "state.json": lambda folder: checkpoints._write_durably(folder / "state.json", "{}"),
    "3.jsonl": lambda folder: samples.dump(str(folder), 3, [], lambda ids: ""),
    "step_3.capsule.partial": lambda folder: snapshot.begin(
        folder / "step_3.capsule.partial", {}, None, contents="none", write=True
    ),
    "e.safetensors": lambda folder: store(folder / "e.safetensors", Identity("a", "b", 5, 3), [VECTORS]),
    "step_3.rank_0.trace.json.gz": trace,
}


@pytest.mark.parametrize("name", MADE)
def test_what_is_made_is_made_anew(name: str, treasure: Path, tmp_path: Path) -> None:
    lay(tmp_path / "run" / name, treasure)
    MADE[name](tmp_path / "run")
    assert treasure.read_text() == SECRET
    assert not [path for path in (tmp_path / "run").rglob("*") if path.is_symlink()]


def test_a_pipe_under_such_a_name_holds_up_nobody(tmp_path: Path) -> None:
    for name in ("latest_checkpointed_iteration.txt.new", "3.jsonl"):
        os.mkfifo(tmp_path / name)
        MADE[name](tmp_path)
    os.mkfifo(tmp_path / "metrics.jsonl")
    with pytest.raises(TrainerError, match="or no file"):
        JsonLines(tmp_path / "metrics.jsonl").log(1, {"a": 1.0})
    os.mkfifo(tmp_path / "e.safetensors")
    with pytest.raises(DataError, match="not a file"):
        stored(tmp_path / "e.safetensors", Identity("a", "b", 5, 3))
    os.mkfifo(tmp_path / "p.capsule")
    with pytest.raises(OSError, match="or no file"):
        own_files.changed(tmp_path / "p.capsule")


@needs_users
def test_metrics_go_through_no_link_of_anothers(treasure: Path, tmp_path: Path) -> None:
    lay(tmp_path / "run/metrics.jsonl", treasure, MALLORY)
    with pytest.raises(TrainerError, match="a link of another user's"):
        JsonLines(tmp_path / "run/metrics.jsonl").log(1, {"a": 1.0})
    lay(tmp_path / "run/p.capsule", treasure, MALLORY)
    with pytest.raises(OSError, match="a link of another user's"):
        own_files.changed(tmp_path / "run/p.capsule")
    lay(tmp_path / "run/tensorboard", tmp_path, MALLORY)
    with pytest.raises(TrainerError, match="a link of another user's"):
        TensorboardLog(tmp_path / "run/tensorboard")
    assert treasure.read_text() == SECRET


def test_a_link_of_the_users_own_leads_on(tmp_path: Path) -> None:
    """To a file that is there, or not yet; relative, too. Not to a second link, which may be anybody's."""
    (tmp_path / "elsewhere").mkdir()
    lay(tmp_path / "run/metrics.jsonl", Path("../elsewhere/m.jsonl"))
    for step in (1, 2):
        JsonLines(tmp_path / "run/metrics.jsonl").log(step, {"a": 1.0})
    assert len((tmp_path / "elsewhere/m.jsonl").read_text().splitlines()) == 2
    lay(tmp_path / "second", tmp_path / "run/metrics.jsonl")
    with pytest.raises(OSError, match="link of another"):
        own_files.append(tmp_path / "second", "x")


def test_folders_above_may_be_links_of_anybody(tmp_path: Path) -> None:
    """A group's folder on a shared disk, under a link that an administrator made."""
    (tmp_path / "disk/group").mkdir(parents=True)
    uid = MALLORY if os.geteuid() == 0 else None
    lay(tmp_path / "home/checkpoints", tmp_path / "disk/group", uid)
    run = tmp_path / "home/checkpoints/run"
    run.mkdir()
    for name, make in MADE.items():
        if name != "state.json.new":
            make(run)
    for step in (1, 2):
        JsonLines(run / "metrics.jsonl").log(step, {"a": 1.0})
    assert checkpoints.latest(run) == 6
    assert len((tmp_path / "disk/group/run/metrics.jsonl").read_text().splitlines()) == 2
    assert (stored(run / "e.safetensors", Identity("a", "b", 5, 3)) == VECTORS).all()  # type: ignore[union-attr]


@pytest.mark.parametrize(("umask", "wanted"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
def test_who_may_read_them_the_umask_says(umask: int, wanted: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        own_files.write(tmp_path / "new", "x")
        own_files.append(tmp_path / "added", "x")
        with own_files.beside(tmp_path / "made") as path:
            path.write_text("x")
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {wanted}
    assert len([*tmp_path.iterdir()]) == 3


def test_a_capsule_is_ended_in_the_file_that_was_begun(tmp_path: Path) -> None:
    path = tmp_path / "step_3.capsule.partial"
    MADE[path.name](tmp_path)
    with own_files.changed(path) as opened, zipfile.ZipFile(opened, "a") as file:
        file.writestr("capsule.json", "{}")
    with zipfile.ZipFile(path) as file:
        assert file.namelist() == ["capsule.json"]


def test_what_fails_beside_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), own_files.beside(tmp_path / "made") as path:
        path.with_name("another").write_text("x")
    assert not [*tmp_path.iterdir()]
