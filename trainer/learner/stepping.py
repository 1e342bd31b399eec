"""One step of an optimizer: the gradient is clipped, and one that is not finite changes nothing.

On a GPU, each figure that the host reads is a wait, and after it the GPU idles until the host has queued work again. A
fused AdamW takes what clips and what skips as tensors and applies them as it reads the gradients. So its step is queued
whole, and the host waits once, for the figures. Elsewhere the figures are read first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainer.learner.offload import local


@dataclass(frozen=True)
class Limits:
    """What becomes of a gradient before it is applied."""

    clip: float  # the largest norm over all ranks
    scale: float = 1.0  # a power of two that it was multiplied by


@dataclass(frozen=True)
class Norms:
    """Of a gradient as it was before clipping, without its scale."""

    total: float  # over all ranks
    nonzero: frozenset[str]  # names of the parameters whose gradient is not zero everywhere on this rank

    @property
    def finite(self) -> bool:
        return math.isfinite(self.total)


def read_first(module: nn.Module, limits: Limits, step: Callable[[], None]) -> Norms:
    """Norms, clipping, and `step()` if the gradient is finite. Collective, as `read_last`."""
    names, gradients = zip(*_gradients(module), strict=True)
    norms = torch.stack([local(gradient).norm() for gradient in gradients]).tolist()
    if limits.scale != 1:
        torch._foreach_mul_([local(gradient) for gradient in gradients], 1 / limits.scale)
    total = float(whole(torch.nn.utils.clip_grad_norm_(module.parameters(), limits.clip)))
    found = Norms(total, _nonzero(names, norms))
    if found.finite:
        step()
    return found


def read_last(module: nn.Module, limits: Limits, step: Callable[[], None], optimizer: Any) -> Norms:
    """The same with one wait, at the end; `step` is that of `optimizer`, a fused AdamW."""
    names, gradients = zip(*_gradients(module), strict=True)
    norms_P = torch.stack(torch._foreach_norm([local(g) for g in gradients], 2, dtype=torch.float32)) / limits.scale
    square = norms_P.square().sum()
    if dist.get_world_size() > 1:
        dist.all_reduce(square)
    total = square.sqrt()
    factor = (limits.clip / (total + 1e-6)).clamp(max=1.0)  # as `clip_grad_norm_` has it
    # The kernel divides by the first, which is 1 where nothing is clipped, and with the second leaves all as it was.
    optimizer.grad_scale, optimizer.found_inf = limits.scale / factor, (~total.isfinite()).float()
    try:
        step()
    finally:  # the optimizer may go on without fusion, which takes neither
        del optimizer.grad_scale, optimizer.found_inf
    grad_norm, *norms = torch.cat([total[None], norms_P]).tolist()
    return Norms(grad_norm, _nonzero(names, norms))


def reads_last(optimizer: Any) -> bool:
    """Whether the optimizer's step is one for `read_last`."""
    return all(group.get("fused") for group in optimizer.param_groups)


def whole(tensor: Tensor) -> Tensor:
    """A sharded tensor gathered on every rank; another one as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _gradients(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [(name, p.grad) for name, p in module.named_parameters() if p.grad is not None]


def _nonzero(names: tuple[str, ...], norms: list[float]) -> frozenset[str]:
    return frozenset(name for name, norm in zip(names, norms, strict=True) if norm != 0)
