"""Compiled transformer layers: what lies between matrix products is fused, and the host has fewer kernels to launch."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

# Graphs of one layer's code: of each model in the process, with and without gradient, for one length and for any.
# Beyond its own limit of 8, torch goes on without compiling.
GRAPHS = 64


def inductor(graph: Any, inputs: Any) -> Any:
    """What torch.compile compiles with by default."""
    from torch._inductor.compile_fx import compile_fx

    return compile_fx(graph, inputs)


@dataclass(frozen=True)
class Budgeted:
    """A backend whose graphs keep a share of their activations for the gradient, and compute the rest again.

    torch reads the share while it compiles, from a setting of the whole process; here it is that of these graphs alone.
    Graphs of equal backends are shared: of the layers of a model, not of two models with different shares.
    """

    share: float

    def __call__(self, graph: Any, inputs: Any) -> Any:
        from torch._functorch import config

        with config.patch(activation_memory_budget=self.share):
            return inductor(graph, inputs)


def compile_layers(layers: Iterable[nn.Module], share: float = 1.0) -> None:
    """Each layer's `forward`, within FSDP's hooks, which are not traced. All layers of a kind share their graphs.

    After sharding: FSDP gives a layer a new class, and transformers checkpoints only in the `forward` of that. `share`
    is that of the activations which are kept for the gradient. Only where `compiler_works`.
    """
    torch._dynamo.config.recompile_limit = GRAPHS
    torch._dynamo.config.suppress_errors = True  # a layer that cannot be compiled runs as it is, with torch's warning
    for layer in layers:
        compiled = torch.compile(layer.forward, backend=Budgeted(share)) if share < 1 else torch.compile(layer.forward)
        layer.forward = compiled


def as_they_are() -> AbstractContextManager[Any]:
    """Within it compiled layers run uncompiled: for passes that are not worth the time which compiling them takes."""
    if "torch._dynamo" not in sys.modules:  # nothing is compiled, and loading the compiler takes seconds
        return nullcontext()
    eager: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return eager


@cache
def compiler_works(device: str) -> bool:
    """Tried on a small function; where that fails, a warning says why.

    It takes a C++ compiler, and on CUDA Triton and the driver's library.
    """

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
