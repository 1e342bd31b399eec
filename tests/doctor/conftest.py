"""A cluster of two simulated nodes of its own: tests stop one of them now and then."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.debug.conftest import Cluster, start


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    folder = Path("/tmp") / f"dd{secrets.token_hex(3)}"  # Ray's sockets need a short path
    folder.mkdir(mode=0o700)
    made = start(folder)
    yield made
    made.devkit("debug-cluster", "stop")
    shutil.rmtree(folder, ignore_errors=True)
