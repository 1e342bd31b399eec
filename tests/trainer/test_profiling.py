"""Which steps and ranks are profiled, and what is written."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from trainer import profiling, roles
from trainer.config import check, load, resolve
from trainer.config.schema import ProfilerConfig
from trainer.errors import TrainerError
from trainer.profiling import Profiler
from trainer.roles import Roles
from trainer.teams import Seat
from trainer.transport import pack

CPU = torch.device("cpu")


class Ranks:
    """Two ranks that write down what they are asked; the second is not chosen."""

    def __init__(self, files: bool = True) -> None:
        self.asked: list[Any] = []
        self.notes: list[str] = []
        self.files = files

    def __call__(self, phase: str, *args: str) -> list[str | None]:
        self.asked.append((phase, *(Path(arg).name for arg in args)))
        return [f"{Path(args[0]).name}.rank_0" if args and self.files else None, None]


def profiled(config: ProfilerConfig, steps: range, ranks: Ranks | None = None) -> Ranks:
    ranks = ranks or Ranks()
    profiler = Profiler(config, ranks, ranks.notes.append)
    for number in steps:
        with profiler.step(number):
            ranks.asked.append(number)
    profiler.close(steps[-1])
    return ranks


STOP = "stop_profile"


def start(step: int) -> tuple[str, str]:
    return "start_profile", f"step_{step}.failed"


def test_single_steps() -> None:
    ranks = profiled(ProfilerConfig(tool="torch", steps=[3, 2]), range(1, 5))
    assert ranks.asked == [1, start(2), 2, (STOP, "step_2"), start(3), 3, (STOP, "step_3"), 4]
    assert ranks.notes == ["profile of step 2: step_2.rank_0", "profile of step 3: step_3.rank_0"]


def test_neighbouring_steps_in_one_file() -> None:
    config = ProfilerConfig(tool="torch", steps=[2, 3, 5], profile_continuous_steps=True)
    ranks = profiled(config, range(1, 6))
    assert ranks.asked == [1, start(2), 2, 3, (STOP, "steps_2-3"), 4, start(5), 5, (STOP, "step_5")]


@pytest.mark.parametrize(
    ("steps", "name"),
    [
        (range(1, 4), "steps_2-3"),  # ends within
        (range(3, 6), "steps_3-4"),  # resumed within
    ],
)
def test_a_run_that_has_a_part_of_the_steps(steps: range, name: str) -> None:
    config = ProfilerConfig(tool="torch", steps=[2, 3, 4], profile_continuous_steps=True)
    assert (STOP, name) in profiled(config, steps).asked


@pytest.mark.parametrize("config", [ProfilerConfig(steps=[2]), ProfilerConfig(tool="torch")])
def test_off(config: ProfilerConfig) -> None:
    assert profiled(config, range(1, 4)).asked == [1, 2, 3]


def test_a_cpu_has_no_memory_snapshots_and_a_note_says_so() -> None:
    ranks = profiled(ProfilerConfig(tool="torch_memory", steps=[2]), range(1, 4), Ranks(files=False))
    assert ranks.notes == ["no memory snapshot of step 2: the chosen ranks compute on a CPU"]
    assert profiling.start(ProfilerConfig(tool="torch_memory"), 0, CPU) is None


class Snapshots:
    """A recording of CUDA memory, which is not here: it writes down what file it is to write."""

    tool = "torch_memory"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def stop(self, stem: Path) -> str:
        if not self.folder.is_dir():
            raise TrainerError(f"cannot write {stem}", hint="look")
        return str(stem)


class Failing(Roles):
    """A rank whose phases are these two."""

    def __init__(self, recording: Any) -> None:
        self.device, self.seat = CPU, Seat.alone()
        self._profile, self._failed = recording, "out/step_3.failed"

    def update_actor(self) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    def sync_weights(self) -> None: ...


def test_a_rank_that_runs_out_of_memory_leaves_its_snapshot(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rank = Failing(Snapshots(tmp_path))
    roles.call(rank, "sync_weights", pack(()))
    assert caplog.messages == []
    with pytest.raises(torch.OutOfMemoryError):
        roles.call(rank, "update_actor", pack(()))
    assert caplog.messages == ["memory snapshot of the failure: out/step_3.failed.rank_0"]


def test_a_snapshot_that_cannot_be_written_hides_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(torch.OutOfMemoryError):
        roles.call(Failing(Snapshots(tmp_path / "none")), "update_actor", pack(()))
    assert caplog.messages == ["no memory snapshot of the failure: cannot write out/step_3.failed.rank_0"]


def test_a_rank_that_records_no_memory_fails_as_ever(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trace = profiling.start(ProfilerConfig(tool="torch"), 0, CPU)
    assert trace is not None
    for recording in (None, trace):
        with pytest.raises(torch.OutOfMemoryError):
            roles.call(Failing(recording), "update_actor", pack(()))
    trace.stop(tmp_path / "trace")
    assert caplog.messages == []


def test_ranks_are_chosen(tmp_path: Path) -> None:
    def chosen(config: ProfilerConfig) -> list[int]:
        found = []
        for rank in range(3):
            recording = profiling.start(config, rank, CPU)
            if recording is not None:
                found.append(rank)
                recording.stop(tmp_path / "x")
        return found

    assert chosen(ProfilerConfig(tool="torch")) == [0]
    assert chosen(ProfilerConfig(tool="torch", ranks=[1, 2])) == [1, 2]
    assert chosen(ProfilerConfig(tool="torch", ranks=[], all_ranks=True)) == [0, 1, 2]
    assert chosen(ProfilerConfig(ranks=[0])) == []


def test_a_trace_has_the_ranges(tmp_path: Path) -> None:
    recording = profiling.start(ProfilerConfig(tool="torch"), 0, CPU)
    assert recording is not None
    with torch.profiler.record_function("update_actor"):
        torch.ones(3).sum()
    path = Path(recording.stop(tmp_path / "new" / "step_2.rank_0"))
    assert path == tmp_path / "new" / "step_2.rank_0.trace.json.gz"
    names = {event["name"] for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]}
    assert {"update_actor", "aten::sum"} <= names


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    recording = profiling.start(ProfilerConfig(tool="torch"), 0, CPU)
    assert recording is not None
    with pytest.raises(TrainerError, match=r"cannot write .*file/step_2") as caught:
        recording.stop(tmp_path / "file" / "step_2")
    assert "save_path" in caught.value.hint


def test_what_the_check_says() -> None:
    def messages(*words: str) -> str:
        report = check(resolve([*words, "trainer.n_gpus_per_node=2", "trainer.device=cpu"]))
        return "\n".join([*(note.message for note in report.notes), *(each.message for each in report.problems)])

    assert "global_profiler.steps has no effect: global_profiler.tool is null" in messages("global_profiler.steps=[1]")
    assert "global_profiler.tool has no effect: global_profiler.steps is null" in messages("global_profiler.tool=torch")
    assert "a CPU has none" in messages("global_profiler.tool=torch_memory", "global_profiler.steps=[1]")
    assert "ranks=[2] are not among the 2 ranks" in messages(
        "global_profiler.tool=torch", "global_profiler.ranks=[0,2]"
    )
    capsules = ("trainer.capsule_dir=x", "trainer.capsule_weights=checkpoint")
    assert "set trainer.save_freq=1" in messages(*capsules)
    assert "set trainer.save_freq=1" not in messages(*capsules, "trainer.save_freq=1")
    assert load(["global_profiler.steps=3"]).config.global_profiler.steps == [3]
