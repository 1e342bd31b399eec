"""An optimizer's step that is queued whole, with one wait at its end, is that of one whose figures are read first."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from trainer.config.schema import OptimConfig, TrainedFsdpConfig
from trainer.learner.fsdp import Trained
from trainer.learner.models import Source, sharded
from trainer.learner.scaling import LossScale
from trainer.learner.stepping import reads_last

CPU = torch.device("cpu")
Make = Callable[..., Trained]


@pytest.fixture(scope="module")
def make(models: Path, mesh: Any) -> Make:
    """`make(fused=True)`: the same fresh model each time, of a GPU's optimizer or of a CPU's."""
    source = Source(str(models / "qwen2"), False, 1)

    def trained(*, fused: bool, grad_clip: float = 1e9, scale: float | None = None, **memory: bool) -> Trained:
        config = TrainedFsdpConfig(dtype="fp32", **memory)
        module = sharded("causal_lm", source, config, mesh, checkpointing=False)
        loss_scale = LossScale(scale) if scale else None
        optim = OptimConfig(lr=1e-3)
        model = Trained(module, CPU, optim, grad_clip=grad_clip, total_steps=9, memory=config, loss_scale=loss_scale)
        for group in model.optimizer.param_groups:
            group["fused"] = fused
        return model

    return trained


def give_gradients(model: Trained, seed: int, factor: float = 1.0) -> None:
    """Drawn ones, times the loss scale; none to the last parameter, and zeros to the one before."""
    dice = torch.Generator().manual_seed(seed)
    *most, zero, _ = model.module.parameters()
    for parameter in most:
        drawn = torch.randn(parameter.shape, generator=dice) * factor * model._scale
        parameter.grad = torch.zeros_like(parameter)
        parameter.grad.to_local().copy_(drawn)  # type: ignore[attr-defined]
    zero.grad = torch.zeros_like(zero)


def weights(model: Trained) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.full_tensors()}


def moments(model: Trained) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.optimizer_tensors()}


def same(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> bool:
    return all(torch.equal(found[name], x) for name, x in expected.items())


@pytest.mark.parametrize("scale", [None, 2.0**10])
@pytest.mark.parametrize("grad_clip", [1e9, 0.5])
def test_the_same_steps(make: Make, grad_clip: float, scale: float | None) -> None:
    """Norms and moments, and what has moved, of three steps; clipped, what moves is a part of it."""
    first, last = (make(fused=fused, grad_clip=grad_clip, scale=scale) for fused in (False, True))
    assert reads_last(last.optimizer) and not reads_last(first.optimizer)
    for seed in range(3):
        for model in (first, last):
            give_gradients(model, seed)
        expected, found = first.optimizer_step(), last.optimizer_step()
        assert found.grad_norm == pytest.approx(expected.grad_norm, rel=1e-6) and found.grad_norm > 1
        assert found.finite and found.with_gradient == expected.with_gradient
        assert len(found.with_gradient) == len(last.parameter_names) - 2
        assert found.loss_scale == expected.loss_scale == scale
    torch.testing.assert_close(moments(last), moments(first), atol=1e-9, rtol=1e-5)
    torch.testing.assert_close(weights(last), weights(first), atol=1e-7, rtol=1e-6)
    assert last.optimizer_steps() == 3 and not hasattr(last.optimizer, "grad_scale")


def test_an_unclipped_step_is_adamws_to_the_bit(make: Make) -> None:
    """Nothing is divided, where nothing is clipped and nothing was scaled."""
    found, expected = make(fused=True), make(fused=True)
    for seed in range(2):
        give_gradients(found, seed)
        found.optimizer_step()
        give_gradients(expected, seed)
        expected.optimizer.step()
    assert same(weights(found), weights(expected))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("done", [0, 1])
def test_a_gradient_that_is_not_finite_leaves_all_as_it_was(make: Make, value: float, done: int) -> None:
    """Weights, moments and the count of steps; the loss scale goes down, and the next step is that of a clean model."""
    found, clean = make(fused=True, scale=8.0), make(fused=True, scale=8.0)
    for seed in range(done):
        for model in (found, clean):
            give_gradients(model, seed)
            model.optimizer_step()
    before, kept = weights(found), moments(found)
    give_gradients(found, 7)
    next(found.module.parameters()).grad.to_local()[0, 0] = value  # type: ignore[union-attr]
    outcome = found.optimizer_step()
    assert not outcome.finite and not math.isfinite(outcome.grad_norm) and outcome.loss_scale == 8.0
    assert found.loss_scale == LossScale(4.0) and found.optimizer_steps() == done
    assert same(weights(found), before) and same(moments(found), kept)
    for model in (found, clean):
        give_gradients(model, 9)
        assert model.optimizer_step().finite
    torch.testing.assert_close(weights(found), weights(clean), atol=1e-8, rtol=1e-6)


def test_frozen_it_reports_and_changes_nothing(make: Make) -> None:
    model = make(fused=True)
    before = weights(model)
    with model.frozen():
        give_gradients(model, 0)
        assert model.optimizer_step().grad_norm > 1
    assert same(weights(model), before)
    assert all(parameter.grad is None for parameter in model.module.parameters())


def test_moments_in_host_memory_change_no_bit(make: Make) -> None:
    """They come for the step, and for one that is left out too: nobody has read yet that it is."""
    plain, away = make(fused=True, grad_clip=0.5), make(fused=True, grad_clip=0.5, optimizer_offload=True)
    for seed, factor in enumerate((1.0, math.inf, 1.0)):
        for model in (plain, away):
            give_gradients(model, seed, factor)
            assert model.optimizer_step().finite is math.isfinite(factor)
    assert away.optimizer_steps() == plain.optimizer_steps() == 2 and away.moments.host_bytes
    assert same(weights(away), weights(plain)) and same(moments(away), moments(plain))


class Reads(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts the numbers that the host asks a tensor for one by one."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def test_the_host_reads_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    lists: list[int] = []
    plain = Tensor.tolist

    def tolist(self: Tensor) -> Any:
        lists.append(self.numel())
        return plain(self)

    monkeypatch.setattr(Tensor, "tolist", tolist)
    found = {}
    for fused in (False, True):
        model = make(fused=fused)
        for seed in range(2):  # the first makes the optimizer's state
            give_gradients(model, seed)
            lists.clear()
            with Reads() as reads:
                model.optimizer_step()
        found[fused] = reads.count + len(lists)
    assert found[True] == 1 < found[False]
