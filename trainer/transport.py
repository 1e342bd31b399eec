"""Records across process borders: one pickle, made in C, that Ray passes on as bytes; large tensors travel beside it.

Left to Ray's pickler, every record and every array in it goes through Python code on both sides, and a torch tensor
takes nine times as long as its bytes (docs/decisions).
"""

from __future__ import annotations

import copyreg
import io
import pickle
from collections.abc import Iterator, Sequence
from pickle import PickleBuffer
from typing import Any

import torch
from torch import Tensor

# A pickle, or a pickle and the tensors that it leaves to Ray, which writes them to its store without a copy in between.
Packed = bytes | tuple[Any, ...]

LARGE = 1 << 18  # bytes, from which on a tensor is left to Ray; docs/results/ray_overhead.md


def pack(value: Any) -> Packed:
    """`value` with the tensors in it, at any depth; they arrive on the CPU and without gradient."""
    file, large = io.BytesIO(), list[PickleBuffer]()
    _Pickler(file, protocol=5, buffer_callback=large.append).dump(value)
    return (file.getvalue(), *large) if large else file.getvalue()


def pack_each(values: Sequence[Any]) -> Iterator[Packed | None]:
    """`values` packed one by one, as they are asked for; None stays None."""
    known: dict[int, Packed] = {}  # by identity: the ranks of a model's copy are given the very same arguments
    for value in values:
        if value is not None and id(value) not in known:
            known[id(value)] = pack(value)
        yield known.get(id(value))


def unpack(packed: Packed) -> Any:
    """What `pack` was given. Its tensors share no memory with those that were packed, and can be written to."""
    pickled, *large = (packed,) if isinstance(packed, bytes) else packed
    return pickle.loads(pickled, buffers=large)


def _reduce(tensor: Tensor) -> tuple[Any, ...]:
    dtype = tensor.dtype
    if dtype in _STAND_IN:
        tensor = tensor.detach().view(_STAND_IN[dtype])
    data = tensor.contiguous().numpy(force=True).data
    return _tensor, (PickleBuffer(data) if data.nbytes >= LARGE else bytearray(data), dtype, tuple(tensor.shape))


def _tensor(buffer: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """What lay in the pickle is a bytearray of ours; what Ray brought is read-only memory of its store."""
    own = buffer if isinstance(buffer, bytearray) else bytearray(buffer)
    return torch.frombuffer(own, dtype=dtype).view(shape) if own else torch.empty(shape, dtype=dtype)


class _Pickler(pickle.Pickler):
    # A plain dict, which is looked up without running Python code.
    dispatch_table = {**copyreg.dispatch_table, Tensor: _reduce}  # noqa: RUF012 - read by the pickler, never changed


# Types without a counterpart in numpy, and those that stand in for them: only the bytes count.
_STAND_IN = {torch.bfloat16: torch.int16}
