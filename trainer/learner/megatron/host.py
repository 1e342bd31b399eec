"""Megatron-core on a machine without CUDA: what it allocates on "cuda" lies on the CPU.

Megatron-core's layers, schedules and collectives run on a CPU over gloo as they are. In some fifty places, though, it
names its device outright: `device="cuda"`, `torch.cuda.current_device()`, or an optimizer that takes parameters of
type `torch.cuda.FloatTensor` alone. `on_device` answers these for the CPU. On CUDA it does nothing at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_CPU = torch.device("cpu")


class _CudaMeansCpu(TorchFunctionMode):
    """Factories asked for CUDA allocate on the CPU; `Tensor.type()` says what the tensor would be called on CUDA."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is Tensor.cuda:
            return args[0]
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = _CPU
        result = func(*args, **kwargs)
        if func is Tensor.type and isinstance(result, str):
            return result.replace("torch.", "torch.cuda.", 1)
        return result


def on_device(device: torch.device) -> Any:
    """A context in which Megatron-core's "cuda" is `device`; every call into Megatron-core is made in it."""
    return _on_cpu() if device.type == "cpu" else nullcontext()


@contextmanager
def _on_cpu() -> Iterator[None]:
    from megatron.core.tensor_parallel import random

    replaced: list[tuple[Any, str, Any]] = [
        (torch.cuda, "current_device", lambda: _CPU),
        (torch.cuda, "synchronize", lambda *_: None),
        (torch.cuda, "get_rng_state", lambda *_, **__: None),
        # Recomputation keeps the state of CUDA's generator; dropout, the one thing that draws from it, is off.
        (random, "_get_cuda_rng_state", lambda *_, **__: None),
        (random, "_set_cuda_rng_state", lambda *_, **__: None),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    for owner, name, value in replaced:
        setattr(owner, name, value)
    try:
        with _CudaMeansCpu():
            yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)
