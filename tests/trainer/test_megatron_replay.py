"""A step that Megatron has trained, done again from its capsule under FSDP2 on one CPU."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.conftest import Words
from trainer import config, replay
from trainer.capsules import Capsule
from trainer.data.reading import read_data
from trainer.errors import CheckpointError
from trainer.findings import STAGES, table
from trainer.local import LocalPool
from trainer.restaging import on_one_cpu
from trainer.run import train
from trainer.tracking import Tracker

pytestmark = pytest.mark.trainer

A = "actor_rollout_ref.actor"
ON = f"{A}.strategy=megatron"


class Log:
    """A tracker's back-end that remembers which steps there were."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def log(self, step: int, metrics: Any) -> None:
        self.steps.append(step)

    def close(self) -> None: ...


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("megatron-capsules")


@pytest.fixture(scope="module")
def capsule(words: Words, folder: Path) -> Path:
    """Of the third step of a run on one rank, with a reference and a critic; its last checkpoint lies beside it."""
    pytest.importorskip("megatron.core", reason="megatron-core is not installed: pip install 'ray-devkit[megatron]'")
    settings = config.load(
        words(
            ON,
            "trainer.total_training_steps=3",
            "algorithm.use_kl_in_reward=True",
            "trainer.save_freq=3",
            f"trainer.default_local_dir={folder / 'checkpoints'}",
            f"trainer.capsule_dir={folder}",
        )
    ).config
    with closing(LocalPool()) as pool:
        train(settings, pool, read_data(settings), Tracker([Log()]))
    return folder / "step_3.capsule"


def test_every_stage_comes_out_the_same_under_fsdp(capsule: Path) -> None:
    """Weights to the bit; log-probs, losses, gradients and each tensor's change within the limits of fp32."""
    found = list(replay.replay(capsule))
    assert set(STAGES) == {each.stage for each in found}
    assert {each.verdict for each in found} == {"same"}, "\n".join(table(found))


def test_adams_state_is_in_it_by_transformers_names(capsule: Path) -> None:
    with closing(Capsule(capsule)) as whole:
        names = {name.partition(":")[0] for name, _ in whole.tensors("optimizer/actor")}
        weights = {name for name, _ in whole.tensors("weights/actor")}
        kinds = {name.rpartition(":")[2] for name, _ in whole.tensors("optimizer/actor")}
    assert names == weights and kinds == {"exp_avg", "exp_avg_sq", "step"}


def test_another_run_in_the_process_resumes(capsule: Path, folder: Path, words: Words) -> None:
    """Megatron's groups are of the first run's world, and that one has ended."""
    checkpoints = f"trainer.default_local_dir={folder / 'checkpoints'}"
    settings, log = config.load(words(ON, checkpoints, "trainer.total_training_steps=4")).config, Log()
    with closing(LocalPool()) as pool:
        train(settings, pool, read_data(settings), Tracker([log]))
    assert log.steps == [4]


def test_fsdp_says_that_a_checkpoint_is_megatrons(capsule: Path, folder: Path, words: Words) -> None:
    settings = config.load(
        words(f"trainer.default_local_dir={folder / 'checkpoints'}", "trainer.resume_mode=auto")
    ).config
    with (
        closing(LocalPool()) as pool,
        pytest.raises(CheckpointError, match="written with strategy=megatron"),
    ):
        train(settings, pool, read_data(settings), Tracker([Log()]))


@pytest.mark.parametrize(("ran", "dtype"), [("bf16", "bf16"), ("auto", "fp32"), ("fp32", "fp32")])
def test_a_replay_is_under_fsdp_in_megatrons_precision(words: Words, ran: str, dtype: str) -> None:
    """Whatever FSDP2's own keys say, which had no effect in the run."""
    theirs = config.load(words(ON, f"{A}.megatron.dtype={ran}", f"{A}.fsdp_config.model_dtype=bf16")).config
    ours = on_one_cpu(theirs, None, "fp32")
    assert (ours.actor_rollout_ref.actor.strategy, ours.critic.strategy) == ("fsdp", "fsdp")
    fsdp = ours.actor_rollout_ref.actor.fsdp_config
    assert (fsdp.dtype, fsdp.model_dtype) == (dtype, "fp32")
    assert ours.actor_rollout_ref.ref.fsdp_config.dtype == dtype
