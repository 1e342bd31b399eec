"""Records across process borders: tensors travel as numpy arrays, which Ray moves without pickling their bytes.

Ray pickles a torch tensor nine times slower than the same bytes in an array (docs/decisions); bf16 has no numpy type
and goes as int16.
"""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.records import Row


@dataclasses.dataclass(frozen=True)
class _Packed:
    array: np.ndarray[Any, Any]
    bfloat16: bool


def pack(value: Any) -> Any:
    """`value` with each tensor in it, at any depth of records, tuples, lists and dicts, as an array."""
    if isinstance(value, Tensor):
        host = value.detach().cpu().contiguous()
        bfloat16 = host.dtype == torch.bfloat16
        return _Packed((host.view(torch.int16) if bfloat16 else host).numpy(), bfloat16)
    return _walk(value, pack)


def unpack(value: Any) -> Any:
    """What `pack` was given. The tensors are copies: the arrays that Ray hands over are read-only."""
    if isinstance(value, _Packed):
        tensor = torch.from_numpy(value.array.copy())
        return tensor.view(torch.bfloat16) if value.bfloat16 else tensor
    return _walk(value, unpack)


_LEAVES = frozenset({Row, str, int, float, bool, type(None)})  # what holds no tensor; a batch has mostly rows


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else ()


def _walk(value: Any, change: Any) -> Any:
    kind = type(value)
    if kind in _LEAVES or (kind is tuple and value and type(value[0]) is Row):
        return value
    if names := _names(kind):  # type: ignore[arg-type]
        changed = {name: change(getattr(value, name)) for name in names}
        same = all(changed[name] is getattr(value, name) for name in names)
        return value if same else dataclasses.replace(value, **changed)
    if kind is dict:
        return {key: change(item) for key, item in value.items()}
    if kind is list:
        return [change(item) for item in value]
    if kind is tuple:
        changed_items = tuple(change(item) for item in value)
        return value if all(a is b for a, b in zip(changed_items, value, strict=True)) else changed_items
    return value
