"""What an estimator is given, and what becomes of its advantages: ROLL's normalisation, clipping and whitening.

scores -> normalised by group -> clipped -> (KL penalty, estimator) -> whitened -> clipped

With all of it off, everything is passed on as it is.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from trainer.agent import by_turn, by_turn_names
from trainer.averages import masked_whiten, within
from trainer.config.algorithm_schema import AlgorithmConfig, RewardNormalizationConfig
from trainer.records import Experience, Prompts, Scores

WHITENED = ("gae", "reinforce_plus_plus")  # estimators that whiten by themselves
QUIET = 1e-6  # a deviation up to this says nothing: such a group's rewards are 0


def place_scores(scores: Scores, mask_BT: Tensor) -> Tensor:
    """Each score at its response's last token, 0 elsewhere; [B, T] float32. Those of turns are in their places."""
    if scores.placed_BT is not None:
        return scores.placed_BT
    return torch.zeros(mask_BT.shape).scatter(1, _last(mask_BT), scores.score_B[:, None])


def _last(mask_BT: Tensor) -> Tensor:
    """The last column of each row's mask, [B, 1]."""
    return (mask_BT * torch.arange(1, mask_BT.shape[1] + 1)).argmax(-1, keepdim=True)


def shaped(experience: Experience, config: AlgorithmConfig) -> Experience:
    """With the scores that `config.adv_estimator` starts from."""
    norm = config.reward_normalization
    if config.adv_estimator in by_turn_names.COMPARE_TURNS:
        scores_BT = _of_turns(experience, config)
    elif norm.norm_mean_type is None and norm.norm_std_type is None and config.reward_clip is None:
        return experience
    else:
        scores_BT = _of_rows(experience, config)
    return dataclasses.replace(experience, scores_BT=scores_BT)


def _of_rows(experience: Experience, config: AlgorithmConfig) -> Tensor:
    """Scores scaled where they lie; what is subtracted, or clipped off, lies on the last sampled token."""
    scores_BT, mask_BT = experience.scores_BT, experience.rollout.mask_BT
    norm = config.reward_normalization
    total_B, group_B = scores_BT.sum(-1), groups_of(experience.rollout.prompts, norm.grouping)
    wanted_B, scale_B = normalised(total_B, group_B, norm)
    scaled_BT = scores_BT * scale_B[:, None]
    missing_B = _clipped(wanted_B, config.reward_clip) - scaled_BT.sum(-1)
    return scaled_BT.scatter_add(1, _last(mask_BT), missing_B[:, None])


def _of_turns(experience: Experience, config: AlgorithmConfig) -> Tensor:
    """A reward on each turn's last token, of what followed upon the turn; GiGPO's, of the whole conversation, too."""
    norm, prompts = config.reward_normalization, experience.rollout.prompts
    steps = by_turn.steps_of(experience.rollout, experience.scores_BT, config.step_reward_gamma)
    group_B = groups_of(prompts, norm.grouping)
    if config.adv_estimator == by_turn_names.GIGPO:
        whole_B, _ = normalised(steps.total_B, group_B, norm)
        in_state = dataclasses.replace(
            norm,
            norm_mean_type="group" if norm.norm_mean_type else None,
            norm_std_type="group" if norm.norm_std_type else None,
        )
        step_N, _ = normalised(steps.later_N, steps.state_N, in_state)
        reward_N = config.episode_reward_weight * whole_B[steps.row_N] + config.step_reward_weight * step_N
    else:
        reward_N, _ = normalised(steps.later_N, group_B[steps.row_N], norm)
    placed_BT = torch.zeros_like(experience.scores_BT)
    placed_BT[steps.row_N, steps.last_N] = _clipped(reward_N, config.reward_clip)
    return placed_BT


def groups_of(prompts: Prompts, grouping: str) -> Tensor:
    """Which rows are compared with one another: equal numbers, [B] int64."""
    if grouping == "traj_group_id":
        return prompts.uid_B
    names = ["" if grouping == "batch" else row.data_source for row in prompts.rows]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return torch.tensor([numbers[name] for name in names])


def normalised(x_N: Tensor, group_N: Tensor, norm: RewardNormalizationConfig) -> tuple[Tensor, Tensor]:
    """`x` less a mean, over a deviation (Bessel) -> (that, what `x` was multiplied by): ROLL's `agentic_reward_norm`.

    A group of one, or without a deviation, has none to be divided by: it is 0.
    """
    _, place_N, size_G = torch.unique(group_N, return_inverse=True, return_counts=True)

    def of_groups(y_N: Tensor) -> Tensor:
        return torch.zeros(len(size_G), dtype=y_N.dtype).index_add(0, place_N, y_N)

    mean_N = (of_groups(x_N) / size_G)[place_N]
    subtracted = x_N.mean() if norm.norm_mean_type == "batch" else mean_N if norm.norm_mean_type else 0.0
    if norm.norm_std_type is None:
        return x_N - subtracted, torch.ones_like(x_N)
    if norm.norm_std_type == "batch":
        deviation_N = x_N.std().expand_as(x_N) if len(x_N) > 1 else torch.zeros_like(x_N)
    else:
        deviation_N = (of_groups((x_N - mean_N).square()) / (size_G - 1).clamp(min=1)).sqrt()[place_N]
    says_nothing_N = (size_G[place_N] == 1) | (deviation_N <= QUIET)
    scale_N = torch.where(says_nothing_N, torch.zeros_like(x_N), 1 / (deviation_N + QUIET))
    return (x_N - subtracted) * scale_N, scale_N


def finished(advantages_BT: Tensor, mask_BT: Tensor, config: AlgorithmConfig) -> Tensor:
    """Advantages whitened over the batch, unless their estimator has done that, and clipped."""
    if config.whiten_advantages and config.adv_estimator not in WHITENED:
        advantages_BT = within(masked_whiten(advantages_BT, mask_BT), mask_BT)
    return _clipped(advantages_BT, config.advantage_clip)


def _clipped(x: Tensor, limit: float | None) -> Tensor:
    return x if limit is None else x.clamp(-limit, limit)
