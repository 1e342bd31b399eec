"""One of verl's own tests for a CPU, as its wheel has it, in a rank of its worker group."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.debug.conftest import Cluster, Job, environment, short_folder
from tests.programs.conftest import DEADLINE, value

VERL = Path(sys.prefix) / "verl"  # not among what is installed: it has a package `tests`
PLAIN = ("-s", "-c", "/dev/null", "--noconftest", "-p", "no:cacheprovider")  # its own, without this project's
PADDING = VERL / "tests" / "single_controller" / "test_auto_padding_on_cpu.py"
LATE = 400.0  # seconds: four ranks, and each loads torch and verl
pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(700),
    pytest.mark.skipif(not PADDING.exists(), reason="no verl here: make test-programs HEAVY=1"),
]


@pytest.fixture
def own_ray() -> Iterator[Cluster]:
    """Where verl's test starts a Ray: it wants one of 100 CPUs, for which Ray would start workers ahead."""
    few = {"RAY_prestart_worker_first_driver": "0"}
    with short_folder() as folder:
        yield Cluster("", "", {**environment(folder), **few, "PYTHONPATH": str(VERL)})


def test_a_worker_group_pads_what_its_ranks_get(own_ray: Cluster) -> None:
    add = next(n for n, text in enumerate(PADDING.read_text().splitlines(), 1) if "+= self.rank" in text)
    pytest_ = [sys.executable, "-m", "pytest", *PLAIN, str(PADDING)]
    job = Job(own_ray, "--break", f"{PADDING}:{add} @Actor[2] if len(data) == 3", "--hits", "1", "--", *pytest_)
    try:
        [stop] = job.stops(seconds=LATE)
        assert stop["rank"] == 2 and stop["function"] == "Actor.add"
        assert value(own_ray, stop, "self.world_size, data.batch['a'].tolist()") == "(4, [0.0, 0.0, 0.0])"
        own_ray.devkit("continue", stop["id"])  # and with the program its Ray ends
        assert job.end(DEADLINE) == 0 and "1 passed" in job.out, job.out
    finally:
        job.kill()
