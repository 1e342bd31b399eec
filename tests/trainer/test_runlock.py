"""Two runs in one folder: the second is told of the first, and of a first that is gone nothing stands in the way."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pace import stretched
from tests.trainer.runs import ROOT
from trainer import runlock
from trainer.config.schema import TrainerConfig
from trainer.errors import FolderInUse, TrainerError
from trainer.runlock import LOCK_FILE, Holder, held, parse, require_free

HOLD = """
import sys
from pathlib import Path
from trainer.config.schema import TrainerConfig
from trainer.runlock import held
with held(TrainerConfig(default_local_dir=sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""


def of(folder: Path, **more: Any) -> TrainerConfig:
    return TrainerConfig(default_local_dir=str(folder), **more)


@contextmanager
def holding(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the folder."""
    command = [sys.executable, "-c", HOLD, str(folder)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def try_it(folder: Path) -> list[str]:
    """The notes of a run that gets the folder."""
    notes: list[str] = []
    with held(of(folder), notes.append):
        holder = parse((folder / LOCK_FILE).read_text())
        assert holder is not None and holder.pid == os.getpid() and holder.is_visible and holder.is_alive
    assert not (folder / LOCK_FILE).exists()
    return notes


def test_a_second_run_is_told_of_the_first(tmp_path: Path) -> None:
    with holding(tmp_path) as other:
        for attempt in (lambda: require_free(of(tmp_path)), lambda: try_it(tmp_path)):
            with pytest.raises(FolderInUse) as caught:
                attempt()
            assert f"process {other.pid} on {os.uname().nodename}, since 20" in caught.value.message
            assert str(tmp_path) in caught.value.message and "trainer.default_local_dir" in caught.value.hint
        other.communicate("go\n")
    require_free(of(tmp_path))
    assert try_it(tmp_path) == []


def test_nothing_is_left_of_a_run_that_was_killed(tmp_path: Path) -> None:
    with holding(tmp_path) as other:
        other.send_signal(signal.SIGKILL)
        other.wait()
        assert (tmp_path / LOCK_FILE).exists()
        require_free(of(tmp_path))
        assert try_it(tmp_path) == []


def test_a_run_in_the_same_process_too(tmp_path: Path) -> None:
    with held(of(tmp_path)), pytest.raises(FolderInUse, match=f"process {os.getpid()} on"):
        try_it(tmp_path)


def test_every_folder_that_a_run_writes_to(tmp_path: Path) -> None:
    kept = {"rollout_data_dir": "samples", "validation_data_dir": "samples", "capsule_dir": "capsules"}
    folders = {name: str(tmp_path / folder) for name, folder in kept.items()}
    with held(of(tmp_path / "a", **folders)):
        assert sorted(path.parent.name for path in tmp_path.glob(f"*/{LOCK_FILE}")) == ["a", "capsules", "samples"]
        with pytest.raises(FolderInUse) as caught, held(of(tmp_path / "b", capsule_dir=folders["capsule_dir"])):
            pass
        assert "trainer.capsule_dir" in caught.value.hint
        with held(of(tmp_path / "b")):
            pass
    assert not list(tmp_path.glob(f"*/{LOCK_FILE}"))


def test_a_run_that_writes_nothing_takes_nothing(tmp_path: Path) -> None:
    with held(of(tmp_path / "none", logger=["console", "wandb"])):
        assert not (tmp_path / "none").exists()


EXCLUSIVE = """
import os, sys
from trainer.config.schema import TrainerConfig
from trainer.errors import FolderInUse
from trainer.runlock import held
folder, won = sys.argv[1], 0
while won < 30:
    try:
        with held(TrainerConfig(default_local_dir=folder)):
            os.mkdir(folder + "/inside")
            os.rmdir(folder + "/inside")
            won += 1
    except FolderInUse:
        pass
"""


def test_no_two_at_once(tmp_path: Path) -> None:
    """Also in the moment in which one takes its lock away."""
    command = [sys.executable, "-c", EXCLUSIVE, str(tmp_path)]
    runs = [subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    assert [(run.communicate(timeout=stretched(100))[1], run.returncode) for run in runs] == [("", 0)] * 3


# ------------------------------------------------------------------- where the file system does not know who is there


@pytest.fixture
def without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As NFS without its lock service."""

    def flock(_handle: int, _kind: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)


def leave(folder: Path, holder: Holder, age_s: float = 0.0) -> Path:
    """The lock of a run, as it was when it was touched `age_s` ago."""
    path = folder / LOCK_FILE
    path.write_text(json.dumps(asdict(holder)))
    then = path.stat().st_mtime - age_s
    os.utime(path, (then, then))
    return path


ELSEWHERE = Holder("far-away", 1, "2026-11-23 05:14:07", "another kernel", "pid:[1]", 7)


@pytest.mark.usefixtures("without_locks")
def test_a_process_of_this_machine_is_looked_up(tmp_path: Path) -> None:
    with holding(tmp_path / "other") as other:
        holder = parse((tmp_path / "other" / LOCK_FILE).read_text())
        assert holder is not None and holder.pid == other.pid
        path = leave(tmp_path, holder)
        with pytest.raises(FolderInUse, match=f"process {other.pid} on"):
            try_it(tmp_path)
        leave(tmp_path, replace(holder, began=holder.began + 1))  # another process has its number now
        assert try_it(tmp_path) == []
        leave(tmp_path, replace(holder, pid=2**40))
        assert try_it(tmp_path) == []
        leave(tmp_path, holder)
        other.kill()
        other.wait()
        assert try_it(tmp_path) == [] and not path.exists()


@pytest.mark.parametrize("locks", [True, False])
def test_a_dead_run_of_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, locks: bool
) -> None:
    if not locks:
        request.getfixturevalue("without_locks")
    leave(tmp_path, ELSEWHERE, age_s=61)
    assert try_it(tmp_path) == []
    monkeypatch.setattr(runlock, "WATCH_S", 0.3)
    leave(tmp_path, ELSEWHERE)
    [note] = try_it(tmp_path)
    assert "process 1 on far-away, since 2026-11-23 05:14:07 UTC" in note


def test_a_living_run_of_another_machine(tmp_path: Path) -> None:
    """Whose locks this one does not see: its file is touched, by whatever clock."""
    path, done = leave(tmp_path, ELSEWHERE), threading.Event()

    def beat() -> None:
        moment = path.stat().st_mtime - 20
        while not done.wait(0.01):
            moment += 0.5
            os.utime(path, (moment, moment))

    other = threading.Thread(target=beat)
    other.start()
    try:
        with pytest.raises(FolderInUse, match="process 1 on far-away"):
            try_it(tmp_path)
    finally:
        done.set()
        other.join()


def test_a_container_on_this_kernel(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: Any) -> None:
    """Its process numbers are not ours: its lock tells, and without locks its beat."""
    me = Holder.me()
    leave(tmp_path, replace(me, host="pod-7", space="pid:[1]"))
    assert try_it(tmp_path) == []
    request.getfixturevalue("without_locks")
    monkeypatch.setattr(runlock, "WATCH_S", 0.3)
    leave(tmp_path, replace(me, host="pod-7", space="pid:[1]"))
    assert len(try_it(tmp_path)) == 1


def test_the_holder_is_heard_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runlock, "BEAT_S", 0.01)
    path = tmp_path / LOCK_FILE
    with held(of(tmp_path)):
        os.utime(path, (1, 1))
        for _ in range(3000):
            if path.stat().st_mtime > 1:
                break
            threading.Event().wait(0.01)
        assert path.stat().st_mtime > 1


# --------------------------------------------------------------------------------------------------- what else is there


HOLDERS = st.builds(
    Holder, st.text(max_size=20), st.integers(), st.text(max_size=20), st.text(max_size=20), st.text(), st.integers()
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["host", "pid", "since"]), inner),
    max_leaves=8,
)


