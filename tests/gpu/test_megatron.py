"""Megatron beside FSDP2 on CUDA: one GPU, and two by tensors, layers and data. Needs megatron-core; CI has no GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.gpu import test_cuda
from tests.gpu.test_cuda import COMPARED, FP32, run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.timeout(500),
]
inputs = test_cuda.inputs

A, C = "actor_rollout_ref.actor", "critic"
ON = (f"{A}.strategy=megatron",)
WHOLE = (f"{A}.megatron.dtype=fp32", f"{C}.megatron.dtype=fp32")
TP, PP = (f"{A}.megatron.{kind}_model_parallel_size=2" for kind in ("tensor", "pipeline"))
TWO = "trainer.n_gpus_per_node=2"
RECOMPUTE = f"{A}.megatron.override_transformer_config.recompute"
FULL = [f"{RECOMPUTE}_{end}" for end in ("granularity=full", "method=uniform", "num_layers=1")]
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


def apart(a: dict[str, float], b: dict[str, float], tolerance: float) -> dict[str, tuple[float, float]]:
    """The compared metrics of a step that differ by more, relatively above 1."""
    return {
        name: (a[name], b[name]) for name in COMPARED if abs(a[name] - b[name]) > tolerance * max(1.0, abs(b[name]))
    }


@pytest.fixture(scope="module")
def fsdp(inputs: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, float]]:
    """FSDP2 on one GPU in float32."""
    return run(inputs, tmp_path_factory.mktemp("fsdp"), *FP32)


def test_one_gpu_trains_as_fsdp_does(inputs: dict[str, str], tmp_path: Path, fsdp: dict[int, dict[str, float]]) -> None:
    found = run(inputs, tmp_path, *ON, *WHOLE, *FULL)
    assert not apart(found[1], fsdp[1], 1e-4)


def test_one_gpu_in_bf16_has_the_losses_of_fsdp(inputs: dict[str, str], tmp_path: Path) -> None:
    """The losses within a thousandth; gradient norms within a hundredth, for they add up many roundings."""
    theirs, ours = run(inputs, tmp_path / "fsdp"), run(inputs, tmp_path / "megatron", *ON)
    wide = apart(ours[1], theirs[1], 1e-2)
    narrow = {name: pair for name, pair in apart(ours[1], theirs[1], 1e-3).items() if "grad_norm" not in name}
    assert not wide and not narrow


@two_gpus
@pytest.mark.parametrize("split", [(TP,), (PP,), ()], ids=["tensor", "pipeline", "data"])
def test_two_gpus_train_as_fsdp_does_on_one(
    inputs: dict[str, str], tmp_path: Path, fsdp: dict[int, dict[str, float]], split: tuple[str, ...]
) -> None:
    found = run(inputs, tmp_path, *ON, *WHOLE, *split, TWO)
    assert not apart(found[1], fsdp[1], 1e-4)


@two_gpus
def test_a_run_continues_on_other_sizes(inputs: dict[str, str], tmp_path: Path) -> None:
    """bf16, tensor-parallel until step 2, then over two stages from its checkpoint."""
    run(inputs, tmp_path, *ON, TP, TWO, "trainer.total_training_steps=2")
    resumed = run(inputs, tmp_path, *ON, PP, TWO)
    assert {3, 4} <= set(resumed)
