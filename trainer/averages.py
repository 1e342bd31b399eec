"""Means, variances and groups under a mask: the plain statistics that `ppo.py` is written in."""

from __future__ import annotations

import torch
from torch import Tensor

from trainer.errors import BatchError


def within(x: Tensor, mask: Tensor) -> Tensor:
    """`x` where `mask` is 1 and 0 elsewhere, whatever stands there: NaN times 0 would be NaN."""
    return torch.where(mask.bool(), x, torch.zeros_like(x))


def wide(x: Tensor) -> Tensor:
    """Half precision as float32: sums, exponentials and 1e-8 don't fit into it. Other types as they are."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Mean of `x` where `mask` is 1; a scalar."""
    total = within(wide(x), mask).sum()
    return total / (mask.sum().to(total.dtype) + 1e-8)


def masked_whiten(x: Tensor, mask: Tensor) -> Tensor:
    """`x` shifted and scaled to mean 0 and variance 1 (Bessel-corrected) over the mask; same shape.

    Raises BatchError (a ValueError) when the mask has fewer than two tokens: there is no variance.
    """
    count = mask.sum()
    if count < 2:
        raise BatchError(
            f"cannot whiten advantages over {int(count)} response token(s)",
            hint="raise data.train_batch_size, or check why the responses are empty",
        )
    exact = wide(x)
    mean = masked_mean(exact, mask)
    variance = masked_mean((exact - mean) ** 2, mask) * count / (count - 1)
    return ((exact - mean) * torch.rsqrt(variance + 1e-8)).to(x.dtype)


def group_mean_std(score_B: Tensor, uid_B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, standard deviation (Bessel) and size of each sample's group; a group of one has mean 0 and deviation 1."""
    _, group_B, size_G = torch.unique(uid_B, return_inverse=True, return_counts=True)
    mean_G = torch.zeros(len(size_G), dtype=score_B.dtype).index_add(0, group_B, score_B) / size_G
    square_G = torch.zeros_like(mean_G).index_add(0, group_B, (score_B - mean_G[group_B]) ** 2)
    std_G = (square_G / (size_G - 1).clamp(min=1)).sqrt()
    alone_G = size_G == 1
    mean_G = torch.where(alone_G, torch.zeros_like(mean_G), mean_G)
    std_G = torch.where(alone_G, torch.ones_like(std_G), std_G)
    return mean_G[group_B], std_G[group_B], size_G[group_B]
