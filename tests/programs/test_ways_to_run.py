"""Other ways to bring a program to Ray, and what else may be in its workers: uploads, a notebook, coverage, uvloop."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.debug.conftest import Cluster, Job, eventually
from tests.programs.conftest import DEADLINE, SCRIPTS, at, crashes_of, first_error, go_on, line, needs, next_stop, value

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]
Launch = Callable[..., Job]
SCALE = at("project/steps/scale.py", "scale", "if number == 2")
JUPYTER = str(Path(sys.executable).with_name("jupyter"))


def test_a_module_of_an_uploaded_folder(launch: Launch) -> None:
    """The breakpoint names the user's own file; the workers have a copy of it."""
    project = SCRIPTS / "project"
    job = launch("--break", SCALE, "--", sys.executable, str(project / "main.py"), str(project))
    stop = next_stop(job)
    assert "_ray_pkg_" in stop["file"] and value(job.cluster, stop, "self.factor, scaled") == "(3, 6)"
    assert "steps/scale.py:" in (page := job.cluster.devkit("ps")) and "_ray_pkg_" not in page, page
    job.resume()
    assert job.end(DEADLINE) == 0 and "scaled [3, 6]" in job.out, job.out


def test_a_submitted_folder(cluster: Cluster) -> None:
    words = ["submit", "--break", SCALE, "--working-dir", str(SCRIPTS / "project"), "--", sys.executable, "main.py"]
    command = [sys.executable, "-m", "devkit", *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, env=cluster.environ, cwd="/", stdout=pipe, stderr=subprocess.STDOUT, text=True
    ) as job:
        try:
            [stop] = eventually(lambda: scalers(cluster), "the stop", DEADLINE)
            assert value(cluster, stop, "scaled") == "6"
            cluster.devkit("continue", stop["id"])
            out, _ = job.communicate(timeout=DEADLINE)
            assert job.returncode == 0 and "scaled [3, 6]" in out, out
        finally:
            job.kill()


def scalers(cluster: Cluster) -> list[dict[str, object]]:
    stops: list[dict[str, object]] = cluster.json("ps", check=None).get("stops", [])
    return [stop for stop in stops if str(stop["file"]).endswith("steps/scale.py")]


@needs("nbclient", "ipykernel")
def test_a_notebook(launch: Launch) -> None:
    """A breakpoint in a module that a cell imports, and `breakpoint()` in a cell's own function."""
    job = launch("--break", at("measured.py", "plus"), "--", JUPYTER, "execute", str(SCRIPTS / "cells.ipynb"))
    stop = next_stop(job)
    assert stop["function"] == "sign" and value(job.cluster, stop, "number") == "5"
    go_on(job, stop)
    stop = next_stop(job)
    assert stop["function"] == "halve" and value(job.cluster, stop, "number, half") == "(6, 3.0)"
    go_on(job, stop)
    assert job.end(DEADLINE) == 0, job.out
    [crash] = crashes_of(job)
    assert (crash["exception"]["type"], crash["function"]) == ("TypeError", "halve")
    assert "TypeError: unsupported operand" in first_error(job)


@needs("coverage")
def test_the_tracer_of_coverage_goes_on_beside_ours(launch: Launch, tmp_path: Path) -> None:
    from coverage import CoverageData

    data = tmp_path / "coverage"
    job = launch("--break", at("measured.py", "plus"), "--", sys.executable, str(SCRIPTS / "covered.py"), str(data))
    for number in (3, 5):
        stop = next_stop(job)
        assert stop["function"] == "sign" and value(job.cluster, stop, "number") == str(number)
        go_on(job, stop)
    assert job.end(DEADLINE) == 0 and "signs ['plus', 'plus']" in job.out, job.out
    plus, minus = (line("measured.py", mark) for mark in ("plus", "minus"))
    for file in tmp_path.glob("coverage.*"):
        (measured := CoverageData(str(file))).read()
        found = set(measured.lines(str(SCRIPTS / "measured.py")) or ())
        assert {plus, minus - 1, minus + 1} <= found and minus not in found, found
    assert len(list(tmp_path.glob("coverage.*"))) == 2


@needs("uvloop")
def test_an_async_actor_on_uvloop(launch: Launch) -> None:
    job = launch("--break", at("uvloop_actor.py", "pay"), "--", sys.executable, str(SCRIPTS / "uvloop_actor.py"))
    seen = set()
    for _ in range(2):
        stop = next_stop(job)
        assert stop["function"] == "Account.pay"
        seen.add(value(job.cluster, stop, "before, amount"))
        go_on(job, stop)
    assert seen == {"(0, 1)", "(0, 10)"}
    assert job.end(DEADLINE) == 0 and "loop uvloop" in job.out and "money [1, 10]" in job.out, job.out
