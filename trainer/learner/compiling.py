"""Compiled transformer layers: what lies between matrix products is fused, and the host has fewer kernels to launch."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import cache

import torch
from torch import Tensor, nn

# Graphs of one layer's code: of each model in the process, with and without gradient, for one length and for any.
# Beyond its own limit of 8, torch goes on without compiling.
GRAPHS = 64


def compile_layers(layers: Iterable[nn.Module], device: str) -> None:
    """Each layer's `forward`, within FSDP's hooks, which are not traced. All layers of a kind share their graphs.

    After sharding: FSDP gives a layer a new class, and transformers checkpoints only in the `forward` of that. Where
    this machine's compiler does not work, a warning says why, and the layers run as they are.
    """
    if not compiler_works(device):
        return
    torch._dynamo.config.recompile_limit = GRAPHS
    for layer in layers:
        layer.forward = torch.compile(layer.forward)


@cache
def compiler_works(device: str) -> bool:
    """Tried on a small function: it needs a C++ compiler, and on CUDA Triton and the driver's library."""

    def small(x: Tensor) -> Tensor:
        return (x.sin() * x).sum()

    try:
        torch.compile(small)(torch.ones(8, device=device))
    except Exception as error:  # noqa: BLE001 - whatever a compiler can miss on a machine: the figures are the same
        logging.getLogger(__name__).warning("layers are not compiled: %s", reason(error))
        return False
    return True


def reason(error: Exception) -> str:
    """One line: what the compiler missed, not that it failed."""
    inner = getattr(error, "inner_exception", None) or error
    return f"{type(inner).__name__}: {inner}".splitlines()[0]
