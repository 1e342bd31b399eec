"""Nothing ends a run beside a stopped rank: not the time-outs of torch.distributed, not Ray Train's health check.

These stops last longer than what used to end the run; they have to, and it is all that they wait for.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tests.pace import stretched

from .conftest import PROGRAMS, Cluster, Job, mark, short_folder, start
from .look import Look

pytestmark = pytest.mark.ray
HEALTHY = stretched(5.0)  # seconds that Ray Train waits for a worker to say that it is well


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Of these tests' own: what hundreds of jobs have left on the common one is not what they are about."""
    with short_folder() as folder:
        made = start(folder)
        yield made
        made.devkit("debug-cluster", "stop")


def test_a_gloo_group_with_4_seconds_outlives_a_stop_of_10(launch: Callable[..., Job], cluster: Cluster) -> None:
    spec = f"{PROGRAMS / 'hang.py'}:{mark('hang.py', 'apart')} @Rank[1]"
    job = launch("--break", spec, "--", sys.executable, str(PROGRAMS / "hang.py"))
    [stop] = job.stops()
    assert (stop["role"], stop["rank"]) == ("Rank", 1)  # torch.distributed says so, and nobody else
    time.sleep(10)
    assert [each["id"] for each in cluster.ps(job.id)["stops"]] == [stop["id"]]
    job.resume()
    assert job.end() == 0, job.out
    assert "result [7.0, 7.0]" in job.out


@pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="Ray Train needs ray[train]")
def test_ray_train_outlives_a_stop_of_more_than_twice_its_health_checks_time(cluster: Cluster) -> None:
    """The limit is the user's own, so it stays: beside the stopped thread another one answers the health check."""
    strict = replace(cluster, environ={**cluster.environ, "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": f"{HEALTHY:g}"})
    spec = f"{PROGRAMS / 'train.py'}:{mark('train.py', 'train')} @[1] if step == 1"
    job = Job(strict, "--break", spec, "--", sys.executable, str(PROGRAMS / "train.py"))
    try:
        [stop] = job.stops()
        assert (stop["rank"], stop["function"]) == (1, "work")
        with cluster.connect() as hub:
            client, _, frame = Look(hub, job.id).debugger(stop)  # with a client, which suspends debugpy's whole process
            time.sleep(2.5 * HEALTHY)
            now = cluster.ps(job.id)  # says why, if it is not there any more
            assert [each["id"] for each in now["stops"]] == [stop["id"]], (now["gone"], job.out)
            assert client.evaluate("total", frame) == "0"
            client.ask("disconnect")
        job.resume()
        assert job.end() == 0, job.out
        assert "error None" in job.out
    finally:
        job.kill()
