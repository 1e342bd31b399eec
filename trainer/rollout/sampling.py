"""Drawing tokens so that the draw depends on the sequence alone, not on its neighbours, its rank or the past.

Each sequence has its own stream of uniform numbers, a function of (seed, prompt uid, sample), and of the turn in a
conversation. A run on four ranks draws what a run on one draws, and a resumed run what an uninterrupted one would have
drawn, with no state to save.
"""

from __future__ import annotations

import hashlib
import struct

import torch
from torch import Tensor
from transformers.generation.logits_process import LogitsProcessor, TopKLogitsWarper, TopPLogitsWarper

from trainer.interfaces import Sampling
from trainer.records import Prompts


def uniform_streams(prompts: Prompts, sampling: Sampling) -> Tensor:
    """Uniform numbers in [0, 1) for each sequence and token, [B, max_new_tokens] float64."""
    rows = []
    turns = [0] * len(prompts) if prompts.turn_B is None else prompts.turn_B.tolist()
    samples = zip(prompts.uid_B.tolist(), prompts.sample_B.tolist(), strict=True)
    for (uid, sample), turn in zip(samples, turns, strict=True):
        generator = torch.Generator().manual_seed(seed_of(sampling.seed, uid, sample, turn))
        rows.append(torch.rand(sampling.max_new_tokens, generator=generator, dtype=torch.float64))
    return torch.stack(rows)


def seed_of(seed: int, uid: int, sample: int, turn: int = 0) -> int:
    """Of the draws of one turn: a signed number of 64 bits. The first turn draws as a response of one turn does."""
    of_turn = struct.pack("<q", turn) if turn else b""
    digest = hashlib.blake2b(struct.pack("<qqq", seed, uid, sample) + of_turn, digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def filters(sampling: Sampling) -> list[LogitsProcessor]:
    """Top-k, then top-p, as transformers applies them."""
    chosen: list[LogitsProcessor] = []
    if sampling.top_k > 0:
        chosen.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1.0:
        chosen.append(TopPLogitsWarper(sampling.top_p))
    return chosen


def draw(logits_BV: Tensor, uniform_B: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """One token per sequence and its log-prob under the temperature-scaled distribution -> ([B] int64, [B] float32).

    Top-p and top-k restrict the choice and not the log-prob, which must be comparable with the trainer's.
    """
    scaled_BV = logits_BV.float() / (sampling.temperature if sampling.do_sample else 1.0)
    if sampling.do_sample:
        allowed_BV = scaled_BV
        for restrict in filters(sampling):
            allowed_BV = restrict(None, allowed_BV)
        cumulative_BV = allowed_BV.double().softmax(-1).cumsum(-1)
        # The first token whose cumulative probability exceeds the number: one of probability 0 is never it.
        threshold_B1 = uniform_B.to(cumulative_BV.device)[:, None] * cumulative_BV[:, -1:]
        token_B = torch.searchsorted(cumulative_BV, threshold_B1, right=True).squeeze(-1)
        token_B = token_B.clamp(max=logits_BV.shape[-1] - 1)
    else:
        token_B = scaled_BV.argmax(-1)
    logp_B = scaled_BV.log_softmax(-1).gather(-1, token_B[:, None]).squeeze(-1)
    return token_B, logp_B
