"""Advantages computed once more: every estimator's agree with the trainer's, and every mistake in those shows."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from devkit.smoke import recompute
from devkit.smoke.checks import recorded
from devkit.smoke.checks.outcome import Outcome
from trainer import ppo
from trainer.config.schema import AlgorithmConfig, Config
from trainer.records import Experience, Prompts, Rollout, Row, TrainBatch

KL_COEF = 0.05
GAE = AlgorithmConfig(adv_estimator="gae", gamma=0.9, lam=0.8)
PLUS_PLUS = AlgorithmConfig(adv_estimator="reinforce_plus_plus", gamma=0.9)
GRPO = AlgorithmConfig(adv_estimator="grpo")
DR_GRPO = AlgorithmConfig(adv_estimator="grpo", norm_adv_by_std_in_grpo=False)
RLOO = AlgorithmConfig(adv_estimator="rloo")
KL_REWARD = AlgorithmConfig(adv_estimator="rloo", use_kl_in_reward=True, kl_penalty="low_var_kl")


def experience(seed: int, *, samples: int = 4, groups: int = 6, columns: int = 7, alike: bool = False) -> Experience:
    """Responses of one to `columns` tokens, `samples` of each prompt; `alike`: all earn the same."""
    generator = torch.Generator().manual_seed(seed)
    count = samples * groups
    lengths_B = torch.randint(1, columns + 1, (count,), generator=generator)
    mask_BT = (torch.arange(columns) < lengths_B[:, None]).long()
    score_B = torch.full((count,), 0.1) if alike else torch.randint(0, 11, (count,), generator=generator) / 10
    scores_BT = torch.zeros(count, columns).scatter(1, lengths_B[:, None] - 1, score_B[:, None])
    old, ref, values = (torch.randn(count, columns, generator=generator) * mask_BT for _ in range(3))
    rows = tuple(Row(i, "made up", "none", "") for i in range(count))
    prompts = Prompts(
        torch.ones(count, 2).long(),
        torch.ones(count, 2).long(),
        torch.arange(groups).repeat_interleave(samples),
        torch.arange(samples).repeat(groups),
        rows,
    )
    return Experience(Rollout(prompts, mask_BT, mask_BT, old), scores_BT, old, ref, values)


def outcome(trainer: Any, seen: Experience, config: AlgorithmConfig) -> Outcome:
    made, _ = trainer.train_batch(seen, KL_COEF, Config(algorithm=config))
    batch = TrainBatch(seen, made.rewards_BT, made.advantages_BT, made.returns_BT)
    return recorded.advantages_as_computed(batch, recompute.advantages(batch, KL_COEF, config))


@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("samples", [1, 2, 3, 5])
@pytest.mark.parametrize("config", [GAE, PLUS_PLUS, GRPO, DR_GRPO, RLOO, KL_REWARD])
def test_they_agree(config: AlgorithmConfig, samples: int, alike: bool) -> None:
    for seed in range(5):
        found = outcome(ppo, experience(seed, samples=samples, alike=alike), config)
        assert found.ok is True, found.detail


@given(
    seed=st.integers(0, 10**6),
    scale=st.sampled_from([1e-6, 1e-3, 1.0, 1e3, 1e6]),
    gamma=st.floats(0, 1),
    lam=st.floats(0, 1),
    kind=st.sampled_from(["kl", "abs", "mse", "low_var_kl", "k3+"]),
    estimator=st.sampled_from(["gae", "reinforce_plus_plus", "grpo", "rloo"]),
)
@settings(max_examples=60, deadline=None)
def test_they_agree_whatever_the_sizes(
    seed: int, scale: float, gamma: float, lam: float, kind: str, estimator: str
) -> None:
    seen = experience(seed)
    seen = Experience(seen.rollout, seen.scores_BT * scale, seen.old_logp_BT * 3, seen.ref_logp_BT, seen.values_BT)
    config = AlgorithmConfig(adv_estimator=estimator, gamma=gamma, lam=lam, use_kl_in_reward=True, kl_penalty=kind)
    found = outcome(ppo, seen, config)
    assert found.ok is True, found.detail


MISTAKES = {
    "gamma and lambda swapped": (GAE, "rewards_TB[t] + gamma * next_value", "rewards_TB[t] + lam * next_value"),
    "lambda left out": (GAE, "delta + gamma * lam * advantage", "delta + gamma * advantage"),
    "returns without values": (GAE, "(advantages_TB + values_TB).T", "advantages_TB.T"),
    "not whitened": (GAE, "return masked_whiten(advantages, mask), returns", "return advantages, returns"),
    "the sign": (
        GAE,
        "return masked_whiten(advantages, mask), returns",
        "return -masked_whiten(advantages, mask), returns",
    ),
    "the values of the next row": (
        GAE,
        "rewards_BT, experience.values_BT, mask, config.gamma",
        "rewards_BT, experience.values_BT.roll(1, 0), mask, config.gamma",
    ),
    "gamma of 1": (PLUS_PLUS, "rewards[:, t] + gamma * running", "rewards[:, t] + running"),
    "groups ignored": (GRPO, "grpo(score_B, uid_B, config", "grpo(score_B, uid_B * 0, config"),
    "the deviation left out": (GRPO, "if scale_by_std else", "if not scale_by_std else"),
    "the deviation put in": (DR_GRPO, "if scale_by_std else", "if True else"),
    "no baseline": (RLOO, "(score_B - mean_B) * size_B", "score_B * size_B"),
    "the mean of all samples": (RLOO, "/ (size_B - 1).clamp(min=1)", "/ size_B"),
    "the KL's sign": (KL_REWARD, "experience.scores_BT - kl_coef * kl_BT", "experience.scores_BT + kl_coef * kl_BT"),
    "no KL": (KL_REWARD, "experience.scores_BT - kl_coef * kl_BT", "experience.scores_BT"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_shows(name: str) -> None:
    config, old, new = MISTAKES[name]
    found = outcome(changed(old, new), experience(1), config)
    assert found.ok is False and "trainer/ppo.py:" in found.detail, found.detail


def changed(old: str, new: str, broken: types.ModuleType = ppo) -> types.ModuleType:
    """A module with this text in place of that."""
    file, name = str(broken.__file__), broken.__name__
    source = Path(file).read_text()
    assert source.count(old) == 1, old
    module = types.ModuleType(name)
    module.__file__ = file
    with pytest.MonkeyPatch.context() as patch:  # its dataclasses look themselves up
        patch.setitem(__import__("sys").modules, name, module)
        exec(compile(source.replace(old, new), file, "exec"), module.__dict__)
    return module
