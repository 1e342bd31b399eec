"""What an update takes of a GPU, by formula: against what was measured, and the first plan that fits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Olmo2Config,
    Phi3Config,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from trainer.config.fits import (
    BUDGETS,
    FULL,
    GIB,
    NONE,
    SELECTIVE,
    Load,
    Plan,
    Plans,
    activations,
    first_fit,
    kept,
    peak,
)
from trainer.config.shape import Shape, shape_of

HEADS = {"num_attention_heads": 12, "num_key_value_heads": 2}
QWEN2 = Qwen2Config(
    hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, vocab_size=151936, tie_word_embeddings=True, **HEADS
)
ARCHITECTURES: tuple[PretrainedConfig, ...] = (
    QWEN2,
    LlamaConfig(num_hidden_layers=4),
    Qwen3Config(num_hidden_layers=4, head_dim=128),
    GPT2Config(),
    MistralConfig(num_hidden_layers=4),
    GemmaConfig(num_hidden_layers=4),
    Gemma3TextConfig(num_hidden_layers=4),
    Phi3Config(num_hidden_layers=4),
    Olmo2Config(num_hidden_layers=4),
    MixtralConfig(num_hidden_layers=2),
    Qwen3MoeConfig(num_hidden_layers=4),
)
WHOLE, OPEN = {"compiled": True, "reshard": False}, Plans()


def shape(config: PretrainedConfig = QWEN2) -> Shape:
    found = shape_of(config.to_dict())
    assert found is not None
    return found


def plan(recompute: str, budget: float | None = None) -> Plan:
    return Plan(recompute=recompute, budget=budget, **WHOLE)  # type: ignore[arg-type]


def load(tokens: int, **more: Any) -> Load:
    """Three quarters of a sequence are the response, as in the measurements."""
    return Load(tokens, tokens * 3 // 4, **{"ranks": 1, "several": False, "device": 80 * GIB, **more})


@pytest.mark.parametrize("config", ARCHITECTURES, ids=lambda config: config.model_type)
def test_parameters_are_counted_as_transformers_makes_them(config: PretrainedConfig) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert shape(config).parameters == pytest.approx(sum(p.numel() for p in model.parameters()), rel=2e-3)


def test_a_configuration_without_sizes_has_no_shape() -> None:
    assert shape_of({"model_type": "qwen2", "hidden_size": 4, "vocab_size": 3}) is None
    assert shape_of({"text_config": QWEN2.to_dict(), "model_type": "qwen2_vl"}) == shape()


@pytest.mark.parametrize(
    ("tokens", "how", "measured"),
    [
        (4096, plan(NONE), 29.4),
        (8192, plan(NONE), 38.2),
        (16384, plan(NONE), 55.7),
        (16384, plan(SELECTIVE, 0.5), 36.4),
        (16384, plan(SELECTIVE, 0.25), 28.8),
        (4096, plan(FULL), 26.9),
        (16384, plan(FULL), 27.0),
    ],
)
def test_the_formula_is_within_a_tenth_of_measured_peaks(tokens: int, how: Plan, measured: float) -> None:
    """1.54 billion parameters on one rank, one pass: an H100, 2026-11-24, torch 2.11 with CUDA 13.0."""
    assert peak(shape(), load(tokens), how) / GIB == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize(
    ("rows", "how", "measured"),
    [
        (12, plan(NONE), 72.4),
        (12, plan(SELECTIVE, 0.75), 57.0),
        (18, plan(SELECTIVE, 0.75), 72.9),
        (18, plan(SELECTIVE, 0.57), 66.9),
        (18, plan(SELECTIVE, 0.35), 51.7),
        (18, plan(SELECTIVE, 0.1), 34.9),
        (18, plan(FULL), 28.8),
    ],
)
def test_logits_that_are_kept_end_where_32_bits_do(rows: int, how: Plan, measured: float) -> None:
    """Long passes, whose logits would be more than 2^31 numbers: an H100, 2026-11-26, the same versions."""
    assert peak(shape(), load(rows * 2048), how) / GIB == pytest.approx(measured, rel=0.01)
    small, large = (peak(shape(), load(rows * 2048, device=size * GIB), how) for size in (80, 140))
    assert small == large  # a sixteenth of either would be more


def test_what_takes_memory_is_in_the_formula() -> None:
    """Worked by hand, in numbers of parameters: weights 4, moments 8, a gradient 4 bytes, whole ones 2."""
    size, short = shape().parameters, load(64)
    embeddings = 151936 * 1536
    end = 16 * size + 2 * size + 4 * embeddings  # of the backward pass, which a short one does not exceed
    assert peak(shape(), short, plan(NONE)) == end
    sharded = Plan(compiled=True, recompute=NONE, budget=None, reshard=True)
    of_layer = (size - embeddings) // 28
    assert peak(shape(), short, sharded) == end - 2 * size + 2 * (embeddings + 2 * of_layer)
    assert peak(shape(), load(64, ranks=4), plan(NONE)) == 4 * size + 2 * size + 4 * embeddings
    # With moments in host memory, the optimizer's step is what takes most: they come for it.
    assert peak(shape(), load(64, moments_wait=True), plan(NONE)) == 16 * size
    waiting = peak(shape(), load(16384, several=True), plan(NONE)) - peak(shape(), load(16384), plan(NONE))
    assert waiting == 4 * size  # the gradients of the pass before
    assert peak(shape(), load(16384, several=True, gradients_wait=True), plan(NONE)) == peak(
        shape(), load(16384), plan(NONE)
    )


@pytest.mark.parametrize("config", ARCHITECTURES, ids=lambda config: config.model_type)
def test_what_recomputes_more_keeps_less(config: PretrainedConfig) -> None:
    found = [kept(shape(config), plan(NONE)), *(kept(shape(config), plan(SELECTIVE, share)) for share in BUDGETS)]
    found.append(kept(shape(config), plan(FULL)))
    assert found == sorted(found, reverse=True) and len(set(found)) == len(BUDGETS) + 2
    for share, numbers in zip(BUDGETS, found[1:-1], strict=True):
        assert numbers - shape(config).hidden <= share * (activations(shape(config)) - shape(config).hidden)


@pytest.mark.parametrize(
    ("room", "recompute", "budget", "reshard"),
    [
        (60, NONE, None, False),
        (54, SELECTIVE, 0.75, False),  # keeping all takes 53.2, sharded again, and is no quicker
        (43, SELECTIVE, 0.75, True),
        (42.6, SELECTIVE, 0.57, False),
        (38, SELECTIVE, 0.5, False),
        (35, SELECTIVE, 0.35, True),
        (30, SELECTIVE, 0.25, False),
        (27, SELECTIVE, 0.1, True),
        (25, FULL, None, True),
        (26, FULL, None, True),
        (20, FULL, None, True),  # nothing fits: what takes least
    ],
)
def test_the_first_that_fits(room: float, recompute: str, budget: float | None, reshard: bool) -> None:
    fit = first_fit(shape(), load(16384), True, OPEN, int(room * GIB))
    assert fit.plan == Plan(True, recompute, budget, reshard)
    assert fit.fits is (room > 20)
    assert (fit.quickest is None) is (room == 60)


@pytest.mark.parametrize(
    ("wanted", "recompute", "budget", "reshard"),
    [
        (Plans(some=True), SELECTIVE, 0.75, False),
        (Plans(recompute=FULL), FULL, None, False),
        (Plans(recompute=SELECTIVE, budget=0.3), SELECTIVE, 0.3, False),
        (Plans(reshard=True), NONE, None, True),
        (Plans(recompute=NONE), NONE, None, False),
    ],
)
def test_what_is_given_stands(wanted: Plans, recompute: str, budget: float | None, reshard: bool) -> None:
    """In a room that takes anything, and in one that takes nothing."""
    for room in (200, 0):
        found = first_fit(shape(), load(16384), True, wanted, room * GIB).plan
        if room:
            assert found == Plan(True, recompute, budget, reshard)
        if wanted.recompute is not None:
            assert (found.recompute, found.budget) == (recompute, budget)
        if wanted.reshard is not None:
            assert found.reshard is reshard


def test_layers_that_are_not_compiled_have_no_budget() -> None:
    """The host would decide on each operator: only where the command asks for it."""
    tight = first_fit(shape(), load(16384), False, OPEN, 40 * GIB)
    assert (tight.plan.recompute, tight.plan.budget) == (FULL, None)
    asked = first_fit(shape(), load(16384), False, Plans(recompute=SELECTIVE), 40 * GIB)
    assert (asked.plan.recompute, asked.plan.budget) == (SELECTIVE, None)
