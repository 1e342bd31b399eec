"""Records across process borders: tensors travel as numpy arrays, which Ray moves without pickling their bytes.

Ray pickles a torch tensor nine times slower than the same bytes in an array (docs/decisions); bf16 has no numpy type
and goes as int16.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from torch import Tensor


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


def _walk(value: Any, change: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = {f.name: change(getattr(value, f.name)) for f in dataclasses.fields(value)}
        same = all(changed[name] is getattr(value, name) for name in changed)
        return value if same else dataclasses.replace(value, **changed)
    if type(value) is dict:
        return {key: change(item) for key, item in value.items()}
    if type(value) is list:
        return [change(item) for item in value]
    if type(value) is tuple:
        changed_items = tuple(change(item) for item in value)
        return value if all(a is b for a, b in zip(changed_items, value, strict=True)) else changed_items
    return value
