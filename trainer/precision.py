"""The precision of a model, under the name that the installed transformers has for it."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def in_precision(dtype: torch.dtype) -> dict[str, Any]:
    """What `from_pretrained` and `from_config` take: `dtype=`, and in transformers before 4.56 `torch_dtype=`.

    The older ones hand `dtype` on to the model, which refuses it; the newer ones warn of the older name.
    """
    return {_keyword(): dtype}


@cache
def _keyword() -> str:
    major, minor = (int(part) for part in version("transformers").split(".")[:2])
    return "dtype" if (major, minor) >= (4, 56) else "torch_dtype"
