"""A run killed before each change that saving makes to the file system: a whole checkpoint is left, and taken."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from trainer import checkpoints, resuming
from trainer.config.schema import TrainerConfig
from trainer.errors import CheckpointError
from trainer.ppo import Progress
from trainer.state import STATE_FILE, State, read_state

pytestmark = pytest.mark.trainer

KILLED = 9
CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate"}  # and files opened for writing, and fsync
WEIGHTS = "actor/huggingface/weights"  # beside true shards, a file that tells which save it is of


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards") / "actor"
    with pytest.warns(UserWarning, match=r"torch\.distributed is disabled"):
        dcp.save({"weight": torch.ones(2)}, checkpoint_id=folder, no_dist=True)
    return folder


Save = Callable[[Path, int, str], Path]


@pytest.fixture
def save(shards: Path) -> Save:
    """`save(root, step, generation)`"""

    def write(partial: str, generation: str) -> None:
        actor = Path(partial) / "actor"
        (actor / "huggingface").mkdir(parents=True)
        for path in shards.iterdir():
            (actor / path.name).hardlink_to(path)
        (Path(partial) / WEIGHTS).write_text(generation)

    def save_(root: Path, step: int, generation: str, keep: int | None = None) -> Path:
        state = State(Progress(step, 0.5), {"epoch": 0, "batch": step})
        return checkpoints.save(root, state, lambda partial: write(partial, generation), keep)

    return save_


def killed(call: Callable[[], Any], before: int) -> bool:
    """Whether a process that does `call` was killed before its change number `before`; else it came to its end."""
    child = os.fork()
    if child == 0:
        numbers = itertools.count()

        def count() -> None:
            if next(numbers) == before:
                os._exit(KILLED)

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
            if event in CHANGES or writes:
                count()

        real = os.fsync

        def fsync(handle: int) -> None:
            count()
            real(handle)

        os.fsync = fsync
        sys.addaudithook(hook)
        failed = True
        try:
            call()
            failed = False
        finally:  # never back into pytest
            os._exit(failed)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, KILLED), "it failed"
    return code == KILLED


def written(root: Path, generation: str) -> bool:
    """Whether a folder under any name has all of a generation, looked at without the code that is tested."""
    return any(
        path.read_text() == generation and (path.parents[2] / STATE_FILE).exists() for path in root.glob(f"*/{WEIGHTS}")
    )


def require_whole_names(root: Path, newest: int | None) -> None:
    """What a reader may rely on who knows nothing of us: a folder under its final name has all that belongs to it.

    And beside what is not finished, there is the newest from before the save, or what came in its place.
    """
    finals = [path for path in root.glob("global_step_*") if not path.suffix]
    assert all((path / name).exists() for path in finals for name in (WEIGHTS, STATE_FILE, "actor/.metadata"))
    if newest is not None:
        kept = [path.parent.name for path in root.glob(f"*/{STATE_FILE}") if path.parent.suffix in ("", ".replaced")]
        assert {f"global_step_{newest}", f"global_step_{newest}.replaced", "global_step_3"}.intersection(kept)


def chosen(root: Path) -> tuple[int, str] | None:
    """Step and generation of what a run would go on from."""
    found = resuming.choose(TrainerConfig(default_local_dir=str(root)))
    return None if found is None else (found[1].progress.step, (found[0] / WEIGHTS).read_text())


STARTS = {
    # what is there; what is saved; how many are kept; what was the newest before
    "a first one": ([], 1, None, None),
    "the next": ([1, 2], 3, None, (2, "old 2")),
    "the only one again": ([6], 6, None, (6, "old 6")),
    "the newest again": ([2, 4, 6], 6, None, (6, "old 6")),
    "an older one again": ([2, 4, 6], 4, None, (6, "old 6")),
    "the next, and one goes": ([1, 2], 3, 2, (2, "old 2")),
    "the only one again, and nothing else stays": ([2, 4, 6], 6, 1, (6, "old 6")),
}


@pytest.mark.parametrize("start", STARTS)
def test_killed_at_every_change(save: Any, tmp_path: Path, start: str) -> None:
    there, step, keep, newest = STARTS[start]
    for before in itertools.count():
        root = tmp_path / str(before)
        for each in there:
            save(root, each, f"old {each}")
        was_killed = killed(lambda root=root: save(root, step, "new", keep), before)  # type: ignore[misc]

        require_whole_names(root, newest[0] if newest else None)
        expected = (step, "new") if written(root, "new") else newest
        for again in range(8):  # what puts things right is killed, too
            if not killed(lambda root=root: chosen(root), again):  # type: ignore[misc]
                break
        assert chosen(root) == expected, before
        assert (root / "latest_checkpointed_iteration.txt").exists() or expected is None
        if expected is not None:
            assert (root / "latest_checkpointed_iteration.txt").read_text() == str(expected[0])

        save(root, 7, "last")
        assert chosen(root) == (7, "last")
        names = {path.name for path in root.iterdir() if path.is_dir()}
        assert names <= {f"global_step_{each}" for each in (*there, step, 7)}, "something is left over"
        shutil.rmtree(root)
        if not was_killed:
            break
    assert before > 12, "there are more changes than that"


def test_what_is_passed_over_is_said(save: Any, tmp_path: Path) -> None:
    """Given a finished one, a half-deleted one, one without a state, and one that was not finished."""
    for step in (2, 4, 6):
        save(tmp_path, step, f"old {step}")
    shutil.rmtree(tmp_path / "global_step_6/actor")
    (tmp_path / "global_step_8/critic").mkdir(parents=True)
    (tmp_path / "global_step_10.partial").mkdir()
    notes: list[str] = []
    found = resuming.choose(TrainerConfig(default_local_dir=str(tmp_path)), note=notes.append)
    assert found is not None and found[0] == tmp_path / "global_step_4"
    assert sorted(notes) == [
        f"skipped {tmp_path}/global_step_10.partial: its save was interrupted",
        f"skipped {tmp_path}/global_step_6: actor/.metadata: No such file or directory",
        f"skipped {tmp_path}/global_step_8: it has no state.json",
    ]
    assert resuming.way_on(TrainerConfig(default_local_dir=str(tmp_path))).endswith("global_step_4")


def test_what_was_moved_aside_comes_back(save: Any, tmp_path: Path) -> None:
    """Given a machine that lost its power between the two renames, and with it what was to come."""
    folder = save(tmp_path, 6, "old")
    folder.rename(tmp_path / "global_step_6.replaced")
    (tmp_path / "global_step_6.partial").mkdir()
    config, notes = TrainerConfig(default_local_dir=str(tmp_path)), list[str]()
    assert resuming.way_on(config) == f"trainer.resume_mode=auto continues from {tmp_path}/global_step_6.replaced"
    assert resuming.choose(config, note=notes.append) == (folder, read_state(folder))
    assert notes == [
        f"{folder} was restored: a save of the same step was interrupted",
        f"skipped {folder}.partial: its save was interrupted",
    ]


@pytest.mark.parametrize("name", ["actor/__0_0.distcp", "actor/.metadata", WEIGHTS, STATE_FILE])
def test_a_changed_byte_is_told_and_the_one_before_is_taken(save: Any, tmp_path: Path, name: str) -> None:
    for step in (2, 4):
        save(tmp_path, step, f"old {step}")
    file = tmp_path / "global_step_4" / name
    whole = file.read_bytes()
    file.unlink()  # it is a link to a file that others are, too
    for place in {0, len(whole) // 3, len(whole) // 2, len(whole) - 1}:
        for change in (1, 0x80, 0xFF):
            damaged = bytearray(whole)
            damaged[place] ^= change
            file.write_bytes(damaged)
            notes: list[str] = []
            found = resuming.choose(TrainerConfig(default_local_dir=str(tmp_path)), note=notes.append)
            assert found is not None and found[0].name == "global_step_2"
            assert len(notes) == 1 and str(tmp_path / "global_step_4") in notes[0] and name in notes[0], notes
    file.write_bytes(whole)
    assert chosen(tmp_path) == (4, "old 4")


def test_one_that_is_asked_for_and_damaged_is_an_error(save: Any, tmp_path: Path) -> None:
    folder = save(tmp_path, 4, "old")
    (folder / WEIGHTS).write_text("oId")
    config = TrainerConfig(resume_mode="resume_path", resume_from_path=str(folder))
    with pytest.raises(CheckpointError, match=rf"global_step_4 is damaged: {WEIGHTS} has changed since it was written"):
        resuming.choose(config)


def test_all_damaged_is_an_error_and_no_new_start(save: Any, tmp_path: Path) -> None:
    for step in (2, 4):
        save(tmp_path, step, f"old {step}")
        (tmp_path / f"global_step_{step}" / WEIGHTS).write_text("?")
    with pytest.raises(CheckpointError, match=r"none of the 2 checkpoint") as caught:
        chosen(tmp_path)
    assert "resume_mode=disable" in caught.value.hint


def test_one_without_digests_is_taken_with_a_word(save: Any, tmp_path: Path) -> None:
    """As versions before wrote it."""
    folder = save(tmp_path, 4, "old")
    (folder / STATE_FILE).write_text('{"step": 4, "kl_coef": 0.5, "data": {"epoch": 0, "batch": 4}}')
    notes: list[str] = []
    found = resuming.choose(TrainerConfig(default_local_dir=str(tmp_path)), note=notes.append)
    assert found is not None and found[1] == State(Progress(4, 0.5), {"epoch": 0, "batch": 4})
    assert notes == [f"{folder} was written without digests: its files are used unchecked"]


def test_the_newest_is_the_one_that_was_saved_last(save: Any, tmp_path: Path) -> None:
    """Given a run that began anew in the folder of one that had come further; and a hand-written choice."""
    for step in (4, 6, 1, 2):
        save(tmp_path, step, f"of {step}")
    assert chosen(tmp_path) == (2, "of 2")
    assert [path.name for path in checkpoints.complete(tmp_path)] == [f"global_step_{n}" for n in (4, 6, 1, 2)]
    shutil.rmtree(tmp_path / "global_step_2")
    assert chosen(tmp_path) == (1, "of 1")
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("4\n")
    assert chosen(tmp_path) == (4, "of 4")
    for odd in (b"\xff\xfe", b"-4", b"abc", "٤".encode(), b"", b"4" * 5000, b"../../x"):
        (tmp_path / "latest_checkpointed_iteration.txt").write_bytes(odd)
        assert chosen(tmp_path) == (1, "of 1")
    (tmp_path / "latest_checkpointed_iteration.txt").unlink()
    (tmp_path / "latest_checkpointed_iteration.txt").mkdir()
    assert chosen(tmp_path) == (1, "of 1")
    assert read_state(tmp_path / "global_step_1").saved == 3
