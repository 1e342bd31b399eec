"""What a rank settles before it loads models: by its device, and by shapes that transformers knows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.trainer.conftest import Words
from trainer import fitting
from trainer.config import load
from trainer.config.chosen import Device
from trainer.config.fits import GIB
from trainer.config.schema import Config
from trainer.fitting import settled
from trainer.teams import Seat

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
PART = "actor_rollout_ref"


@pytest.fixture
def config(words: Words, models: Path) -> Config:
    return load(words(f"{PART}.model.path={models / 'qwen2'}")).config


def test_a_cpu_leaves_all_as_it_was(config: Config) -> None:
    """Without a process group: nobody is asked."""
    after, choices = settled(config, CPU, Seat.alone())
    assert [choice.role for choice in choices] == ["actor", "critic"]
    assert after.actor_rollout_ref.model.enable_gradient_checkpointing is True
    assert after.actor_rollout_ref.actor.fsdp_config.use_torch_compile is False


def test_a_gpu_is_asked_and_the_folder_read(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device's answer is a stand-in, as there is none here: `tests/gpu/test_memory.py` asks a real one."""
    roomy, tight = (Device(cuda=True, compiles=True, free=free, total=80 * GIB) for free in (78 * GIB, 2**20))
    monkeypatch.setattr(fitting, "_least_of_all_ranks", lambda _device: roomy)
    after, choices = settled(config, CUDA, Seat.alone())
    assert [str(choice.plan) for choice in choices] == ["layers compiled, nothing recomputed, parameters whole"] * 2
    assert after.critic.model.enable_gradient_checkpointing is False
    monkeypatch.setattr(fitting, "_least_of_all_ranks", lambda _device: tight)
    after, choices = settled(config, CUDA, Seat.alone())
    assert ["only more GPUs, or offloading, take less" in choice.why for choice in choices] == [True, True]
    assert after.actor_rollout_ref.model.recompute_granularity == "full"


def test_a_rank_answers_for_its_own_roles(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "_least_of_all_ranks", lambda _device: Device(True, True, 78 * GIB, 80 * GIB))
    _, choices = settled(config, CUDA, Seat(0, 0, 1, frozenset({"critic"})))
    assert [choice.role for choice in choices] == ["critic"]
    assert settled(config, CUDA, Seat(0, 0, 1, frozenset({"rollout"}))) == (config, ())
