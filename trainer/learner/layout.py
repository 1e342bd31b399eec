"""How a rollout's tokens stand in a model's input: padded rows, one row with the sequences end to end, or level rows.

Legend beside that of `records.py`: N tokens without padding, M response tokens, in the order of `mask_BT`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainer.records import Prompts, Rollout, Row

PADDING = 0.04  # of a pass, up to which rows side by side are quicker than one packed row


@dataclass(frozen=True)
class Layout:
    """A model's input, and where in its output the answers to the response tokens are."""

    inputs: dict[str, Any]  # of the model's forward: `input_ids`, `position_ids` and what attention needs
    before_M: Tensor  # int64: position, in the flattened input, of the token before each response token
    labels_M: Tensor  # int64: the response tokens
    mask_BT: Tensor  # bool

    def spread(self, x_M: Tensor) -> Tensor:
        """One number per response token as [B, T], 0 outside the mask."""
        return torch.zeros(self.mask_BT.shape, dtype=x_M.dtype, device=x_M.device).masked_scatter(self.mask_BT, x_M)


def padded(rollout: Rollout, device: torch.device) -> Layout:
    """The rows side by side, moved to begin at position 0, and as wide as the longest sequence."""
    attention_BS = rollout.attention_BS.to(device)
    lengths_B1 = attention_BS.sum(-1, keepdim=True)
    start_B1 = attention_BS.int().argmax(-1, keepdim=True)
    columns_S = torch.arange(int(lengths_B1.max()), device=device)
    source_BS = (columns_S + start_B1).clamp(max=attention_BS.shape[1] - 1)
    real_BS = columns_S < lengths_B1
    inputs = {
        "input_ids": rollout.ids_BS.to(device).gather(1, source_BS) * real_BS,
        "attention_mask": real_BS.to(attention_BS.dtype),
        "position_ids": columns_S.expand_as(source_BS),
    }
    row_B1 = torch.arange(len(source_BS), device=device)[:, None] * len(columns_S)
    prompt_B1 = rollout.prompts.ids_BP.shape[1] - start_B1
    steps_T = torch.arange(-1, rollout.response_BT.shape[1] - 1, device=device)
    return _layout(rollout, inputs, row_B1 + prompt_B1 + steps_T)


def level(rollout: Rollout, device: torch.device) -> Layout:
    """As `padded`, without a mask: padding stands to the right, where a causal attention of the others never looks.

    A mask would keep `scaled_dot_product_attention` from its quickest kernels.
    """
    layout = padded(rollout, device)
    inputs = {name: x for name, x in layout.inputs.items() if name != "attention_mask"}
    return dataclasses.replace(layout, inputs=inputs | {"max_length_q": inputs["input_ids"].shape[1]})


def is_level(rollout: Rollout) -> bool:
    """Whether the rows of a pass are nearly equally long, and their responses nearly as long as any of the batch.

    The latter (the columns are the batch's) is for the ratio of new to old log-probs: the two layouts round differently
    in bf16, and rows of a batch of drawn lengths should not be laid out in one way for the one and in another for the
    other, because the passes of both are cut differently.
    """
    lengths_B, responses_B = rollout.lengths_B, rollout.context_BT.sum(-1)
    least, tokens, longest = torch.stack([responses_B.min(), lengths_B.sum(), lengths_B.max()]).tolist()
    full = 1 - PADDING
    return bool(least >= full * rollout.mask_BT.shape[1] and tokens >= full * longest * len(lengths_B))


def packed(rollout: Rollout, device: torch.device) -> Layout:
    """All sequences end to end in one row; positions start anew with each. Nothing of it is padding.

    The bounds go by the names that transformers has for flash attention's (`FlashAttentionKwargs`).
    """
    attention_BS = rollout.attention_BS.to(device)
    real_BS = attention_BS.bool()
    lengths_B = attention_BS.sum(-1)
    bounds = torch.nn.functional.pad(lengths_B.cumsum(0), (1, 0)).to(torch.int32)
    longest = int(lengths_B.max())
    inputs = {
        "input_ids": rollout.ids_BS.to(device)[real_BS][None],
        "position_ids": (attention_BS.cumsum(-1) - 1)[real_BS][None],
        "cu_seq_lens_q": bounds,
        "cu_seq_lens_k": bounds,
        "max_length_q": longest,
        "max_length_k": longest,
    }
    before_BS = attention_BS.flatten().cumsum(0).view_as(attention_BS) - 2
    return _layout(rollout, inputs, before_BS[:, -rollout.response_BT.shape[1] :])


def _layout(rollout: Rollout, inputs: dict[str, Any], before_BT: Tensor) -> Layout:
    """Position i of the logits predicts token i + 1."""
    mask_BT = rollout.mask_BT.to(before_BT.device).bool()
    labels_M = rollout.response_BT.to(before_BT.device)[mask_BT]
    return Layout(inputs, before_BT[mask_BT], labels_M, mask_BT)


def trim(rollout: Rollout) -> Rollout:
    """Without the columns that are padding in every row: no token of theirs is computed."""
    prompt_start = int(rollout.prompts.mask_BP.any(0).int().argmax())
    response_end = max(1, int(rollout.context_BT.any(0).sum()))
    prompts = dataclasses.replace(
        rollout.prompts,
        ids_BP=rollout.prompts.ids_BP[:, prompt_start:],
        mask_BP=rollout.prompts.mask_BP[:, prompt_start:],
    )
    return dataclasses.replace(
        rollout,
        prompts=prompts,
        response_BT=rollout.response_BT[:, :response_end],
        mask_BT=rollout.mask_BT[:, :response_end],
        logp_BT=rollout.logp_BT[:, :response_end],
        present_BT=None if rollout.present_BT is None else rollout.present_BT[:, :response_end],
    )


def probe() -> Rollout:
    """Two short sequences of different lengths, to try a model with."""
    prompt_mask_BP = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
    mask_BT = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    ids_BS = torch.arange(18).view(2, 9) % 11
    rows = tuple(Row(i, "probe", "none", None) for i in range(2))
    prompts = Prompts(ids_BS[:, :5] * prompt_mask_BP, prompt_mask_BP, torch.arange(2), torch.zeros(2).long(), rows)
    return Rollout(prompts, ids_BS[:, 5:] * mask_BT, mask_BT, torch.zeros(2, 4))
