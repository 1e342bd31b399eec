"""Rewards and returns of turns: what GiGPO, `step_reinforce` and `agentic_reinforce` are made of.

Feng et al. 2025, "Group-in-Group Policy Optimization for LLM Agent Training", and `roll/pipeline/agentic/utils.py` of
alibaba/ROLL. A row is a conversation or one turn of it: both say what each of their turns has earned.

Legend: B rows, T response columns, N turns of all rows, row by row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.agent.by_turn_names import AGENTIC_REINFORCE, COMPARE_TURNS
from trainer.agent.episode import Episode
from trainer.averages import within
from trainer.config.algorithm_schema import AlgorithmConfig
from trainer.records import Rollout


@dataclass(frozen=True)
class Steps:
    """The turns of a batch, one after the other."""

    row_N: Tensor  # int64
    last_N: Tensor  # int64: column of its last sampled token
    later_N: Tensor  # float32: its reward and those of later turns, discounted by turn
    state_N: Tensor  # int64: equal where the same task was in the same state
    total_B: Tensor  # float32: what each row's whole conversation has earned


def steps_of(rollout: Rollout, scores_BT: Tensor, gamma: float) -> Steps:
    """What each turn has earned, and what followed upon it; `gamma` is of the next turn's reward."""
    found: list[tuple[int, int, float]] = []
    states: dict[tuple[int, str], int] = {}
    state, totals = list[int](), list[float]()
    rows = zip(episodes_of(rollout), scores_BT.tolist(), rollout.prompts.uid_B.tolist(), strict=True)
    for row, (episode, scores, uid) in enumerate(rows):
        rewards = earned(episode, scores)
        totals.append(sum(rewards))
        later = discounted(rewards, gamma)[episode.step or 0 :]
        for turn, value in zip(episode.turns, later, strict=False):
            found.append((row, turn.end - 1, value))
            state.append(states.setdefault((uid, turn.state), len(states)))
    row_N, last_N, later_N = zip(*found, strict=True)
    return Steps(
        torch.tensor(row_N),
        torch.tensor(last_N),
        torch.tensor(later_N, dtype=torch.float32),
        torch.tensor(state),
        torch.tensor(totals, dtype=torch.float32),
    )


def episodes_of(rollout: Rollout) -> Sequence[Episode]:
    """Raises ValueError where there are no conversations."""
    if rollout.episodes is None:
        raise ValueError("an estimator of turns, and the batch has no conversations")
    return rollout.episodes


def earned(episode: Episode, scores: Sequence[float]) -> Sequence[float]:
    """By turn of the whole conversation; `scores` are a row's, by column."""
    if episode.step is not None:
        return episode.rewards
    return [sum(scores[turn.start : turn.end]) for turn in episode.turns]


def discounted(rewards: Sequence[float], gamma: float) -> list[float]:
    """
    >>> discounted([0.0, 1.0, 2.0], 0.5)
    [1.0, 2.0, 2.0]
    """
    found, running = list[float](), 0.0
    for reward in reversed(rewards):
        running = reward + gamma * running
        found.append(running)
    return found[::-1]


def returns_of(rollout: Rollout, rewards_BT: Tensor, config: AlgorithmConfig) -> Tensor:
    """Of each token, [B, T]: these estimators' advantages. Raises ValueError for another estimator."""
    if config.adv_estimator in COMPARE_TURNS:
        return within_turns(rollout, rewards_BT, config.gamma)
    if config.adv_estimator == AGENTIC_REINFORCE:
        return from_turn_to_turn(rollout, rewards_BT, config.gamma)
    raise ValueError(f"unknown adv_estimator {config.adv_estimator!r}")


def within_turns(rollout: Rollout, rewards_BT: Tensor, gamma: float) -> Tensor:
    """Discounted return of each token within its turn, [B, T]: what other turns earn does not reach it."""
    starts_BT = torch.zeros_like(rollout.mask_BT, dtype=torch.bool)
    for row, start, _ in _spans(rollout):
        starts_BT[row, start] = True
    returns, running = torch.zeros_like(rewards_BT), torch.zeros_like(rewards_BT[:, 0])
    for t in reversed(range(rewards_BT.shape[1])):
        running = torch.where(rollout.mask_BT[:, t].bool(), rewards_BT[:, t] + gamma * running, running)
        returns[:, t] = within(running, rollout.mask_BT[:, t])
        running = torch.where(starts_BT[:, t], torch.zeros_like(running), running)
    return returns


def from_turn_to_turn(rollout: Rollout, rewards_BT: Tensor, gamma: float) -> Tensor:
    """Of each token, what its turn earns and `gamma` times the next turn's return, [B, T]: discounted by turns.

    ROLL's `compute_agentic_reinforce_return` takes the reward at a turn's last token alone. Here all of a turn's count,
    and so does a KL penalty.
    """
    returns = torch.zeros_like(rewards_BT)
    row_before, running = -1, 0.0
    for row, start, end in reversed(list(_spans(rollout))):
        running = float(rewards_BT[row, start:end].sum()) + (gamma * running if row == row_before else 0.0)
        returns[row, start:end] = running
        row_before = row
    return returns


def _spans(rollout: Rollout) -> Iterator[tuple[int, int, int]]:
    """Row, first column and end of each turn."""
    for row, episode in enumerate(episodes_of(rollout)):
        for turn in episode.turns:
            yield row, turn.start, turn.end
