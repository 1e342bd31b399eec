"""Training in fp16: the loss scale keeps small gradients, an overflow costs one step and lowers it, and it is saved."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.trainer.batches import train_batch
from tests.trainer.conftest import Words
from trainer import metrics, ppo
from trainer.config import load
from trainer.config.schema import MegatronConfig, OptimConfig, TrainedFsdpConfig
from trainer.errors import TrainerError
from trainer.interfaces import Told
from trainer.learner import checkpoint
from trainer.learner.fsdp import Trained
from trainer.learner.models import Source, compute_dtype, first_loss_scale, sharded
from trainer.learner.offload import local
from trainer.learner.scaling import FIRST_SCALE, GROWTH_STEPS, LARGEST_SCALE, LossScale
from trainer.records import MiniBatch, TrainBatch, UpdateReport

Make = Callable[..., Trained]
ROLES = ("actor", "critic")
OVERFLOW = 1e30  # a gradient that fp16 does not hold


@pytest.fixture(scope="module")
def make(models: Path, mesh: Any) -> Make:
    """`make("actor", "fp16")`: a fresh model with its optimizer."""

    def trained(role: str, dtype: str = "fp16", scale: float | None = None, **memory: bool) -> Trained:
        kind = "causal_lm" if role == "actor" else "value"
        config = TrainedFsdpConfig(dtype=dtype, **memory)
        module = sharded(kind, Source(str(models / "qwen2"), False, 1), config, mesh, checkpointing=True)
        first = LossScale(scale) if scale else first_loss_scale(config, "cpu")
        return Trained(
            module,
            torch.device("cpu"),
            OptimConfig(lr=1e-3),
            grad_clip=1.0,
            total_steps=10,
            memory=config,
            loss_scale=first,
        )

    return trained


def update(model: Trained, role: str, words: Words, batch: TrainBatch, factor: float = 1.0) -> UpdateReport:
    config = load(words()).config
    loss: Any = partial(ppo.actor_loss, model, config=config.actor_rollout_ref.actor)
    if role == "critic":
        loss = partial(ppo.critic_loss, model, config=config.critic)

    def scaled(*args: Any) -> tuple[Tensor, Told]:
        value, told = loss(*args)
        return value * factor, told

    share = MiniBatch(batch, ppo.totals_of(batch.experience.rollout.mask_BT, 6), torch.arange(len(batch)).split(4))
    with model.training():
        return ppo.update(model, (share,), scaled)


def weights(model: Trained) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.full_tensors()}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("scale", [1.0, 2.0**10])
def test_the_norm_is_that_of_the_unscaled_gradient(make: Make, words: Words, role: str, scale: float) -> None:
    """Whatever the scale, it is that of fp32, within fp16's three digits; and so is what clipping leaves."""
    batch = train_batch(8)
    exact = update(make(role, "fp32"), role, words, batch)
    model, clipped = make(role, scale=scale), []
    step = model.optimizer.step

    def look() -> None:
        clipped.append(torch.stack([local(p.grad).norm() for p in model.module.parameters() if p.grad is not None]))
        step()

    model.optimizer.step = look  # type: ignore[method-assign, assignment]
    model.grad_clip = exact.steps[0]["grad_norm"] / 4
    found = update(model, role, words, batch)
    assert found.steps[0]["grad_norm"] == pytest.approx(exact.steps[0]["grad_norm"], rel=2e-2)
    assert float(clipped[0].norm()) == pytest.approx(model.grad_clip, rel=1e-3)
    assert found.loss_scale == scale and exact.loss_scale is None and found.skipped == 0


@pytest.mark.parametrize("role", ROLES)
def test_a_loss_goes_down(make: Make, words: Words, role: str) -> None:
    model, batch = make(role), train_batch(8)
    model.loss_scale = LossScale(2.0**10)
    losses = [update(model, role, words, batch).steps[0] for _ in range(3)]
    name = "actor/pg_loss" if role == "actor" else "critic/vf_loss"
    assert losses[2][name] < losses[0][name]


def test_a_small_gradient_survives_by_the_scale(make: Make, words: Words) -> None:
    """Given a loss whose gradients fp16 has no numbers for, its norm is right with the scale, and not without."""

    def norm(dtype: str, scale: float | None) -> float:
        report = update(make("actor", dtype, scale), "actor", words, train_batch(8), factor=1e-5)
        assert report.skipped == 0
        return report.steps[0]["grad_norm"]

    exact = norm("fp32", None)
    assert norm("fp16", FIRST_SCALE) == pytest.approx(exact, rel=2e-2)
    assert norm("fp16", 1.0) != pytest.approx(exact, rel=5e-2)


@pytest.mark.parametrize("role", ROLES)
def test_an_overflow_costs_one_step_and_halves_the_scale(make: Make, words: Words, role: str) -> None:
    model, batch = make(role, scale=2.0**10, optimizer_offload=True, grad_offload=True), train_batch(8)
    update(model, role, words, batch)
    before = weights(model)
    report = update(model, role, words, batch, factor=OVERFLOW)
    assert report.skipped == 1 and report.loss_scale == 2.0**10 and not math.isfinite(report.steps[0]["grad_norm"])
    assert model.loss_scale == LossScale(2.0**9)
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(model).items())
    assert all(parameter.grad is None for parameter in model.module.parameters())

    report = update(model, role, words, batch)
    assert report.skipped == 0 and report.loss_scale == 2.0**9 and model.loss_scale == LossScale(2.0**9, good_steps=1)
    assert any(not torch.equal(tensor, before[name]) for name, tensor in weights(model).items())
    assert metrics.update_metrics(role, report)[f"{role}/loss_scale"] == 2.0**9


