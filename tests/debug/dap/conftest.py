"""A hub without Ray, for tests of the debug adapter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.debug.hubs import RunningHub, running_hub


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[RunningHub]:
    with running_hub(tmp_path / "crashes") as hub:
        yield hub
