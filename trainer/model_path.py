"""Where a rank finds a model: in a folder of its node, or on the hub; and what libraries raise of one."""

from __future__ import annotations

import os
import socket

from huggingface_hub import errors
from safetensors import SafetensorError

from trainer.errors import ModelError

# What transformers raises for folders that are missing, incomplete, corrupt, of another shape or of odd values.
UNREADABLE: tuple[type[Exception], ...] = (
    *(OSError, ValueError, RuntimeError, SafetensorError, TypeError, KeyError, AttributeError, ArithmeticError),
    *(IndexError, AssertionError, ImportError, getattr(errors, "StrictDataclassError", ValueError)),  # a newer hub's
)


def reason(error: Exception) -> str:
    """What such an error says, in one line.

    >>> reason(ValueError("in field 'x':\\n   it is no number"))
    "in field 'x': it is no number"
    """
    lines = (str(error) or type(error).__name__).strip().splitlines()
    return " ".join([lines[0], *(line.strip() for line in lines[1:2] if lines[0].endswith(":"))])


def local_path(path: str) -> str:
    """A folder with `~` expanded; a hub id as it stands.

    Raises ModelError for what can only be a folder, and is none here: the hub would be asked for it in vain.
    """
    expanded = os.path.expanduser(path)
    if os.path.isdir(expanded):
        return expanded
    if os.path.isabs(expanded):
        raise ModelError(
            f"there is no folder {expanded} on {socket.gethostname()}",
            hint="put the model where every node sees it under this path, or give a hub id such as org/name",
        )
    return path
