"""The same trainer on CUDA: one code path, so the figures must be those of the CPU. Needs a GPU; CI has none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from devkit.smoke.problems import word_problems, write_parquet
from devkit.smoke.tiny import TinySpec, build

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.timeout(500),
]

COMPARED = ("actor/pg_loss", "actor/entropy", "actor/grad_norm", "critic/vf_loss", "critic/grad_norm")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A tiny model and word problems."""
    folder = tmp_path_factory.mktemp("inputs")
    train, test = write_parquet(folder, 64, seed=0)
    texts = tuple(record["question"] for record in word_problems(64, 0))
    build(TinySpec(str(folder / "model"), None, texts, 0, 512))
    return {"train": train, "test": test, "model": str(folder / "model")}


def run(inputs: dict[str, str], folder: Path, *overrides: str) -> dict[int, dict[str, float]]:
    """A run of the trainer in a process of its own; its metrics by step."""
    command = [
        *(sys.executable, "-m", "trainer.main_ppo"),
        f"data.train_files={inputs['train']}",
        f"data.val_files={inputs['test']}",
        f"actor_rollout_ref.model.path={inputs['model']}",
        "data.train_batch_size=16",
        "data.max_prompt_length=128",
        "data.max_response_length=16",
        "data.truncation=left",
        "actor_rollout_ref.actor.ppo_mini_batch_size=8",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
        "actor_rollout_ref.actor.optim.lr=1e-3",
        "critic.ppo_micro_batch_size_per_gpu=4",
        "critic.optim.lr=1e-3",
        "algorithm.use_kl_in_reward=True",
        "trainer.logger=[file]",
        "trainer.total_training_steps=4",
        "trainer.save_freq=2",
        "trainer.n_gpus_per_node=1",
        "trainer.device=cuda",
        f"trainer.default_local_dir={folder}",
        *overrides,
    ]
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-4000:]
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return {record["step"]: record for record in map(json.loads, lines)}


def fp32(*roles: str) -> list[str]:
    return [f"{role}.fsdp_config.dtype=fp32" for role in roles]


FP32 = fp32("actor_rollout_ref.actor", "actor_rollout_ref.ref", "critic.model")


def differences(a: dict[str, float], b: dict[str, float]) -> dict[str, tuple[float, float]]:
    """The compared metrics that differ by more than fp32 sums in another order do."""
    return {name: (a[name], b[name]) for name in COMPARED if abs(a[name] - b[name]) > 2e-3 * max(1.0, abs(b[name]))}


def test_cuda_gives_the_figures_of_the_cpu(inputs: dict[str, str], tmp_path: Path) -> None:
    on_gpu = run(inputs, tmp_path / "gpu", *FP32)
    on_cpu = run(inputs, tmp_path / "cpu", *FP32, "trainer.device=cpu")
    assert not differences(on_gpu[1], on_cpu[1])


def test_offloading_the_reference_changes_no_figure(inputs: dict[str, str], tmp_path: Path) -> None:
    plain = run(inputs, tmp_path / "plain", *FP32)
    offloaded = run(inputs, tmp_path / "offloaded", *FP32, "actor_rollout_ref.ref.fsdp_config.param_offload=True")
    assert not differences(offloaded[1], plain[1])


def test_bf16_trains_saves_and_resumes(inputs: dict[str, str], tmp_path: Path) -> None:
    ranks = f"trainer.n_gpus_per_node={min(2, torch.cuda.device_count())}"  # more would share fewer rows than one batch
    run(inputs, tmp_path, ranks, "trainer.total_training_steps=2")
    resumed = run(inputs, tmp_path, ranks)
    assert {3, 4} <= set(resumed)
    assert (tmp_path / "global_step_4" / "state.json").exists()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus_give_the_figures_of_one(inputs: dict[str, str], tmp_path: Path) -> None:
    one = run(inputs, tmp_path / "one", *FP32)
    two = run(inputs, tmp_path / "two", *FP32, "trainer.n_gpus_per_node=2")
    assert not differences(two[1], one[1])
