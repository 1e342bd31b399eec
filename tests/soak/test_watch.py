"""What the soak starts leaves nothing outside of its folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.soak.watch import own_places

STEP = """
import torch
model = torch.nn.Linear(1, 1)
model(torch.ones(1)).sum().backward()
torch.optim.AdamW(model.parameters()).step()
"""


def test_torch_makes_its_folder_in_the_soaks(tmp_path: Path) -> None:
    temporary, own = tmp_path / "tmp", tmp_path / "own"
    temporary.mkdir()
    before = {name: value for name, value in os.environ.items() if not name.startswith("TORCHINDUCTOR_")}
    environ = {**before, "TMPDIR": str(temporary), **own_places(own)}
    subprocess.run([sys.executable, "-c", STEP], env=environ, check=True)
    assert list(temporary.iterdir()) == []
    assert [each.name for each in own.iterdir()] == ["torchinductor"]