@given(HOLDERS)
def test_a_holder_is_read_as_it_was_written(holder: Holder) -> None:
    words = [str(value) for value in asdict(holder).values()]
    fits = all(len(word) < 300 and word.isprintable() for word in words)
    assert parse(json.dumps(asdict(holder))) == (holder if fits else None)


@given(st.text() | JSON.map(json.dumps))
def test_any_text_is_a_holder_or_none(text: str) -> None:
    parse(text)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 5000, b'{"host": 1}', b"x" * 10**6])
def test_a_lock_that_was_cut_short_is_nobodys(tmp_path: Path, content: bytes) -> None:
    (tmp_path / LOCK_FILE).write_bytes(content)
    assert try_it(tmp_path) == []


def to_fifo(path: Path) -> None:
    os.mkfifo(path)


def to_folder(path: Path) -> None:
    path.mkdir()


def to_link(path: Path) -> None:
    path.symlink_to(path.parent / "elsewhere")


def test_a_second_name_of_another_file_is_not_written_to(tmp_path: Path) -> None:
    """In a folder that others may write to, they can give any file of ours that name, on some systems."""
    (tmp_path / "treasure").write_text("mine")
    (tmp_path / LOCK_FILE).hardlink_to(tmp_path / "treasure")
    with pytest.raises(TrainerError, match="is not a file of its own"):
        try_it(tmp_path)
    assert (tmp_path / "treasure").read_text() == "mine"


@pytest.mark.parametrize("make", [to_fifo, to_folder, to_link])
def test_a_lock_that_is_no_file(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / LOCK_FILE)
    with pytest.raises(TrainerError) as caught:
        try_it(tmp_path)
    assert LOCK_FILE in caught.value.message and caught.value.hint
    assert not (tmp_path / "elsewhere").exists()
