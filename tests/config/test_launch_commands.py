"""The six launch commands of the README, typed as it says: the trainer checks each of them, and starts nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.config.conftest import SEED_SCRIPTS, write_rows
from tests.pace import stretched

REPOSITORY = Path(__file__).resolve().parents[2]
CHECKED = re.compile(r"^\$ (sed .*trainer\.main_ppo --check.* tests/config/seeds/(\w+\.sh) \| bash)$", re.MULTILINE)
# What submits or starts the command on a cluster that this machine has not: here it runs what it is given.
RUNS_IT = '#!/bin/sh\nwhile [ "$1" != python3 ]; do shift; done\nexec "$@"\n'
SET = "export train_data=nq test_data=nq; "  # what lint says that 003_search_r1 never sets
ELSEWHERE = {"001_dstack.sh": "/root/data/gsm8k"}  # whose data lie where no test may write


def typed(script: str) -> str:
    """What the README has one type, with another of its scripts."""
    command = CHECKED.search((REPOSITORY / "README.md").read_text(encoding="utf-8"))
    assert command
    return command[1].replace(command[2], script)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """With the data where the scripts say that they are, and the folder in which one types."""
    for folder in ("home/data/gsm8k", "home/data/math", "data/gsm8k", "work/data/nq_search"):
        for name in ("train", "test"):
            write_rows(tmp_path / folder / f"{name}.parquet", 2048)
    (tmp_path / "work" / "tests").symlink_to(REPOSITORY / "tests")
    (tmp_path / "bin").mkdir()
    for name in ("ray", "srun"):
        (tmp_path / "bin" / name).write_text(RUNS_IT)
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path / "home"


def test_six_are_in_its_table() -> None:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+\.sh)` \|", text, re.MULTILINE) == [script.name for script in SEED_SCRIPTS]


@pytest.mark.parametrize("script", [script.name for script in SEED_SCRIPTS])
def test_a_launch_command_is_checked(script: str, home: Path) -> None:
    path = f"{home.parent / 'bin'}:{Path(sys.executable).parent}:/usr/bin:/bin"
    environment = {"PATH": path, "HOME": str(home), "PYTHONPATH": str(REPOSITORY), "LANG": "C.UTF-8"}
    done = subprocess.run(
        ["bash", "-c", SET + typed(script)],
        cwd=home.parent / "work",
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=stretched(120),
        check=False,
    )
    said = done.stdout + done.stderr
    errors = re.findall(r"^error: (.*)$", said, re.MULTILINE)
    if folder := ELSEWHERE.get(script):
        files = {"data.train_files": "train", "data.val_files": "test"}
        # Who is not root may not even look there, and may not make its folder for checkpoints, /checkpoints.
        missing = [re.split(r" (?:does not exist|is no path)", error)[0] for error in errors if "_dir=" not in error]
        assert missing == [f"{key}: {folder}/{name}.parquet" for key, name in files.items()], said
    else:
        assert errors == [] and re.search(r"^total_steps = [1-9]", said, re.MULTILINE), said
