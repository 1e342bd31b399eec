"""How far engine and trainer are apart, against worked numbers; when that stops a run; and the weights against it."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from tests.trainer.batches import random_ids, rollout_of
from trainer import drift, ppo
from trainer.config import load
from trainer.config.schema import ActorConfig, Config, RolloutCorrectionConfig
from trainer.records import Experience, LogProbs, Rollout, TrainBatch

# pi_trainer / pi_engine is 2, 1/2, 4 in the first response, 8 in the second; its last two columns are padding.
RATIOS = [[2.0, 0.5, 4.0], [8.0, 1.0, 1.0]]
ENGINE = [[0.25, 0.5, 0.125], [0.0625, 0.0, 0.0]]
LOG2 = math.log(2)


def rollout() -> Rollout:
    made = rollout_of(random_ids([2, 3], 1), [[5, 6, 7], [8]])
    return dataclasses.replace(made, logp_BT=torch.tensor(ENGINE).log().nan_to_num(neginf=-99.0))


def old_logp() -> Tensor:
    trainer = torch.tensor(RATIOS).log() + rollout().logp_BT
    trainer[1, 1:] = torch.nan  # padding must not matter, whatever stands there
    return trainer


def batch(**changes: Tensor | None) -> TrainBatch:
    zeros = torch.zeros(2, 3)
    made = TrainBatch(Experience(rollout(), zeros, old_logp(), None, None), zeros, zeros, zeros)
    return dataclasses.replace(made, **changes)


def test_worked_values() -> None:
    seen = drift.agreement(rollout(), old_logp())
    expected = {
        "training/rollout_probs_diff_mean": (0.25 + 0.25 + 0.375 + 0.4375) / 4,
        "training/rollout_probs_diff_max": 0.4375,
        "training/rollout_logp_diff_mean": (1 + 1 + 2 + 3) / 4 * LOG2,
        "training/rollout_logp_diff_max": 3 * LOG2,
        "rollout_corr/kl": -(1 - 1 + 2 + 3) / 4 * LOG2,
        "rollout_corr/k3_kl": (2 + 0.5 + 4 + 8) / 4 - 5 / 4 * LOG2 - 1,
        "rollout_corr/chi2_token": (4 + 0.25 + 16 + 64) / 4 - 1,
        "rollout_corr/chi2_seq": (16 + 64) / 2 - 1,
        "rollout_corr/training_ppl": (2 ** (4 / 3) + 2) / 2,  # of 1/2 1/4 1/2, and of 1/2
        "rollout_corr/rollout_ppl": (2**2 + 2**4) / 2,  # of 1/4 1/2 1/8, and of 1/16
        "rollout_corr/training_log_ppl": (4 / 3 + 1) / 2 * LOG2,
        "rollout_corr/rollout_log_ppl": (2 + 4) / 2 * LOG2,
        "rollout_corr/log_ppl_diff": (-2 / 3 - 3) / 2 * LOG2,
        "rollout_corr/log_ppl_abs_diff": (2 / 3 + 3) / 2 * LOG2,
        "rollout_corr/log_ppl_diff_max": -2 / 3 * LOG2,
        "rollout_corr/log_ppl_diff_min": -3 * LOG2,
        "rollout_corr/ppl_ratio": (2 ** (-2 / 3) + 2**-3) / 2,
    }
    assert {name: seen[name] for name in expected} == pytest.approx(expected, rel=1e-6)
    probs = torch.tensor([[0.25, 0.5, 0.125, 0.0625], [0.5, 0.25, 0.5, 0.5]])
    assert seen["training/rollout_actor_probs_pearson_corr"] == pytest.approx(float(torch.corrcoef(probs)[0, 1]))


def test_equal_log_probs_are_no_drift() -> None:
    same = rollout()
    seen = drift.agreement(same, same.logp_BT.clone())
    ones = {"rollout_corr/ppl_ratio", "training/rollout_actor_probs_pearson_corr"}
    levels = {name for name in seen if name.endswith("_ppl")}
    assert {name: value for name, value in seen.items() if name not in levels} == pytest.approx(
        {name: float(name in ones) for name in seen.keys() - levels}, abs=1e-12
    )


# ------------------------------------------------------------------------------------------------------ the threshold


def config(*words: str) -> Config:
    return load(["actor_rollout_ref.model.path=x", *words]).config


def test_what_the_error_says() -> None:
    cut = config("actor_rollout_ref.rollout.top_p=0.9", "actor_rollout_ref.rollout.temperature=0.6")
    error = drift.excess(7, batch(), cut)
    assert error is not None
    assert error.message == (
        "step 7: the engine's log-probs are 1.21 nats per token from the trainer's, over the limit of 1; at most 2.08, "
        "KL (k3) 1.76, perplexity ratio 0.377; worst: row 1 of made up, sample 0 (2.08, most at token 0); "
        "row 0 of made up, sample 0 (0.924, most at token 2)"
    )
    for cause in ("did not reach the engine", "a temperature (0.6 here)", "after top_p=0.9", "precision"):
        assert cause in error.hint
    assert "trainer.max_rollout_drift" in error.hint and "\n" not in error.message + error.hint


@pytest.mark.parametrize(("limit", "stops"), [("1.22", False), ("1.21", True), ("null", False)])
def test_the_limit_is_of_the_mean_over_tokens(limit: str, stops: bool) -> None:
    assert (drift.excess(1, batch(), config(f"trainer.max_rollout_drift={limit}")) is not None) == stops


def test_a_log_prob_that_is_not_a_number_is_too_far_and_named_first() -> None:
    broken = old_logp()
    broken[0, 1] = torch.nan
    error = drift.excess(1, batch(experience=Experience(rollout(), broken, broken, None, None)), config())
    assert error is not None and "worst: row 0 of made up, sample 0 (inf, most at token 1)" in error.message


# -------------------------------------------------------------------------------- truncated importance sampling


def weights_of(**settings: object) -> Tensor:
    correction = dataclasses.replace(RolloutCorrectionConfig(rollout_is="token"), **settings)  # type: ignore[arg-type]
    found = ppo.importance_weights(old_logp(), rollout().logp_BT, rollout().mask_BT, correction)
    assert found is not None
    return found


def test_off_means_none() -> None:
    assert ppo.importance_weights(old_logp(), rollout().logp_BT, rollout().mask_BT, RolloutCorrectionConfig()) is None


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [[2, 0.5, 2], [2, 0, 0]]),
        ({"rollout_is_threshold": 3.0}, [[2, 0.5, 3], [3, 0, 0]]),
        ({"rollout_is_threshold": 100.0}, [[2, 0.5, 4], [8, 0, 0]]),
        # the whole first response has a ratio of 2 * 1/2 * 4 = 4
        ({"rollout_is": "sequence", "rollout_is_threshold": 5.0}, [[4, 4, 4], [5, 0, 0]]),
        # over the mean of the tokens, 14.5 / 4, and of the sequences, (4 + 8) / 2
        ({"rollout_is_threshold": 9.0, "rollout_is_batch_normalize": True}, [[0.5517, 0.1379, 1.1034], [2.2069, 0, 0]]),
        (
            {"rollout_is": "sequence", "rollout_is_threshold": 9.0, "rollout_is_batch_normalize": True},
            [[2 / 3, 2 / 3, 2 / 3], [4 / 3, 0, 0]],
        ),
    ],
)
def test_worked_weights(settings: dict[str, object], expected: list[list[float]]) -> None:
    torch.testing.assert_close(weights_of(**settings), torch.tensor(expected).float(), atol=1e-4, rtol=0)


def test_weights_are_constants_of_the_loss() -> None:
    old = torch.tensor(RATIOS).log().requires_grad_()
    weights = ppo.importance_weights(old, torch.zeros(2, 3), torch.ones(2, 3), RolloutCorrectionConfig("token"))
    assert weights is not None and not weights.requires_grad


def test_a_ratio_of_any_size_gives_a_finite_weight() -> None:
    far = torch.tensor([[300.0, -300.0]])
    correction = RolloutCorrectionConfig("sequence", rollout_is_threshold=1e30)
    for old in (far, far.abs()):
        weights = ppo.importance_weights(old, torch.zeros(1, 2), torch.ones(1, 2), correction)
        assert weights is not None and weights.isfinite().all()


def test_each_tokens_loss_is_multiplied_after_clipping() -> None:
    """The worked input of the clipped surrogate, dual clip included, whose losses per token are known one by one."""
    old = torch.tensor([[-1.0, -2.0, -0.5, -1.0], [-1.5, -0.2, -3.0, -1.0]])
    new = torch.tensor([[-0.7, -2.1, -0.5, -1.0], [-1.9, -0.1, -1.2, -1.0]])
    advantages = torch.tensor([[1.0, 1, -1, 0.5], [-1, -0.5, -2, 0.3]])
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])
    tokens = [[-1.2, -math.exp(-0.1), 1.0], [0.8, 0.5 * math.exp(0.1), 6.0, -0.3]]
    weights = torch.tensor([[2.0, 0.5, 1.0, 9.0], [0.25, 1.0, 0.5, 2.0]])

    plain, said = ppo.policy_loss(old, new, advantages, mask, 0.2, 0.2, 3.0, "token-mean")
    assert float(plain) == pytest.approx(sum(map(sum, tokens)) / 7, rel=1e-6) == pytest.approx(0.849678, abs=1e-6)

    weighted, said_too = ppo.policy_loss(old, new, advantages, mask, 0.2, 0.2, 3.0, "token-mean", weights=weights)
    times = (token * w for row, ws in zip(tokens, weights.tolist(), strict=True) for token, w in zip(row, ws))  # noqa: B905
    assert float(weighted) == pytest.approx(sum(times) / 7, rel=1e-6)
    assert said == said_too  # what is clipped does not depend on the weights

    ones, _ = ppo.policy_loss(old, new, advantages, mask, 0.2, 0.2, 3.0, "token-mean", weights=torch.ones(2, 4))
    assert float(ones) == float(plain)


class Fixed:
    """A policy whose log-probs are a parameter."""

    def __init__(self, logp_BT: Tensor) -> None:
        self.logp_BT = logp_BT.clone().requires_grad_()

    def log_probs(self, rollout: Rollout, *, entropy: bool) -> LogProbs:
        return LogProbs(self.logp_BT, torch.zeros_like(self.logp_BT))


def test_the_actors_gradient_is_that_of_the_engines_policy() -> None:
    """At the first update, rho = 1: the gradient of a token is -A w / N, and that of the cut ratio is its cap."""
    correction = RolloutCorrectionConfig("token", rollout_is_threshold=3.0)
    old, mask = old_logp().nan_to_num(), rollout().mask_BT
    weights = ppo.importance_weights(old, rollout().logp_BT, mask, correction)
    advantages = torch.tensor([[1.0, -1.0, 0.5], [2.0, 0.0, 0.0]])
    seen = Experience(rollout(), torch.zeros(2, 3), old, None, None)
    policy = Fixed(old)
    loss, told = ppo.actor_loss(
        policy,
        TrainBatch(seen, advantages, advantages, advantages, weights),
        ppo.totals_of(mask),
        ActorConfig(clip_ratio_low=0.2, clip_ratio_high=0.2),
    )
    loss.backward()
    torch.testing.assert_close(policy.logp_BT.grad, -advantages * torch.tensor([[2, 0.5, 3], [3.0, 0, 0]]) / 4)
    assert told.figures["actor/pg_loss"] == loss.detach()


def test_what_is_reported_of_the_weights() -> None:
    correction = RolloutCorrectionConfig("token", rollout_is_threshold=3.0)
    seen = drift.importance_metrics(batch(weights_BT=weights_of(rollout_is_threshold=3.0)), correction)
    weights, kept = [2, 0.5, 3, 3], torch.tensor([2, 0.5, 3, 3])
    expected = {
        "mean": (2 + 0.5 + 3 + 3) / 4,
        "max": 8.0,
        "min": 0.5,
        "std": float(kept.std(correction=0)),
        "ratio_fraction_high": 0.5,
        "ratio_fraction_low": 0.0,
        "eff_sample_size": (sum(weights) / 4) ** 2 / (sum(w * w for w in weights) / 4),
    }
    assert seen == pytest.approx({f"rollout_corr/rollout_is_{name}": value for name, value in expected.items()})
    assert drift.importance_metrics(batch(), correction) == {}
