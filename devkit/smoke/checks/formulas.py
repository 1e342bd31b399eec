"""The trainer's formulas on made-up numbers, those that the command does not use as well: each beside a plain one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from devkit.smoke import recompute
from devkit.smoke.checks import recorded
from devkit.smoke.checks.outcome import AS_COMPUTED, Outcome, look_at
from devkit.smoke.made_up_batches import conversations, experience
from trainer import ppo, scan
from trainer.agent import by_turn_names
from trainer.config.algorithm_schema import RewardNormalizationConfig
from trainer.config.choices import CHOICES
from trainer.config.schema import AlgorithmConfig, Config, KlCtrlConfig, RolloutCorrectionConfig
from trainer.records import Experience

COEF = 0.3  # of the KL
ESTIMATORS = CHOICES["algorithm.adv_estimator"]
KINDS = (*CHOICES["algorithm.kl_penalty"],)
MODES = CHOICES["actor_rollout_ref.actor.loss_agg_mode"]
BASE = AlgorithmConfig(gamma=0.9, lam=0.7, use_kl_in_reward=True, kl_penalty="low_var_kl")
NORMS = {
    "group": RewardNormalizationConfig("traj_group_id", "group", "group"),
    "tag": RewardNormalizationConfig("tags", "group", None),
    "batch": RewardNormalizationConfig("batch", "batch", "batch"),
    "group and batch": RewardNormalizationConfig("traj_group_id", "group", "batch"),
}
Found = Iterator[tuple[str, Outcome]]


def as_published(seed: int) -> Outcome:
    """Estimators, KL estimators and its coefficient, importance weights, aggregation of losses."""
    count = 0
    made_up = experience(seed)
    parts = [about(made_up) for about in (_aggregation, _kl, _coefficients, _weights, _estimators)]  # one leads on
    for part in (*parts, _turns(conversations(seed))):
        for name, found in part:
            count += 1
            if found.ok is False:
                return Outcome(False, f"{name}, on generated numbers: {found.detail}")
    return Outcome(True, f"{count} formulas give what plain loops give, those that this command does not use as well")


def _estimators(seen: Experience) -> Found:
    for name in ESTIMATORS:
        if name not in by_turn_names.ESTIMATORS:
            yield name, _estimated(seen, replace(BASE, adv_estimator=name))
    yield "grpo without deviation", _estimated(seen, replace(BASE, adv_estimator="grpo", norm_adv_by_std_in_grpo=False))
    yield "gae of verl before July 2025", _estimated(seen, replace(BASE, masked_gae=False))
    yield "gae that is not whitened", _estimated(seen, replace(BASE, whiten_advantages=False))
    long = experience(len(seen), groups=2, samples=1, columns=scan.LONG + 5)
    yield f"gae of {scan.LONG + 5} tokens", _estimated(long, replace(BASE, gamma=0.999, lam=0.98))


def _turns(talks: Experience) -> Found:
    """Of conversations, and of rewards by group."""
    for name in by_turn_names.ESTIMATORS:
        yield name, _estimated(talks, replace(BASE, adv_estimator=name))
    for name, norm in NORMS.items():
        for estimator in ("grpo", *by_turn_names.ESTIMATORS):
            config = replace(BASE, adv_estimator=estimator, reward_normalization=norm, use_kl_in_reward=False)
            yield f"{estimator} of rewards by {name}", _estimated(talks, config)
    clipped = replace(BASE, adv_estimator="agentic_reinforce", advantage_clip=1.2, reward_clip=0.9)
    yield "advantages whitened and clipped", _estimated(talks, replace(clipped, whiten_advantages=True))


def _estimated(seen: Experience, config: AlgorithmConfig) -> Outcome:
    batch, _ = ppo.train_batch(seen, COEF, Config(algorithm=config))
    return recorded.advantages_as_computed(batch, recompute.advantages(batch, COEF, config))


def _kl(seen: Experience) -> Found:
    """Values, and the slope by the actor's log-prob where a formula has one of its own."""
    assert seen.ref_logp_BT is not None
    for kind in KINDS:
        new_BT = seen.old_logp_BT.clone().requires_grad_()
        kl_BT = ppo.kl_penalty(new_BT, seen.ref_logp_BT, kind)
        kl_BT.sum().backward()
        assert new_BT.grad is not None
        tensors = (seen.old_logp_BT, seen.ref_logp_BT, kl_BT.detach(), new_BT.grad)
        for new, ref, value, slope in zip(*(_all(x, seen) for x in tensors), strict=True):
            wanted = recompute.kl(new - ref, kind), recompute.kl_slope(new - ref, kind)
            for what, is_, should_be in (("KL", value, wanted[0]), ("slope of the KL", slope, wanted[1])):
                if unlike := _unlike(f"{what} at d = {new - ref:.4g}", is_, should_be, ppo.kl_penalty):
                    yield kind, unlike
        yield kind, Outcome(True, "")


def _all(x_BT: torch.Tensor, seen: Experience) -> list[float]:
    return [x for row in recompute.tokens_of(x_BT, seen) for x in row]


def _coefficients(seen: Experience) -> Found:
    for target in (0.001, 100.0, 0.5):
        config = replace(BASE, kl_ctrl=KlCtrlConfig("adaptive", COEF, 1000, target))
        _, mean_kl = ppo.penalised_rewards(seen, COEF, config)
        next_ = ppo.next_kl_coef(COEF, mean_kl, len(seen), config.kl_ctrl)
        found = recorded.kl_coef_as_configured(1, next_, recompute.next_kl_coef(COEF, seen, config))
        yield f"kl_ctrl.target_kl={target:g}", found


def _weights(seen: Experience) -> Found:
    for level in ("token", "sequence"):
        for normalised in (False, True):
            config = replace(BASE, rollout_correction=RolloutCorrectionConfig(level, 1.5, normalised))
            batch, _ = ppo.train_batch(seen, COEF, Config(algorithm=config))
            wanted = recompute.importance_weights(seen, config.rollout_correction)
            yield f"rollout_is={level}", recorded.weights_as_computed(batch, wanted)


def _aggregation(seen: Experience) -> Found:
    """Of a loss per token, in two parts that are normalised as the whole is."""
    mask_BT, loss_BT, half = seen.rollout.mask_BT, seen.old_logp_BT, len(seen) // 3
    totals = ppo.totals_of(mask_BT, 11.0)
    for mode in MODES:
        parts = [
            float(ppo.aggregate(loss_BT[rows], mask_BT[rows], mode, totals))
            for rows in (slice(0, half), slice(half, None))
        ]
        wanted = recompute.aggregated(recompute.tokens_of(loss_BT, seen), mode, 11.0)
        yield mode, _unlike("the loss", sum(parts), wanted, ppo.aggregate) or Outcome(True, "")


def _unlike(what: str, is_: float, should_be: float, where: Callable[..., Any]) -> Outcome | None:
    if abs(is_ - should_be) <= AS_COMPUTED * max(1.0, abs(should_be)):
        return None
    return Outcome(False, f"{what} is {is_:.5g} but should be {should_be:.5g}: {look_at(where)}")
