"""Many short tasks, and an actor that comes back."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.debug.conftest import Job, eventually
from tests.programs.conftest import DEADLINE, SCRIPTS, at, crashes_of, go_on, next_stop, value

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]
Launch = Callable[..., Job]


def test_one_of_200_short_tasks(launch: Launch) -> None:
    job = launch(
        "--break",
        at("many_tasks.py", "result", "if number == 137"),
        "--",
        sys.executable,
        str(SCRIPTS / "many_tasks.py"),
    )
    stop = next_stop(job)
    assert value(job.cluster, stop, "number, result") == "(137, 18769)"
    [point] = [each for each in job.cluster.json("ps")["breakpoints"] if "many_tasks.py" in each["spec"]]
    assert (point["hits"], point["error"]) == (1, "")
    job.resume()
    assert job.end(DEADLINE) == 0 and f"sum {sum(number * number for number in range(200))}" in job.out, job.out
    assert not crashes_of(job)


def test_an_actor_that_dies_and_comes_back(launch: Launch, tmp_path: Path) -> None:
    script = str(SCRIPTS / "comes_back.py")
    job = launch("--break", at("comes_back.py", "count"), "--", sys.executable, script, str(tmp_path / "died"))
    processes = []
    for number in (1, 2):
        stop = next_stop(job)
        assert value(job.cluster, stop, "number") == str(number)
        processes.append(stop["pid"])
        go_on(job, stop)
    assert job.end(DEADLINE) == 0 and "after 4" in job.out, job.out
    assert len(set(processes)) == 2
    [crash] = eventually(lambda: crashes_of(job), "the crash")
    assert (crash["role"], crash["pid"]) == ("Counter", processes[0]), crash
