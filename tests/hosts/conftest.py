"""Tests on virtual hosts are skipped, with the reason, where there can be none."""

from __future__ import annotations

import fcntl
import subprocess
from pathlib import Path

import pytest

from tests.hosts import hosts


@pytest.fixture(scope="session", autouse=True)
def _needs_hosts() -> None:
    with Path("/tmp/devkit-hosts-install.lock").open("w") as file:  # apt-get is for one test worker at a time
        fcntl.flock(file, fcntl.LOCK_EX)
        install = subprocess.run([hosts.REPOSITORY / "tests/hosts/install"], capture_output=True, text=True)
    if install.returncode or hosts.problem():
        pytest.skip(hosts.problem() or install.stderr.splitlines()[0])
