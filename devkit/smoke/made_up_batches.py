"""Made-up numbers for formulas that a command does not use: responses of several lengths, groups, every sign."""

from __future__ import annotations

import torch

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
