"""Discounted sums over long rows, a block of columns at a time: a product of matrices in place of a step per column."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

BLOCK = 32  # columns: the product's work grows with it, the steps from block to block shrink
LONG = 512  # columns from which on it is quicker than a step per column


def has_no_gaps(real_BT: Tensor) -> bool:
    """Whether the tokens of each row stand together at its beginning, as those of a response do."""
    return not bool((real_BT[:, 1:] & ~real_BT[:, :-1]).any())


def gae(rewards_BT: Tensor, values_BT: Tensor, real_BT: Tensor, gamma: float, lam: float) -> Tensor:
    """The advantages of `ppo.gae`, [B, T], for tokens without gaps."""
    # What stands outside the mask may be anything, also no number at all.
    outside_BT = ~real_BT
    values_BT = values_BT.masked_fill(outside_BT, 0.0)
    delta_BT = rewards_BT - values_BT
    delta_BT[:, :-1].add_(values_BT[:, 1:], alpha=gamma)
    return discounted(delta_BT.masked_fill_(outside_BT, 0.0), gamma * lam)


def discounted(x_BT: Tensor, decay: float) -> Tensor:
    """`y[t] = x[t] + decay * y[t + 1]`, [B, T].

    >>> discounted(torch.tensor([[1.0, 2.0, 4.0]]), 0.5).tolist()
    [[3.0, 4.0, 4.0]]
    """
    rows, columns = x_BT.shape
    whole_BT = pad(x_BT, (0, -columns % BLOCK)) if columns % BLOCK else x_BT
    x_BNK = whole_BT.reshape(rows, -1, BLOCK)
    later_K = torch.arange(BLOCK, dtype=torch.float64, device=x_BT.device)
    ahead_KK = later_K[:, None] - later_K
    weights_KK = torch.where(ahead_KK >= 0, decay ** ahead_KK.clamp(min=0), 0.0).to(x_BT.dtype)
    y_BNK = x_BNK @ weights_KK  # within each block
    carried_B, carried_BN = torch.zeros_like(x_BT[:, 0]), torch.zeros_like(y_BNK[:, :, 0])
    for block in reversed(range(y_BNK.shape[1])):
        carried_BN[:, block] = carried_B
        carried_B = y_BNK[:, block, 0] + decay**BLOCK * carried_B
    y_BNK.addcmul_(carried_BN[:, :, None], (decay ** (BLOCK - later_K)).to(x_BT.dtype))
    return y_BNK.view(rows, -1)[:, :columns]
