"""Whether an engine fits into what it is given, and how much is missing if not."""

from __future__ import annotations

from collections.abc import Mapping
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


@dataclass(frozen=True)
class Room:
    """What an engine may have of one rank's GPU, and what there is, in bytes."""

    allowed: int
    free: int
    total: int


def room(allowed: int, device: torch.device) -> Room | None:
    """Now, on this rank's GPU. None where nothing is `allowed` (0: a CPU)."""
    if not allowed or device.type != "cuda":
        return None
    return Room(allowed, *torch.cuda.mem_get_info(device))


def share(rooms: Mapping[str, Room], wants: Needed, kind: str, engine: str) -> float:
    """The share of the memory of GPUs, by their names, that an engine of this `kind` is told; without GPUs a third.

    One share holds for all ranks of an engine; SGLang takes it of what is free on the fullest GPU.
    Raises EngineError for the first of them in which it does not fit.
    """
    if not rooms:
        return 0.3
    for name, each in rooms.items():
        require_fit(each, wants, engine, name)
    if kind in OF_TOTAL:
        return min(each.allowed / each.total for each in rooms.values())
    return min(each.allowed for each in rooms.values()) / min(each.free for each in rooms.values())


def require_fit(room: Room, wants: Needed, engine: str, name: str) -> None:
    """Raises EngineError if the engine does not fit on the GPU of this `name`."""
    least = wants.weights + wants.sequence
    what = (
        f"{engine} needs {gib(least)} on each GPU ({gib(wants.weights)} of weights, "
        f"{gib(wants.sequence)} of KV cache for one sequence)"
    )
    if least > room.allowed:
        enough = least / room.total + 0.005
        hint = f"raise it to at least {enough:.2f}, or raise tensor_model_parallel_size"
        if enough > MOST:
            hint = "no share of this GPU is enough: raise tensor_model_parallel_size, or take a smaller model"
        raise EngineError(
            f"{what}, {gib(least - room.allowed)} more than actor_rollout_ref.rollout.gpu_memory_utilization="
            f"{room.allowed / room.total:.2f} of {gib(room.total)} gives on {name}",
            hint=hint,
        )
    if room.allowed > MOST * room.free:
        raise EngineError(
            f"{what} and may use {gib(room.allowed)}, {gib(int(room.allowed - MOST * room.free))} more than is free on "
            f"{name}: {gib(room.free)} of {gib(room.total)}",
            hint="lower actor_rollout_ref.rollout.gpu_memory_utilization, or see who else uses the GPU (`nvidia-smi`)",
        )


def gib(count: int) -> str:
    return f"{count / GIB:.1f} GiB"
