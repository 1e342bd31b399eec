"""Checkpoint folders: whole or not there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from trainer import checkpoints, main_ppo, resuming
from trainer.config import load
from trainer.config.schema import Config, TrainerConfig
from trainer.errors import CheckpointError, TrainerError, WeightMismatch, WorkerDied
from trainer.ppo import Progress
from trainer.state import State, read_state

Write = Callable[[str], None]


def state(step: int) -> State:
    return State(Progress(step=step, kl_coef=0.5), {"epoch": 0, "batch": step})


def shards(lose: str = "") -> Write:
    """Writes an actor of one shard; `lose` removes a file that its index names."""

    def write(folder: str) -> None:
        actor = Path(folder) / "actor"
        dcp.save({"weight": torch.ones(2)}, checkpoint_id=actor, no_dist=True)
        for path in actor.glob(lose) if lose else ():
            path.unlink()

    return write


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_checkpoint_whose_shards_lie_elsewhere_is_refused(tmp_path: Path) -> None:
    checkpoints.save(tmp_path, state(1), shards(), keep=None)
    with pytest.raises(CheckpointError) as caught:
        checkpoints.save(tmp_path, state(2), shards(lose="*.distcp"), keep=None)
    assert "distcp" in caught.value.message and "all nodes share" in caught.value.hint
    assert [path.name for path in checkpoints.complete(tmp_path)] == ["global_step_1"]
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_the_newest_are_kept_and_read_back(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        checkpoints.save(tmp_path, state(step), shards(), keep=2)
    assert [path.name for path in checkpoints.complete(tmp_path)] == ["global_step_2", "global_step_3"]
    found = read_state(tmp_path / "global_step_3")
    assert replace(found, files=None, saved=0) == state(3)
    assert found.saved == 3 and sorted(found.files or ()) == ["actor/.metadata", "actor/__0_0.distcp"]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_what_an_ended_run_goes_on_from(tmp_path: Path) -> None:
    config = TrainerConfig(default_local_dir=str(tmp_path), resume_mode="disable")
    assert resuming.way_on(config) == "no checkpoint was written: trainer.save_freq=-1"
    often = replace(config, save_freq=20)
    assert resuming.way_on(often) == "no checkpoint was written yet: trainer.save_freq=20"
    checkpoints.save(tmp_path, state(20), shards(), keep=None)
    assert resuming.way_on(often) == f"trainer.resume_mode=auto continues from {tmp_path}/global_step_20"


@pytest.mark.parametrize("kind", [WorkerDied, WeightMismatch])
def test_an_end_that_is_not_the_runs_fault_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[TrainerError]
) -> None:
    def ended(config: Config) -> None:
        raise kind("it ended", hint="look at it")

    monkeypatch.setattr("trainer.launch.run_on_ray", ended)
    monkeypatch.setattr(main_ppo, "running_cluster", lambda: "another")  # this process' environment stays as it is
    with pytest.raises(kind) as raised:
        main_ppo.train(load([f"trainer.default_local_dir={tmp_path}"]).config)
    assert raised.value.hint == "look at it; no checkpoint was written: trainer.save_freq=-1"
