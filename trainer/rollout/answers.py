"""From an engine's answers, in the order in which they came, to one record."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trainer.records import Prompts, Rollout
from trainer.rollout.server import Answer


def assemble(prompts: Prompts, answers: Sequence[Answer], pad_id: int) -> Rollout:
    """`answers` beside their prompts. A prompt without an answer gets a row of padding whose mask is empty."""
    width = max((len(answer.token_ids) for answer in answers), default=1)
    response_BT = torch.full((len(prompts), width), pad_id, dtype=torch.long)
    mask_BT = torch.zeros(len(prompts), width, dtype=torch.long)
    logp_BT = torch.zeros(len(prompts), width)
    for answer in answers:
        count = len(answer.token_ids)
        response_BT[answer.index, :count] = torch.as_tensor(answer.token_ids, dtype=torch.long)
        mask_BT[answer.index, :count] = 1
        logp_BT[answer.index, :count] = torch.as_tensor(answer.logprobs, dtype=torch.float32)
    return Rollout(prompts, response_BT, mask_BT, logp_BT)
