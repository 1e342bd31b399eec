"""`trainer.ppo` against verl's own functions on random batches; runs where verl can be imported, by hand:

    pip install --no-deps --target /tmp/oracle verl==0.9.1 tensordict==0.10.0 'pyvers<0.2' cloudpickle hydra-core \\
        omegaconf antlr4-python3-runtime==4.9.3 codetiming orjson
    PYTHONPATH=/tmp/oracle pytest -n0 tests/trainer/test_ppo_oracle.py
"""

from __future__ import annotations

import importlib.util
import warnings
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.trainer.batches import random_ids, rollout_of
from trainer import drift, ppo
from trainer.config.schema import RolloutCorrectionConfig
from trainer.records import Experience, Rollout, TrainBatch

MODES = ("token-mean", "token-sum", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")

if importlib.util.find_spec("verl") is None:
    pytest.skip("verl is not installed here", allow_module_level=True)


@pytest.fixture(scope="module")
def verl() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # verl's own imports
        from verl.trainer.ppo import core_algos
    return core_algos


class ActorConfig(SimpleNamespace):
    """As much of verl's as `compute_policy_loss_vanilla` reads."""

    def get(self, name: str, default: float) -> float:
        return getattr(self, name, default)


def batch(seed: int, holes: bool = True) -> tuple[Tensor, ...]:
    """Four tensors [6, 9] and a mask with empty columns inside and after the answers."""
    generator = torch.Generator().manual_seed(seed)
    tensors = tuple(torch.randn(6, 9, generator=generator, dtype=torch.float64) for _ in range(4))
    mask = (torch.arange(9) < torch.randint(1, 10, (6, 1), generator=generator)).long()
    if holes:
        mask = mask * (torch.rand(6, 9, generator=generator) < 0.8).long()
    return (*tensors, mask)


def same(ours: Tensor, theirs: Any) -> None:
    torch.testing.assert_close(ours, torch.as_tensor(theirs).to(ours.dtype), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_gae(verl: Any, seed: int) -> None:
    rewards, values, _, _, mask = batch(seed)
    advantages, returns = ppo.gae(rewards, values, mask, 0.97, 0.9)
    theirs, their_returns = verl.compute_gae_advantage_return(rewards, values, mask, 0.97, 0.9)
    same(ppo.masked_whiten(advantages, mask), theirs)
    same(returns, their_returns)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("mode", MODES)
def test_policy_loss(verl: Any, seed: int, mode: str) -> None:
    old, new, advantages, _, mask = batch(seed)
    config = ActorConfig(
        clip_ratio=0.2, clip_ratio_low=0.1, clip_ratio_high=0.3, clip_ratio_c=2.5, global_batch_info={}
    )
    loss, metrics = ppo.policy_loss(old, new, advantages, mask, 0.1, 0.3, 2.5, mode)
    theirs, their_metrics = verl.compute_policy_loss_vanilla(old, new, advantages, mask, mode, config)
    same(loss, theirs)
    same(metrics["clip_fraction"], their_metrics["actor/pg_clipfrac"])
    same(metrics["approx_kl"], their_metrics["actor/ppo_kl"])
    same(metrics["dual_clip_fraction"], their_metrics["actor/pg_clipfrac_lower"])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("mode", MODES)
def test_value_loss(verl: Any, seed: int, mode: str) -> None:
    values, old, returns, _, mask = batch(seed)
    loss, clipped = ppo.value_loss(values, old, returns, mask, 0.5, mode)
    theirs, their_clipped = verl.compute_value_loss(values, returns, old, mask, 0.5, mode)
    same(loss, theirs)
    same(clipped, their_clipped)


@pytest.mark.parametrize("kind", ["kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3", "k1+", "k3+"])
def test_kl(verl: Any, kind: str) -> None:
    ours = batch(1)[0].requires_grad_()
    theirs = ours.detach().clone().requires_grad_()
    reference = batch(1)[1]
    mine, his = ppo.kl_penalty(ours, reference, kind), verl.kl_penalty(theirs, reference, kind)
    same(mine, his)
    mine.sum().backward()
    his.sum().backward()
    assert ours.grad is not None and theirs.grad is not None
    same(ours.grad, theirs.grad)


@pytest.mark.parametrize("seed", range(5))
def test_group_estimators(verl: Any, seed: int) -> None:
    rewards, _, _, _, mask = batch(seed)
    groups = torch.tensor([4, 4, 1, 1, 1, 7])
    for scale in (True, False):
        theirs, _ = verl.compute_grpo_outcome_advantage(
            rewards.clone(), mask, groups.numpy(), norm_adv_by_std_in_grpo=scale
        )
        same(ppo.grpo(rewards.sum(-1), groups, scale)[:, None] * mask, theirs)
    theirs, _ = verl.compute_rloo_outcome_advantage(rewards.clone(), mask, groups.numpy())
    same(ppo.rloo(rewards.sum(-1), groups)[:, None] * mask, theirs)


@pytest.mark.parametrize("seed", range(5))
def test_reinforce_plus_plus(verl: Any, seed: int) -> None:
    rewards, _, _, _, mask = batch(seed)
    config = SimpleNamespace(gamma=0.9)
    advantages, returns = ppo.reinforce_plus_plus(rewards, mask, 0.9)
    theirs, their_returns = verl.compute_reinforce_plus_plus_outcome_advantage(rewards, mask, config=config)
    same(advantages, theirs)
    same(returns, their_returns)


@pytest.mark.parametrize("kl", [0.0, 0.05, 0.1, 0.103, 5.0])
def test_adaptive_controller(verl: Any, kl: float) -> None:
    from trainer.config.schema import KlCtrlConfig

    theirs = verl.AdaptiveKLController(0.2, 0.1, 10000)
    theirs.update(kl, 512)
    control = KlCtrlConfig(type="adaptive", kl_coef=0.2, target_kl=0.1, horizon=10000)
    assert ppo.next_kl_coef(0.2, kl, 512, control) == pytest.approx(theirs.value, rel=1e-12)


# ------------------------------------------------------------------------------------------- engine against trainer


@pytest.fixture(scope="module")
def correction(verl: Any) -> Any:
    from verl.trainer.ppo import rollout_corr_helper

    return rollout_corr_helper


def two_sides(seed: int) -> tuple[Rollout, Tensor, Tensor]:
    """A rollout, the trainer's log-probs of it, and advantages."""
    generator = torch.Generator().manual_seed(seed)
    rollout = rollout_of(random_ids([3] * 6, seed), random_ids([9, 1, 4, 7, 2, 9], seed + 1))
    engine, apart, advantages = (torch.randn(6, 9, generator=generator, dtype=torch.float64) for _ in range(3))
    engine = -engine.abs() * rollout.mask_BT
    return replace(rollout, logp_BT=engine), engine + 0.7 * apart * rollout.mask_BT, advantages


@pytest.mark.parametrize("seed", range(5))
def test_drift(correction: Any, seed: int) -> None:
    rollout, old, _ = two_sides(seed)
    ours = drift.agreement(rollout, old)
    theirs = correction.compute_offpolicy_metrics(old, rollout.logp_BT, rollout.mask_BT)
    assert {name: ours[f"rollout_corr/{name}"] for name in theirs} == pytest.approx(theirs, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("normalize", [False, True])
def test_importance_weights(verl: Any, correction: Any, seed: int, level: str, normalize: bool) -> None:
    rollout, old, advantages = two_sides(seed)
    settings = RolloutCorrectionConfig(level, 1.5, normalize)
    weights = ppo.importance_weights(old, rollout.logp_BT, rollout.mask_BT, settings)
    assert weights is not None
    theirs, said = correction.compute_rollout_correction_weights(
        old - rollout.logp_BT, rollout.mask_BT, level, 1.5, normalize
    )
    same(weights, theirs)

    zeros = torch.zeros_like(old)
    seen = TrainBatch(Experience(rollout, zeros, old, None, None), zeros, zeros, zeros, weights)
    reported = drift.importance_metrics(seen, settings)
    # of a token, verl reports the largest weight, we the largest ratio; of a sequence, it counts padding in
    more = ("ratio_fraction_high", "ratio_fraction_low", "min") if level == "token" else ("max", "min")
    for name in (f"rollout_is_{name}" for name in ("mean", "std", "eff_sample_size", *more)):
        assert reported[f"rollout_corr/{name}"] == pytest.approx(said[name], rel=1e-5), name

    config = ActorConfig(
        clip_ratio=0.2, clip_ratio_low=0.1, clip_ratio_high=0.3, clip_ratio_c=2.5, global_batch_info={}
    )
    new = old + 0.1 * advantages.flip(0)
    loss, _ = ppo.policy_loss(old, new, advantages, rollout.mask_BT, 0.1, 0.3, 2.5, "token-mean", weights=weights)
    their_loss, _ = verl.compute_policy_loss_vanilla(
        old, new, advantages, rollout.mask_BT, "token-mean", config, rollout_is_weights=theirs
    )
    same(loss, their_loss)
