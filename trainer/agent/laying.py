"""From turns to one row: response tokens, what of them is trained, what stands in the context, where rewards lie. Pure.

    sampled     A A     B B B          the model's: mask 1, with log-probs
    answered        o o                observations and template: mask 0, present 1
    mask        1 1 0 0 1 1 1
    reward        r         r          on each turn's last sampled token

A row never ends on an observation: it would be computed for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.agent.episode import Episode, Turn
from trainer.records import Prompts, Rollout


@dataclass(frozen=True)
class Said:
    """One turn as tokens."""

    sampled: Sequence[int]
    logp: Sequence[float]  # one per sampled token
    reward: float = 0.0
    seconds: float = 0.0  # of the environment
    answered: Sequence[int] = ()  # what follows; empty behind the last turn
    action: str = ""  # the sampled tokens as text
    observation: str = ""  # the environment's answer as text
    state: str = ""  # a digest of what the turn was taken in


@dataclass(frozen=True)
class Laid:
    """A row's response, one number per column."""

    ids: list[int]
    mask: list[int]
    logp: list[float]
    turns: tuple[Turn, ...]


def lay(said: Sequence[Said]) -> Laid:
    """
    >>> row = lay([Said([5, 6], [-1.0, -2.0], reward=0.5, answered=[7]), Said([8], [-3.0], reward=1.0)])
    >>> row.ids, row.mask, row.logp, [(turn.start, turn.end) for turn in row.turns]
    ([5, 6, 7, 8], [1, 1, 0, 1], [-1.0, -2.0, 0.0, -3.0], [(0, 2), (3, 4)])
    """
    ids: list[int] = []
    mask: list[int] = []
    logp: list[float] = []
    turns = []
    for turn in said:
        start, count, more = len(ids), len(turn.sampled), len(turn.answered)
        known = (turn.reward, turn.seconds, turn.action, turn.observation, turn.state)
        turns.append(Turn(start, start + count, *known))
        ids += [*turn.sampled, *turn.answered]
        mask += [1] * count + [0] * more
        logp += [*turn.logp, *[0.0] * more]
    return Laid(ids, mask, logp, tuple(turns))


def left_padded(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Token ids side by side and their mask, [B, P] int64 each; P is at least 1."""
    width = max(1, *map(len, rows)) if rows else 1
    ids_BP = torch.tensor([[pad_id] * (width - len(row)) + list(row) for row in rows], dtype=torch.int64)
    mask_BP = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], dtype=torch.int64)
    return ids_BP.reshape(len(rows), width), mask_BP.reshape(len(rows), width)


def rollout_of(prompts: Prompts, laid: Sequence[Laid], episodes: Sequence[Episode], pad_id: int) -> Rollout:
    """The record of a batch of conversations; responses are right-padded to the longest."""
    width = max((len(row.ids) for row in laid), default=0) or 1

    def side_by_side(rows: Sequence[Sequence[float]], padding: float, dtype: torch.dtype) -> Tensor:
        padded = [[*row, *[padding] * (width - len(row))] for row in rows]
        return torch.tensor(padded, dtype=dtype).reshape(len(rows), width)

    return Rollout(
        prompts,
        side_by_side([row.ids for row in laid], pad_id, torch.int64),
        side_by_side([row.mask for row in laid], 0, torch.int64),
        side_by_side([row.logp for row in laid], 0.0, torch.float32),
        side_by_side([[1] * len(row.ids) for row in laid], 0, torch.int64),
        tuple(episodes),
    )


def placed_rewards(episodes: Sequence[Episode], width: int, where: str) -> Tensor:
    """Rewards [B, T] float32: `turn`, each on its turn's last sampled token; `last`, all of them on the last one's."""
    placed_BT = torch.zeros(len(episodes), width)
    for row, episode in enumerate(episodes):
        for turn in episode.turns:
            end = turn.end if where == "turn" else episode.turns[-1].end
            placed_BT[row, end - 1] += turn.reward
    return placed_BT
