"""Weights that are written are as readable as what lies beside them: the user's umask says to whom."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import torch

from trainer.learner.checkpoint import write_safetensors


@pytest.mark.parametrize(("umask", "wanted"), [(0o022, 0o644), (0o077, 0o600), (0o007, 0o660)])
def test_exported_weights_follow_the_umask(umask: int, wanted: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        write_safetensors({"a": torch.ones(300), "b": torch.ones(300)}, tmp_path, shard_size="1KB")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert len(modes) == 3 and set(modes.values()) == {wanted}, modes
