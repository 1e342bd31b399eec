"""Made-up numbers for formulas that a command does not use: responses of several lengths, groups, every sign."""

from __future__ import annotations

import random

import torch

from trainer.agent.episode import TERMINATED, Episode, Turn
from trainer.records import Experience, Prompts, Rollout, Row

GROUPS, SAMPLES, TOKENS = 5, 4, 7


def experience(seed: int, *, groups: int = GROUPS, samples: int = SAMPLES, columns: int = TOKENS) -> Experience:
    """Responses of one to `columns` tokens, one of them the longest; `samples` of each prompt, of whom two differ."""
    generator = torch.Generator().manual_seed(seed)
    count = groups * samples
    lengths_B = torch.randint(1, columns + 1, (count,), generator=generator)
    lengths_B[0] = columns
    mask_BT = (torch.arange(columns) < lengths_B[:, None]).long()
    score_B = torch.rand(count, generator=generator)
    scores_BT = torch.zeros(count, columns).scatter(1, lengths_B[:, None] - 1, score_B[:, None])
    old, ref, engine, values = (torch.randn(count, columns, generator=generator) * mask_BT for _ in range(4))
    rows = tuple(Row(i, "made up", "none", "") for i in range(count))
    uid_B = torch.arange(groups).repeat_interleave(samples)
    prompts = Prompts(mask_BT[:, :1], mask_BT[:, :1], uid_B, torch.arange(samples).repeat(groups), rows)
    return Experience(Rollout(prompts, mask_BT, mask_BT, engine), scores_BT, old, ref, values)


def conversations(seed: int, *, groups: int = GROUPS, samples: int = SAMPLES) -> Experience:
    """Rows of one to four turns, observations between them; states come again in a prompt's samples, and in others'."""
    dice = random.Random(seed)
    count = groups * samples
    masks, scores, episodes = list[list[int]](), list[list[float]](), list[Episode]()
    for row in range(count):
        mask, score, turns = list[int](), list[float](), list[Turn]()
        for _ in range(4 if row == 0 else dice.randint(1, 4)):
            start, tokens, read = len(mask), dice.randint(1, 3), dice.randint(0, 3)
            reward = dice.choice((0.0, -0.1, 1.0, dice.random()))
            turns.append(Turn(start, start + tokens, reward, 0.0, state=dice.choice("abc")))
            mask += [1] * tokens + [0] * read
            score += [0.0] * (tokens - 1) + [reward] + [0.0] * read
        masks.append(mask[: turns[-1].end])
        scores.append(score[: turns[-1].end])
        episodes.append(Episode(tuple(turns), TERMINATED))
    columns = max(map(len, masks))
    mask_BT = torch.tensor([mask + [0] * (columns - len(mask)) for mask in masks])
    present_BT = torch.tensor([[1] * len(mask) + [0] * (columns - len(mask)) for mask in masks])
    scores_BT = torch.tensor([score + [0.0] * (columns - len(score)) for score in scores])
    generator = torch.Generator().manual_seed(seed)
    old, ref, engine, values = (torch.randn(count, columns, generator=generator) * mask_BT for _ in range(4))
    rows = tuple(Row(i, "made up", ("lake", "room")[i // samples % 2], "") for i in range(count))
    uid_B = torch.arange(groups).repeat_interleave(samples)
    prompts = Prompts(mask_BT[:, :1], mask_BT[:, :1], uid_B, torch.arange(samples).repeat(groups), rows)
    rollout = Rollout(prompts, mask_BT, mask_BT, engine, present_BT, tuple(episodes))
    return Experience(rollout, scores_BT, old, ref, values)
