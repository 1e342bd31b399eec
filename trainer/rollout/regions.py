"""Which part of a tensor of the trainer's model stands where in an engine's tensor-parallel rank.

SGLang and vLLM name their layers as transformers does, fuse q, k, v and gate, up into one parameter each, and say in
attributes of their layers how these are cut. Works on any module with such attributes, so it needs no engine to be
tested.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


@dataclass(frozen=True)
class Region:
    """Rows (`dim` 0) or columns (1) `start ... stop - 1` of a whole tensor, and where in `parameter` they stand."""

    parameter: str
    dim: int
    start: int
    stop: int
    at: int  # of `parameter`, along `dim`

    def of_whole(self, whole: Tensor) -> Tensor:
        return whole.narrow(self.dim, self.start, self.stop - self.start) if whole.dim() else whole

    def of_parameter(self, parameter: Tensor) -> Tensor:
        return parameter.narrow(self.dim, self.at, self.stop - self.start) if parameter.dim() else parameter

    @property
    def offsets(self) -> dict[str, int]:
        """For `sums_of` of this part."""
        return {"row": self.start if self.dim == 0 else 0, "column": self.start if self.dim == 1 else 0}


class UnknownPlace(Exception):
    """A tensor that this module cannot find in the engine's model."""


def region_of(model: nn.Module, name: str, shape: Sequence[int], tp_rank: int) -> Region:
    """Where in `model` the tensor `name` of the trainer's model stands. Raises UnknownPlace."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    where, position = (name, 0) if name in parameters else _fused(name)
    if where not in parameters:
        raise UnknownPlace(f"the engine's model has no parameter for {name}")
    held, layer = parameters[where], model.get_submodule(where.rpartition(".")[0])
    region = _region(layer, where, held, tuple(shape), position, tp_rank)
    if region is None or region.of_parameter(held).shape != _cut(tuple(shape), region):
        raise UnknownPlace(f"{name} {list(shape)} fits in no known way into {where} {list(held.shape)}")
    return region


def _fused(name: str) -> tuple[str, int]:
    """The fused parameter that holds `name`, and as which of its parts.

    >>> _fused("layers.0.self_attn.k_proj.weight")
    ('layers.0.self_attn.qkv_proj.weight', 1)
    """
    for fused, parts in FUSED.items():
        for position, part in enumerate(parts):
            if f".{part}." in name:
                return name.replace(f".{part}.", f".{fused}."), position
    return name, 0


def _cut(shape: tuple[int, ...], region: Region) -> tuple[int, ...]:
    return tuple(region.stop - region.start if d == region.dim else size for d, size in enumerate(shape))


def _region(layer: Any, where: str, held: Tensor, shape: tuple[int, ...], position: int, tp_rank: int) -> Region | None:
    sizes = getattr(layer, "output_partition_sizes", None)
    if hasattr(layer, "shard_indices") and hasattr(layer, "org_vocab_size"):  # embeddings, whose rows are padded
        indices = layer.shard_indices
        return Region(where, 0, indices.org_vocab_start_index, min(indices.org_vocab_end_index, shape[0]), 0)
    if sizes is not None and len(sizes) > 1:
        # Where there are fewer key-value heads than ranks, some ranks hold the same.
        replicas = getattr(layer, "num_kv_head_replicas", 1) if position else 1
        return _rows(where, tp_rank // replicas, sizes[position], sum(sizes[:position]))
    if tuple(held.shape) == shape:
        return Region(where, 0, 0, shape[0] if shape else 1, 0)
    # vLLM's layers have both attributes, whichever way they are cut.
    if hasattr(layer, "input_size_per_partition") and len(shape) > 1 and held.shape[0] == shape[0]:
        return Region(where, 1, tp_rank * held.shape[1], (tp_rank + 1) * held.shape[1], 0)
    return _rows(where, tp_rank, sizes[0], 0) if sizes is not None else None


def _rows(where: str, index: int, size: int, at: int) -> Region:
    return Region(where, 0, index * size, (index + 1) * size, at)
