"""The trainer's formulas beside plain loops: all agree, and a mistake in any of them shows, used or not."""

from __future__ import annotations

import re

import pytest

from devkit.smoke.checks import formulas
from tests.smoke.test_recompute import changed
from trainer import ppo, scan, shaping
from trainer.agent import by_turn

MISTAKES = {
    "groups ignored": ("grpo(score_B, uid_B, config", "grpo(score_B, uid_B * 0, config", "grpo"),
    "no baseline": ("(score_B - mean_B) * size_B", "score_B * size_B", "rloo"),
    "gamma left out": ("rewards[:, t] + gamma * running", "rewards[:, t] + running", "reinforce_plus_plus"),
    "lambda left out": ("delta + gamma * lam * advantage", "delta + gamma * advantage", "gae"),
    "half of k2": ("return 0.5 * difference.square()", "return difference.square()", "mse, .*KL at d"),
    "k3 the other way": ("inverse = (-difference)", "inverse = (difference)", "low_var_kl"),
    "the slope of k3 in k3+": ('kl_penalty(logp, ref_logp, "k2")', "kl_penalty(logp, ref_logp, kind[:-1])", "slope"),
    "error of the KL not limited": ("min(max(kl / control.target_kl - 1.0, -0.2), 0.2)", "0.1", "target_kl=0.001"),
    "the KL's target upside down": ("kl / control.target_kl", "control.target_kl / kl", "kl_ctrl.target_kl"),
    "weights not truncated": ("ratio.clamp(max=config.rollout_is_threshold)", "ratio", "rollout_is=token"),
    "weights upside down": ("wide(old_logp) - wide(rollout_logp)", "wide(rollout_logp) - wide(old_logp)", "rollout_is"),
    "a mean over the part": ("return loss.sum() / totals.tokens", "return loss.sum() / mask.sum()", "token-mean"),
    "a mean over columns": ("/ mask.sum(-1).clamp(min=1)).sum()", "/ mask.shape[-1]).sum()", "seq-mean-token-mean"),
    "horizon left out": ("/ totals.sequences / totals.horizon", "/ totals.sequences", "seq-mean-token-sum-norm"),
}


OF_TURNS = {
    "states of other tasks": ("by_turn", "(uid, turn.state)", "(0, turn.state)", "gigpo"),
    "steps not discounted": ("by_turn", "running = reward + gamma * running", "running = reward + running", "gigpo"),
    "the next row's turns": ("by_turn", "if row == row_before else 0.0", "", "agentic_reinforce"),
    "one turn's return in the one before": (
        *("by_turn", "torch.where(starts_BT[:, t], torch.zeros_like(running), running)", "running", "gigpo"),
    ),
    "whole conversations left out": ("shaping", "config.episode_reward_weight * whole_B", "0 * whole_B", "gigpo"),
    "rows for groups": (
        "shaping",
        "steps.later_N, group_B[steps.row_N]",
        "steps.later_N, steps.row_N",
        "step_reinforce of",
    ),
    "Bessel's correction": ("shaping", "/ (size_G - 1).clamp(min=1)).sqrt()", "/ size_G).sqrt()", "by group"),
    "what is subtracted, nowhere": ("shaping", "scatter_add(1, _last(mask_BT), missing_B[:, None])", "clone()", "by"),
    "clipped before it is whitened": ("shaping", "not in WHITENED", "in WHITENED", "whitened and clipped"),
}


@pytest.mark.parametrize("name", OF_TURNS)
def test_a_mistake_in_turns_and_groups_shows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, old, new, said = OF_TURNS[name]
    broken = changed(old, new, {"by_turn": by_turn, "shaping": shaping}[module])
    for user in (ppo, shaping):
        if hasattr(user, module):
            monkeypatch.setattr(user, module, broken)
    if module == "shaping":
        monkeypatch.setattr(ppo, "shaping", broken)
    found = formulas.as_published(1)
    assert found.ok is False and "look at trainer/" in found.detail, found.detail
    assert re.search(said, found.detail), found.detail


@pytest.mark.parametrize("seed", range(5))
def test_they_agree(seed: int) -> None:
    found = formulas.as_published(seed)
    assert found.ok is True, found.detail


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_shows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new, said = MISTAKES[name]
    broken = changed(old, new)
    monkeypatch.setattr(formulas, "ppo", broken)
    found = formulas.as_published(1)
    assert found.ok is False and "look at trainer/ppo.py:" in found.detail, found.detail
    assert re.search(said, found.detail), found.detail


def test_responses_that_are_long_enough_for_the_blockwise_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "discounted", lambda x_BT, decay: x_BT)
    found = formulas.as_published(1)
    assert found.ok is False and f"gae of {scan.LONG + 5} tokens" in found.detail, found.detail
    assert ppo.scan is scan