def test_an_overflow_that_no_scale_helps_ends_the_run(make: Make, words: Words) -> None:
    model, batch = make("actor", scale=2.0), train_batch(8)
    assert update(model, "actor", words, batch, factor=math.inf).skipped == 1
    with pytest.raises(TrainerError, match="gone down to 1") as caught:
        update(model, "actor", words, batch, factor=math.inf)
    assert "bf16" in caught.value.hint


def test_frozen_updates_leave_the_scale(make: Make, words: Words) -> None:
    model = make("actor", scale=8.0)
    with model.frozen():
        update(model, "actor", words, train_batch(8), factor=OVERFLOW)
    assert model.loss_scale == LossScale(8.0)


def test_the_scale_is_saved_and_resumed(make: Make, words: Words, tmp_path: Path) -> None:
    model, batch = make("actor", scale=2.0**10), train_batch(8)
    update(model, "actor", words, batch)
    model.loss_scale = LossScale(2.0**7, good_steps=11)
    checkpoint.save(model, tmp_path / "fp16")
    resumed, exact = make("actor"), make("actor", "fp32")
    for other in (resumed, exact):
        checkpoint.load(other, tmp_path / "fp16")
    assert resumed.loss_scale == LossScale(2.0**7, good_steps=11) and exact.loss_scale is None
    assert update(resumed, "actor", words, batch) == update(model, "actor", words, batch)

    checkpoint.save(exact, tmp_path / "fp32")
    checkpoint.load(resumed, tmp_path / "fp32")
    assert resumed.loss_scale == LossScale(2.0**7, good_steps=12)  # there is none to continue: its own stays


# ------------------------------------------------------------------------------------------------------------ the scale


@given(st.lists(st.booleans(), max_size=30))
def test_scale_is_a_power_of_two_within_bounds(outcomes: list[bool]) -> None:
    scale = LossScale()
    for finite in outcomes:
        if not finite and scale.scale == 1:
            return
        scale = scale.after(finite=finite)
        assert 1 <= scale.scale <= LARGEST_SCALE and math.log2(scale.scale).is_integer()
        assert finite or scale.good_steps == 0


def test_scale_grows_after_enough_good_steps_and_not_for_ever() -> None:
    last = LossScale(4.0, good_steps=GROWTH_STEPS - 2)
    assert last.after(finite=True) == LossScale(4.0, GROWTH_STEPS - 1)
    assert last.after(finite=True).after(finite=True) == LossScale(8.0)
    highest = dataclasses.replace(last, scale=LARGEST_SCALE).after(finite=True).after(finite=True)
    assert highest == LossScale(LARGEST_SCALE)


@pytest.mark.parametrize(
    ("dtype", "device", "scaled"),
    [("auto", "cpu", False), ("auto", "cuda", False), ("bf16", "cuda", False), ("fp16", "cpu", True)],
)
def test_only_fp16_is_scaled(monkeypatch: pytest.MonkeyPatch, dtype: str, device: str, scaled: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)
    assert (first_loss_scale(TrainedFsdpConfig(dtype=dtype), device) is not None) is scaled


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (["actor.fsdp_config.dtype=fp16"], "fp16"),
        (["actor.fsdp_config.mixed_precision.param_dtype=fp16"], "fp16"),
        (["actor.fsdp_config.dtype=fp16", "ref.fsdp_config.dtype=fp32"], "fp32"),
        ([], "auto"),
    ],
)
def test_the_reference_computes_as_the_actor_does(words: Words, changes: list[str], expected: str) -> None:
    """Their log-probs are compared, and a GPU that has no bf16 for one has none for the other."""
    config = load(words(*(f"actor_rollout_ref.{change}" for change in changes))).config
    assert config.actor_rollout_ref.ref.fsdp_config.dtype == expected
    assert config.critic.model.fsdp_config.dtype == "auto"


@pytest.mark.parametrize(
    ("config", "on_ampere", "on_a_v100"),
    [
        (TrainedFsdpConfig(), torch.bfloat16, torch.float16),
        (TrainedFsdpConfig(dtype="bf16"), torch.bfloat16, torch.bfloat16),
        (TrainedFsdpConfig(model_dtype="bf16"), torch.bfloat16, torch.float32),  # gradients are unscaled in fp32
        (MegatronConfig(), torch.bfloat16, torch.float32),
    ],
)
def test_auto_is_what_the_gpu_computes_in(
    monkeypatch: pytest.MonkeyPatch, config: Any, on_ampere: torch.dtype, on_a_v100: torch.dtype
) -> None:
    """A V100 emulates bf16, slower than it computes in fp32."""
    for native, dtype in ((True, on_ampere), (False, on_a_v100)):
        monkeypatch.setattr(
            torch.cuda, "is_bf16_supported", lambda including_emulation=True, n=native: n or including_emulation
        )
        assert compute_dtype(config, "cuda") == dtype
        assert compute_dtype(config, "cpu") == (torch.bfloat16 if config.dtype == "bf16" else torch.float32)


def test_where_auto_is_fp16_the_gradient_is_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    assert first_loss_scale(TrainedFsdpConfig(), "cuda") == LossScale()
