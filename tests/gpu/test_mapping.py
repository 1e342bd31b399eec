"""Roles on GPUs of their own, with a serving engine: weights go over NCCL to another GPU. Needs two; CI has none."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tests.engines.conftest import AGREE, ON_CUDA, ROLLOUT, widen
from tests.gpu.test_cuda import inputs, run  # noqa: F401 - a fixture

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
    pytest.mark.timeout(500),
]
MAPPING = ("trainer.n_gpus_per_node=2", "trainer.device_mapping.actor=[0]", "trainer.device_mapping.rollout=[1]")


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param(name, marks=pytest.mark.skipif(find_spec(name) is None, reason="not installed"))
        for name in ("sglang", "vllm")
    ],
)
def test_an_engine_on_a_gpu_of_its_own_has_the_actors_weights(
    inputs: dict[str, str],  # noqa: F811
    tmp_path: Path,
    engine: str,
) -> None:
    """With a learning rate at which two steps change the answers by much more than rounding does."""
    model = tmp_path / "model"
    shutil.copytree(inputs["model"], model)
    widen(model)  # the engine's kernels know few sizes of heads
    found = run(
        inputs | {"model": str(model)},
        tmp_path / "run",
        *(f"{ROLLOUT}.name={engine}", f"{ROLLOUT}.tensor_model_parallel_size=1", f"{ROLLOUT}.engine_timeout=200"),
        *(*ON_CUDA, *MAPPING, "trainer.total_training_steps=3", "trainer.save_freq=-1"),
    )
    for step in (1, 2, 3):
        metrics = found[step]
        apart = {end: metrics[f"training/rollout_logp_diff_{end}"] for end in ("mean", "max")}
        print(apart, metrics["actor/grad_norm"])
        assert apart["mean"] < AGREE
