"""Globals that have gone to the workers, and that the driver has changed since."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from devkit.debug.inworker import sent_globals
from tests.debug.conftest import PROGRAMS, Cluster, Job, mark

PROGRAM = "stale_globals.py"
CACHE: dict[int, float] = {}
RATE, TABLE, COUNTER, OTHER = 0.5, [1, 2], 0, object()


def helper() -> Any:
    return TABLE


def task() -> Any:
    return RATE, helper(), [COUNTER for _ in range(2)]


def counts() -> None:
    global COUNTER
    COUNTER += 1


def caches(row: int) -> float:
    if row not in CACHE:
        CACHE[row] = row * RATE
    return CACHE[row]


class Base:
    def rate(self) -> Any:
        return RATE


class Actor(Base):
    async def step(self) -> Any:
        return OTHER, self.RATE, helper()  # type: ignore[attr-defined] - an attribute is no global


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sent_globals, "MAIN", __name__)


@pytest.mark.usefixtures("main")
def test_what_a_function_and_a_class_take_along() -> None:
    assert dict(sent_globals.taken_along(task)) == {"RATE": 0.5, "TABLE": [1, 2], "COUNTER": 0}
    assert dict(sent_globals.taken_along(counts)) == {}, "what it counts itself is its worker's own"
    assert dict(sent_globals.taken_along(Actor)) == {"OTHER": OTHER, "TABLE": [1, 2], "RATE": 0.5}
    assert dict(sent_globals.taken_along(caches)) == {"RATE": 0.5}, "and what it fills"
    assert dict(sent_globals.taken_along(sys)) == {} == dict(sent_globals.taken_along(3))


@pytest.mark.verdicts
def test_a_program_that_changes_them_is_told_so_at_its_end(cluster: Cluster) -> None:
    job = Job(cluster, "--", sys.executable, str(PROGRAMS / PROGRAM))
    try:
        assert job.end() == 0, job.out
    finally:
        job.kill()
    at = [f"{PROGRAMS / PROGRAM}:{mark(PROGRAM, name)}: DevkitWarning: " for name in ("made", "sent", "sent")]
    lines = [line for line in job.out.splitlines() if "DevkitWarning" in line]
    assert all(line.startswith(each) for line, each in zip(lines, at, strict=True)), lines
    said = [line.partition("DevkitWarning: ")[2] for line in lines]
    assert [line.partition(" when ")[0] for line in said] == [
        "LIMITS is {'low': 1, 'high': 12} in the driver, and was {'low': 1, 'high': 9}",
        "API_KEY is <redacted> in the driver, and was <redacted>",
        "COEFFICIENT is 0.8 in the driver, and was 0.1",
    ]
    assert said[2].endswith("when loss was sent to the workers here: they keep what it was then")
    assert "sk-" not in job.out
