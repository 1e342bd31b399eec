"""Rewards and returns of turns, and rewards by group, computed once more: beside `recompute.py`, and as plainly.

GiGPO (Feng et al. 2025, section 4), and ROLL's reward normalisation, `step_reinforce` and `agentic_reinforce`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from trainer.agent.episode import Episode
from trainer.config.schema import AlgorithmConfig
from trainer.records import Experience

Rows = list[list[float]]  # a number for each token of each response

OF_TURNS = ("gigpo", "step_reinforce")
SMALLEST = 1e-6  # deviation that something is divided by


@dataclass(frozen=True)
class Shaped:
    """Scores as the estimator gets them; `size`: the largest number that went into them, times its scale."""

    rows: Rows
    size: float


def shaped(plain: Rows, seen: Experience, config: AlgorithmConfig) -> Shaped:
    """From the scores of each token."""
    norm = config.reward_normalization
    if config.adv_estimator in OF_TURNS:
        return _of_turns(plain, seen, config)
    if norm.norm_mean_type is None and norm.norm_std_type is None and config.reward_clip is None:
        return Shaped(plain, 0.0)
    totals = [math.fsum(row) for row in plain]
    wanted, scales = _normalised(totals, _groups(seen, norm.grouping), norm.norm_mean_type, norm.norm_std_type)
    found = []
    for row, scale, total in zip(plain, scales, wanted, strict=True):
        scaled = [scale * x for x in row]
        found.append([*scaled[:-1], scaled[-1] + _clipped(total, config.reward_clip) - math.fsum(scaled)])
    return Shaped(found, max(map(abs, [0.0, *totals])) * max([1.0, *scales]))


def _of_turns(plain: Rows, seen: Experience, config: AlgorithmConfig) -> Shaped:
    norm, groups = config.reward_normalization, _groups(seen, config.reward_normalization.grouping)
    conversations = [_earned(*pair) for pair in zip(plain, _episodes(seen), strict=True)]
    places, later, states, rows = list[tuple[int, int]](), list[float](), list[Hashable](), list[int]()
    for row, episode in enumerate(_episodes(seen)):
        end = 0
        for number, turn in enumerate(episode.turns, start=episode.step or 0):
            end += turn.end - turn.start
            places.append((row, end - 1))
            rows.append(row)
            after = conversations[row][number:]
            later.append(math.fsum(config.step_reward_gamma**k * x for k, x in enumerate(after)))
            states.append((int(seen.rollout.prompts.uid_B[row]), turn.state))
    found = [[0.0] * len(row) for row in plain]
    if config.adv_estimator == "gigpo":
        totals = [math.fsum(each) for each in conversations]
        whole, scales = _normalised(totals, groups, norm.norm_mean_type, norm.norm_std_type)
        means, deviations = (
            "group" if norm.norm_mean_type else None,
            "group" if norm.norm_std_type else None,
        )
        beside, more = _normalised(later, states, means, deviations)
        weights = config.episode_reward_weight, config.step_reward_weight
        rewards = [weights[0] * whole[row] + weights[1] * x for row, x in zip(rows, beside, strict=True)]
        size = abs(weights[0]) * max(map(abs, totals)) * max(scales) + abs(weights[1]) * max(map(abs, later)) * max(
            more
        )
    else:
        of_turns = [groups[row] for row in rows]
        rewards, scales = _normalised(later, of_turns, norm.norm_mean_type, norm.norm_std_type)
        size = max(map(abs, later)) * max([1.0, *scales])
    for (row, token), reward in zip(places, rewards, strict=True):
        found[row][token] = _clipped(reward, config.reward_clip)
    return Shaped(found, size)


def _earned(plain: Sequence[float], episode: Episode) -> list[float]:
    """Of all turns of the conversation that a row belongs to."""
    if episode.step is not None:
        return list(episode.rewards)
    found, start = [], 0
    for turn in episode.turns:
        tokens = turn.end - turn.start
        found.append(math.fsum(plain[start : start + tokens]))
        start += tokens
    return found


def _episodes(seen: Experience) -> Sequence[Episode]:
    return seen.rollout.episodes or ()


def _groups(seen: Experience, grouping: str) -> list[Hashable]:
    prompts = seen.rollout.prompts
    if grouping == "traj_group_id":
        return list(prompts.uid_B.tolist())
    return [row.data_source if grouping == "tags" else None for row in prompts.rows]


def _normalised(
    values: Sequence[float], groups: Sequence[Hashable], means: str | None, deviations: str | None
) -> tuple[list[float], list[float]]:
    """Each value less a mean and over a deviation, and what it was multiplied by."""
    found, scales = [], []
    for value, group in zip(values, groups, strict=True):
        members = [x for x, other in zip(values, groups, strict=True) if other == group]
        mean = _mean(values if means == "batch" else members) if means else 0.0
        scale = 1.0
        if deviations:
            deviation = _deviation(values if deviations == "batch" else members)
            scale = 0.0 if len(members) == 1 or deviation <= SMALLEST else 1 / (deviation + SMALLEST)
        found.append((value - mean) * scale)
        scales.append(scale)
    return found, scales


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _deviation(values: Sequence[float]) -> float:
    mean = _mean(values)
    return math.sqrt(math.fsum((x - mean) ** 2 for x in values) / max(len(values) - 1, 1))


def _clipped(value: float, limit: float | None) -> float:
    return value if limit is None else max(-limit, min(limit, value))


def returns(rewarded: Rows, seen: Experience, config: AlgorithmConfig) -> Rows:
    """Of the estimators whose advantages are returns: a number for each token."""
    found = []
    for row, episode in zip(rewarded, _episodes(seen), strict=True):
        turns, start = list[list[float]](), 0
        for turn in episode.turns:
            turns.append(row[start : start + turn.end - turn.start])
            start += turn.end - turn.start
        if config.adv_estimator == "agentic_reinforce":
            sums = [math.fsum(turn) for turn in turns]
            later = [math.fsum(config.gamma**k * x for k, x in enumerate(sums[at:])) for at in range(len(sums))]
            found.append([x for x, turn in zip(later, turns, strict=True) for _ in turn])
        else:
            found.append([x for turn in turns for x in discounted(turn, config.gamma)])
    return found


def discounted(row: Sequence[float], factor: float) -> list[float]:
    """Of each number, it and what follows, times `factor` for each step in between."""
    return [math.fsum(factor**later * x for later, x in enumerate(row[t:])) for t in range(len(row))]
