"""Checks that share clusters and go from top to bottom, so that each file of them runs in one process of its own.

For a single one: `pytest -n0 tests/debug/cluster_checks.py -k NAME`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["cluster_checks", "bad_input_checks"])
def test_every_check_passes(name: str) -> None:
    command = [sys.executable, "-m", "pytest", "-n0", "-q", "-p", "no:cacheprovider", str(HERE / f"{name}.py")]
    environ = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=840, cwd=HERE.parents[1], env=environ)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
