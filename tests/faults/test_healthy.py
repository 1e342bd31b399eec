"""Runs that are well: nothing is said of them.

`DEVKIT_HEALTHY_RUNS=20` makes that many.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.faults import cluster
from tests.faults.cluster import PROGRAMS, Cluster
from tests.hosts.launching import PYTHON, document, eventually

WAYS = ("steady", "uneven", "straggles", "saves", "loads", "builds")
RUNS = int(os.environ.get("DEVKIT_HEALTHY_RUNS", "3"))
SECONDS = 14
PATIENCE = "4"  # seconds without progress until the watchdog speaks
pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]


@pytest.fixture(scope="module")
def three() -> Iterator[Cluster]:
    with cluster.up() as made:
        yield made


@pytest.mark.parametrize("number", range(RUNS))
def test_nothing_is_said(three: Cluster, number: int) -> None:
    way = WAYS[number % len(WAYS)]
    log = three.share / f"{number}.log"
    command = ("-m", "devkit", "run", "--hang-timeout", PATIENCE, "--", PYTHON, str(PROGRAMS / "healthy.py"), way)
    with log.open("w") as out:
        run = three.head.popen(PYTHON, *command, str(SECONDS), env=three.environ, stdout=out, stderr=out)
        with run:
            try:
                eventually(lambda: trains(three), "training")
                found = document(three.head, "hang", env=three.environ, code=None)
                assert (found["hang"], found["kind"]) == (False, "moves"), found
                assert run.wait(120) == 0, log.read_text()
            finally:
                run.kill()
    said = log.read_text()
    assert "steps [" in said and "no progress" not in said, said


def trains(three: Cluster) -> bool:
    """Whether all ranks are in the job, and one has made a step."""
    workers = document(three.head, "ps", env=three.environ, code=None).get("workers", [])
    return {each["rank"] for each in workers if each["role"] == "Trainer" and each["connected"]} == {0, 1, 2}
