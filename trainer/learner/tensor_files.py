"""Safetensors files as readable as those beside them: the library itself makes them for their owner alone."""

from __future__ import annotations

import stat
from pathlib import Path

import torch
from safetensors.torch import save_file


def save_tensors(tensors: dict[str, torch.Tensor], path: Path) -> None:
    """Writes one file, whose mode follows the user's umask. Raises OSError, SafetensorError."""
    path.touch()
    mode = stat.S_IMODE(path.stat().st_mode)  # os.umask would have to change it to tell it, for all threads
    save_file(tensors, path, metadata={"format": "pt"})
    path.chmod(mode)
