"""The `hf` engine: it draws from the trainer's distribution, stops at EOS, and no sequence sees its neighbours."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.trainer.batches import prompts_of, random_ids
from tests.trainer.conftest import ARCHITECTURES
from tests.trainer.test_models import model_of
from trainer.errors import WeightMismatch
from trainer.interfaces import Sampling
from trainer.precision import in_precision
from trainer.records import Prompts, Rollout
from trainer.rollout.hf import HfEngine
from trainer.rollout.sampling import draw, uniform_streams
from trainer.rows import repeat, take

SAMPLING = Sampling(max_new_tokens=8, temperature=1.0, top_p=1.0, top_k=-1, do_sample=True, ignore_eos=False, seed=3)
PROMPTS = random_ids([4, 1, 6, 2, 5], 1)


def engine_of(folder: Path, eos: list[int] | None = None, max_sequences: int = 256) -> HfEngine:
    model = AutoModelForCausalLM.from_pretrained(folder, **in_precision(torch.float32))
    return HfEngine(model, eos_ids=[1] if eos is None else eos, pad_id=0, max_sequences=max_sequences)


def varied(**changes: Any) -> Sampling:
    return dataclasses.replace(SAMPLING, **changes)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_log_probs_are_the_trainers(models: Path, mesh: Any, architecture: str, temperature: float) -> None:
    rollout = engine_of(models / architecture).generate(prompts_of(PROMPTS), varied(temperature=temperature))
    trainer = model_of(models / architecture, mesh, temperature=temperature)
    logp = trainer.log_probs(rollout, entropy=False).logp_BT.detach()
    torch.testing.assert_close(rollout.logp_BT, logp, atol=3e-5, rtol=1e-5)


def test_restricted_sampling_reports_the_unrestricted_log_probs(models: Path, mesh: Any) -> None:
    rollout = engine_of(models / "qwen2").generate(prompts_of(PROMPTS), varied(top_p=0.3, top_k=5, temperature=0.7))
    logp = model_of(models / "qwen2", mesh, temperature=0.7).log_probs(rollout, entropy=False).logp_BT.detach()
    torch.testing.assert_close(rollout.logp_BT, logp, atol=3e-5, rtol=1e-5)


def test_greedy_is_argmax(models: Path) -> None:
    rollout = engine_of(models / "qwen2", eos=[]).generate(
        prompts_of(PROMPTS), varied(do_sample=False, temperature=0.0)
    )
    model = AutoModelForCausalLM.from_pretrained(models / "qwen2", **in_precision(torch.float32)).eval()
    for b, ids in enumerate(PROMPTS):
        context = list(ids)
        for t in range(SAMPLING.max_new_tokens):
            with torch.no_grad():
                best = int(model(torch.tensor([context])).logits[0, -1].argmax())
            assert rollout.response_BT[b, t] == best
            context.append(best)


def test_eos_ends_a_response_and_belongs_to_it(models: Path) -> None:
    """Any of a third of the vocabulary ends a response here, so that lengths differ."""
    ends = list(range(2, 300, 3))
    rollout = engine_of(models / "qwen2", eos=ends).generate(repeat(prompts_of(PROMPTS), 4), varied(max_new_tokens=12))
    lengths = rollout.mask_BT.sum(-1)
    assert lengths.min() < lengths.max() == rollout.mask_BT.shape[1]
    for response, mask, logp, length in zip(
        rollout.response_BT, rollout.mask_BT, rollout.logp_BT, lengths.tolist(), strict=True
    ):
        assert mask.tolist() == [1] * length + [0] * (len(mask) - length)
        assert not set(response[: length - 1].tolist()) & set(ends)
        assert length == 12 or int(response[length - 1]) in ends
        assert (response[length:] == 0).all() and (logp[length:] == 0).all() and (logp[:length] < 0).all()


def test_ignore_eos_goes_on(models: Path) -> None:
    rollout = engine_of(models / "qwen2", eos=list(range(300))).generate(prompts_of(PROMPTS), varied(ignore_eos=True))
    assert (rollout.mask_BT.sum(-1) == SAMPLING.max_new_tokens).all()


def answers(rollout: Rollout) -> dict[tuple[int, int], list[int]]:
    """The response of each (prompt, sample)."""
    prompts = rollout.prompts
    return {
        (int(uid), int(sample)): ids[: int(length)].tolist()
        for uid, sample, ids, length in zip(
            prompts.uid_B, prompts.sample_B, rollout.response_BT, rollout.mask_BT.sum(-1), strict=True
        )
    }


def test_a_draw_depends_on_its_own_sequence_alone(models: Path) -> None:
    prompts = repeat(prompts_of(PROMPTS), 2)
    engine = engine_of(models / "qwen2", eos=list(range(2, 300, 9)))
    whole = answers(engine.generate(prompts, SAMPLING))

    order = torch.randperm(len(prompts), generator=torch.Generator().manual_seed(0))
    assert answers(engine.generate(take(prompts, order), SAMPLING)) == whole
    alone: dict[tuple[int, int], list[int]] = {}
    for b in range(len(prompts)):
        alone |= answers(engine.generate(take(prompts, slice(b, b + 1)), SAMPLING))
    assert alone == whole
    engine.max_sequences = 3
    assert answers(engine.generate(prompts, SAMPLING)) == whole


def test_samples_steps_and_seeds_differ(models: Path) -> None:
    engine, prompts = engine_of(models / "qwen2", eos=[]), repeat(prompts_of(PROMPTS[:1]), 6)
    found = answers(engine.generate(prompts, SAMPLING))
    assert len({tuple(ids) for ids in found.values()}) == 6
    assert answers(engine.generate(prompts, SAMPLING)) == found
    assert answers(engine.generate(prompts, varied(seed=4))) != found


def test_loaded_weights_are_used_and_counted(models: Path) -> None:
    engine, other = engine_of(models / "qwen2", eos=[]), engine_of(models / "qwen2", eos=[])
    with torch.no_grad():
        for weight in other.model.parameters():
            weight.add_(0.05 * torch.ones_like(weight).cumsum(0))
    engine.load_weights(other.model.named_parameters(), version=9)
    assert engine.version == 9
    prompts = prompts_of(PROMPTS)
    assert answers(engine.generate(prompts, SAMPLING)) == answers(other.generate(prompts, SAMPLING))


def test_weights_that_are_not_the_trainers_are_named(models: Path) -> None:
    engine = engine_of(models / "qwen2")
    weights = {name: weight.clone() for name, weight in engine.model.named_parameters()}
    walked = []

    def tensors(**changes: Tensor | None) -> Any:
        for name, weight in {**weights, **changes}.items():
            walked.append(name)
            if weight is not None:
                yield name, weight

    with pytest.raises(WeightMismatch, match=r"hf engine on .* trainer's: model.norm.weight got no weights$"):
        engine.load_weights(tensors(**{"model.norm.weight": None}), 2)
    with pytest.raises(WeightMismatch, match=r"model.odd.weight has no place in the model$"):
        engine.load_weights(tensors(**{"model.odd.weight": torch.zeros(2)}), 2)
    size = len(weights["model.norm.weight"])
    walked.clear()
    with pytest.raises(WeightMismatch, match=rf"norm.weight is \[1\], and \[{size}\] in the model$"):
        engine.load_weights(tensors(**{"model.norm.weight": torch.zeros(1)}), 2)
    assert walked == list(weights), "the ranks gather every tensor together"
    assert engine.version == 0
    engine.load_weights(tensors(), 2)
    assert engine.version == 2


def test_a_weight_that_stands_wrong_is_named(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(models / "qwen2")
    weights = {name: weight.clone() for name, weight in engine.model.named_parameters()}
    weights["model.norm.weight"][0] += 1
    copy = Tensor.copy_

    def spoiled(self: Tensor, source: Tensor) -> Tensor:
        copied = copy(self, source)
        if self is engine.model.get_parameter("model.norm.weight"):
            copied.view(torch.int32)[0] ^= 1  # one bit
        return copied

    monkeypatch.setattr(Tensor, "copy_", spoiled)
    with pytest.raises(WeightMismatch, match=r"model.norm.weight stands as \S+, was sent as \S+$"):
        engine.load_weights(iter(weights.items()), 2)


def test_weights_arrive_in_the_engines_type(models: Path) -> None:
    engine = engine_of(models / "qwen2")
    weights = {name: weight.clone() for name, weight in engine.model.named_parameters()}
    engine.model.bfloat16()
    engine.load_weights(iter(weights.items()), 2)
    stands = engine.model.get_parameter("lm_head.weight")
    assert torch.equal(stands, weights["lm_head.weight"].bfloat16())


def test_streams_belong_to_seed_prompt_and_sample() -> None:
    prompts: Prompts = repeat(prompts_of(PROMPTS), 2)
    streams = uniform_streams(prompts, SAMPLING)
    assert streams.shape == (10, 8) and streams.unique().numel() == 80
    longer = uniform_streams(prompts, varied(max_new_tokens=20))
    assert torch.equal(longer[:, :8], streams)  # a longer limit draws the same and more


LOGITS = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -3.0, 1.5, -0.5])
UNIFORM = torch.rand(20_000, generator=torch.Generator().manual_seed(11), dtype=torch.float64)


def chi_square(counts: Tensor, probabilities: Tensor) -> float:
    expected = probabilities * counts.sum()
    return float(((counts - expected) ** 2 / expected)[expected > 0].sum())


@pytest.mark.parametrize(
    ("changes", "allowed"),
    [
        ({}, {0, 1, 2, 3, 4, 5, 6, 7}),
        ({"temperature": 2.0}, {0, 1, 2, 3, 4, 5, 6, 7}),
        ({"top_k": 3}, {0, 6, 1}),
        ({"top_p": 0.5}, {0, 6}),  # .41 + .25 pass the half
        ({"top_p": 0.9, "top_k": 4}, {0, 6, 1, 2}),
    ],
)
def test_draws_fit_the_distribution(changes: dict[str, Any], allowed: set[int]) -> None:
    sampling = varied(**changes)
    tokens, logp = draw(LOGITS.expand(len(UNIFORM), -1), UNIFORM, sampling)

    scaled = LOGITS / sampling.temperature
    inside = torch.tensor([token in allowed for token in range(len(LOGITS))])
    probabilities = scaled.masked_fill(~inside, -torch.inf).softmax(-1)
    counts = torch.bincount(tokens, minlength=len(LOGITS))
    assert set(tokens.unique().tolist()) == allowed
    assert chi_square(counts[inside], probabilities[inside]) < 24.3  # p = .001 at 7 degrees of freedom
    torch.testing.assert_close(logp, scaled.log_softmax(-1)[tokens])


@pytest.mark.parametrize("number", [0.0, 1 - 2**-53])
def test_the_ends_of_the_uniform_range_draw_what_is_allowed(number: float) -> None:
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]])
    token, _ = draw(logits, torch.tensor([number], dtype=torch.float64), SAMPLING)
    assert int(token) == (1 if number == 0.0 else 3)


def test_the_engine_ends_where_tokenizer_or_model_say_so(models: Path) -> None:
    from trainer.learner.models import Source
    from trainer.rollout.build import eos_ids

    tokenizer = AutoTokenizer.from_pretrained(models / "qwen2")
    assert set(eos_ids(tokenizer, Source(str(models / "qwen2"), False, 1))) == {tokenizer.eos_token_id}
