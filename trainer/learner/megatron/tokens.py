"""Rows as Megatron takes them, and what the output layer says of their responses.

Megatron's attention is causal and knows no padding on the left, so rows are moved to begin at position 0; whatever
stands behind a row's end, no token before it sees. Shapes as in `records.py`; S is the longest row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel import reduce_from_tensor_model_parallel_region
from torch import Tensor

from trainer.records import LogProbs, Rollout

NEVER = -1e30  # the logit of a padded vocabulary entry: its probability is exactly 0


@dataclass(frozen=True)
class Tokens:
    """A micro-batch ready for the model."""

    ids_BS: Tensor
    positions_BS: Tensor
    before_BT: Tensor  # the position whose output predicts response token t
    labels_BT: Tensor
    mask_BT: Tensor

    def at_responses(self, output_BSX: Tensor) -> Tensor:
        """What the model says where it predicts the response, [B, T, X]."""
        return output_BSX[torch.arange(len(output_BSX), device=output_BSX.device)[:, None], self.before_BT]


def aligned(rollout: Rollout, multiple: int, device: torch.device) -> Tokens:
    """Rows moved to the left; S is a multiple of `multiple`, as sequence parallelism wants it."""
    attention_BS = rollout.attention_BS.to(device)
    start_B1 = attention_BS.int().argmax(-1, keepdim=True)
    longest = int(attention_BS.sum(-1).max())
    columns_S = torch.arange(-(-longest // multiple) * multiple, device=device)
    source_BS = (columns_S + start_B1).clamp(max=attention_BS.shape[1] - 1)
    ids_BS = rollout.ids_BS.to(device).gather(1, source_BS)
    width = rollout.response_BT.shape[1]
    before_BT = rollout.prompts.ids_BP.shape[1] - start_B1 + torch.arange(-1, width - 1, device=device)
    return Tokens(
        ids_BS=ids_BS,
        positions_BS=columns_S.expand_as(ids_BS),
        before_BT=before_BT.clamp(max=ids_BS.shape[1] - 1),
        labels_BT=rollout.response_BT.to(device),
        mask_BT=rollout.mask_BT.to(device),
    )


def log_probs(tokens: Tokens, logits_BSV: Tensor, temperature: float, vocabulary: int, *, entropy: bool) -> LogProbs:
    """Of logits whose vocabulary [V] is split over the tensor ranks; the same on each of them."""
    logits_BTV = tokens.at_responses(logits_BSV).float() / temperature
    here = logits_BTV.shape[-1]
    first = here * parallel_state.get_tensor_model_parallel_rank()
    if first + here > vocabulary:
        padding_V = torch.arange(first, first + here, device=logits_BTV.device) >= vocabulary
        logits_BTV = logits_BTV.masked_fill(padding_V, NEVER)
    largest_BT = logits_BTV.detach().amax(-1)
    torch.distributed.all_reduce(
        largest_BT, torch.distributed.ReduceOp.MAX, group=parallel_state.get_tensor_model_parallel_group()
    )
    weights_BTV = (logits_BTV - largest_BT[..., None]).exp()
    total_BT = _summed(weights_BTV.sum(-1))
    normaliser_BT = largest_BT + total_BT.log()
    index_BT = tokens.labels_BT - first
    mine_BT = (index_BT >= 0) & (index_BT < here)
    picked_BT = logits_BTV.gather(-1, index_BT.clamp(0, here - 1)[..., None]).squeeze(-1)
    logp_BT = _summed(picked_BT * mine_BT) - normaliser_BT
    entropy_BT = torch.zeros_like(logp_BT)
    if entropy:
        entropy_BT = normaliser_BT - _summed((weights_BTV * logits_BTV).sum(-1)) / total_BT
    return LogProbs(logp_BT * tokens.mask_BT, entropy_BT * tokens.mask_BT)


def _summed(x: Tensor) -> Tensor:
    """Over the tensor ranks; each of them takes the gradient of the sum as its own."""
    return reduce_from_tensor_model_parallel_region(x)  # type: ignore[no-any-return]
