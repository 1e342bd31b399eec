"""Whether an engine fits into what it is given, and how much is missing if not."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trainer.errors import EngineError

GIB = 2**30
OF_TOTAL = frozenset({"vllm"})  # engines whose share is of a GPU's whole memory, not of what is free
MOST = 0.95  # of what is free: the engine's activations and CUDA's own need the rest


@dataclass(frozen=True)
class Needed:
    """Bytes on each GPU without which an engine cannot generate."""

    weights: int
    sequence: int  # the KV cache of one prompt with its response


def needed(parameters: int, structure: object, *, tokens: int, itemsize: int, tensor_parallel: int) -> Needed:
    """From a model's configuration (transformers' names); `tokens` of a prompt and its response."""

    def size(*names: str, default: int) -> int:
        given = (getattr(structure, name, None) for name in names)
        return next((int(value) for value in given if value), default)

    heads = size("num_attention_heads", "n_head", default=1)
    key_values = size("num_key_value_heads", default=heads)
    layers = size("num_hidden_layers", "n_layer", default=1)
    head_size = size("head_dim", default=size("hidden_size", "n_embd", default=0) // heads)
    cache = 2 * layers * max(1, key_values // tensor_parallel) * head_size * itemsize * tokens
    return Needed(parameters * itemsize // tensor_parallel, cache)


def share(allowed: int, wants: Needed, device: torch.device, kind: str, engine: str) -> float:
    """The share of the memory of `device` that makes `allowed` bytes, as an engine of this `kind` understands it.

    Raises EngineError if it does not fit. Where nothing is `allowed` (0: a CPU), a third.
    """
    if not allowed or device.type != "cuda":
        return 0.3
    free, total = torch.cuda.mem_get_info(device)
    of_free = share_of(allowed, wants, free, total, engine)
    return allowed / total if kind in OF_TOTAL else of_free


def share_of(allowed: int, wants: Needed, free: int, total: int, engine: str) -> float:
    """`share` of what is free, with the figures given.

    >>> share_of(40 * GIB, Needed(14 * GIB, GIB), free=80 * GIB, total=80 * GIB, engine="engine 0")
    0.5
    """
    least = wants.weights + wants.sequence
    what = (
        f"{engine} needs {gib(least)} on each GPU ({gib(wants.weights)} of weights, "
        f"{gib(wants.sequence)} of KV cache for one sequence)"
    )
    if least > allowed:
        raise EngineError(
            f"{what}, {gib(least - allowed)} more than "
            f"actor_rollout_ref.rollout.gpu_memory_utilization={allowed / total:.2f} of {gib(total)} gives",
            hint=f"raise it to at least {least / total + 0.005:.2f}, or raise tensor_model_parallel_size",
        )
    if allowed > MOST * free:
        raise EngineError(
            f"{what} and may use {gib(allowed)}, {gib(int(allowed - MOST * free))} more than is free there: "
            f"{gib(free)} of {gib(total)}",
            hint="lower actor_rollout_ref.rollout.gpu_memory_utilization, or see who else uses the GPU (`nvidia-smi`)",
        )
    return allowed / free


def gib(count: int) -> str:
    return f"{count / GIB:.1f} GiB"
