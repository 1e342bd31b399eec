"""Made-up rollouts and experience for tests of models, engine and updates."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trainer.records import Experience, Prompts, Rollout, Row, TrainBatch


def prompts_of(ids: Sequence[Sequence[int]], pad: int = 0, width: int | None = None) -> Prompts:
    """Left-padded to the longest, or to `width`."""
    width = width or max(len(one) for one in ids)
    padded = torch.tensor([[pad] * (width - len(one)) + list(one) for one in ids])
    mask = torch.tensor([[0] * (width - len(one)) + [1] * len(one) for one in ids])
    rows = tuple(Row(i, "made up", "none", "") for i in range(len(ids)))
    return Prompts(padded, mask, torch.arange(len(ids)), torch.zeros(len(ids), dtype=torch.int64), rows)


def rollout_of(prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]], extra: int = 0) -> Rollout:
    """Responses right-padded to the longest, and `extra` columns of padding on both sides."""
    longest = max(len(one) for one in prompts)
    width = max(len(one) for one in responses) + extra
    response = torch.tensor([list(one) + [0] * (width - len(one)) for one in responses])
    mask = torch.tensor([[1] * len(one) + [0] * (width - len(one)) for one in responses])
    return Rollout(prompts_of(prompts, width=longest + extra), response, mask, torch.zeros(mask.shape))


def random_ids(lengths: Sequence[int], seed: int, vocabulary: int = 300) -> list[list[int]]:
    dice = torch.Generator().manual_seed(seed)
    return [torch.randint(3, vocabulary, (length,), generator=dice).tolist() for length in lengths]


def train_batch(rows: int = 8, seed: int = 5) -> TrainBatch:
    """Sequences of different lengths with random log-probs, values, advantages and returns."""
    dice = torch.Generator().manual_seed(seed)
    lengths, answers = ([1 + (i * step) % 5 for i in range(rows)] for step in (2, 3))
    rollout = rollout_of(random_ids(lengths, seed), random_ids(answers, seed + 1))
    mask = rollout.mask_BT

    def reals() -> Tensor:
        return torch.randn(mask.shape, generator=dice) * mask

    old = -5.7 * mask + 0.1 * reals()
    return TrainBatch(Experience(rollout, reals(), old, old + 0.1 * reals(), reals()), reals(), reals(), reals())
