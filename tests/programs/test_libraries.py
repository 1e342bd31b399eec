"""Programs of Ray's libraries, debugged as their users would: stop, look, go on, and what went wrong in the end."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.debug.conftest import Job
from tests.programs.conftest import DEADLINE, SCRIPTS, at, crashes_of, first_error, line, needs, next_stop, value

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]
Launch = Callable[..., Job]


def begin(launch: Launch, script: str, *arguments: object, stop: str = "", **options: str) -> Job:
    """A script under `devkit run`, with a breakpoint."""
    words = [word for name, text in options.items() for word in (f"--{name}", text)]
    points = ["--break", stop] if stop else []
    return launch(*points, *words, "--", sys.executable, str(SCRIPTS / script), *map(str, arguments))


def failed_at(job: Job, script: str, mark: str) -> str:
    """The exception of its only crash, which is at that line, and of the first error too."""
    [crash] = crashes_of(job)
    assert (Path(crash["file"]).name, crash["line"]) == (script, line(script, mark)), crash
    assert f"{script}:{crash['line']} in {crash['function']}" in (page := first_error(job)), page
    said: str = crash["exception"]["type"]
    assert f"first error: {said}" in page, page
    return said


@needs("ray.tune", "tensorboardX", "pandas")
def test_a_trial_of_tune_stops_and_another_one_fails(launch: Launch, tmp_path: Path) -> None:
    job = begin(
        launch, "tune_trials.py", tmp_path, stop=at("tune_trials.py", "step", "if config['width'] == 2 and score == 1")
    )
    stop = next_stop(job)
    assert stop["function"] == "train" and value(job.cluster, stop, "config") == "{'width': 2}"
    job.resume()
    assert job.end(DEADLINE) == 0 and "errors 1 best {'width': 2}" in job.out, job.out
    assert failed_at(job, "tune_trials.py", "step") == "ZeroDivisionError"
    assert "its driver exited without an error" in first_error(job)


@needs("ray.data", "pandas", "pyarrow")
def test_a_batch_of_data_stops_and_another_one_fails(launch: Launch) -> None:
    job = begin(launch, "data_batches.py", 40, stop=at("data_batches.py", "fails"))
    stop = next_stop(job)
    assert stop["function"] == "normalize" and stop["role"] == "MapBatches(normalize)"
    assert value(job.cluster, stop, "31 in batch['id'] and len(batch['id'])") == "10"
    job.resume()
    assert job.end(DEADLINE) == 1, job.out
    assert failed_at(job, "data_batches.py", "fails") == "ValueError"
    assert "(FAILED)" in first_error(job)


@needs("ray.serve", "fastapi", "uvicorn", "starlette")
def test_an_async_handler_of_serve_stops_and_later_fails(launch: Launch) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
    job = begin(launch, "serve_async.py", port, stop=at("serve_async.py", "greet", "if words[:1] == ['alan']"))
    stop = next_stop(job)
    assert stop["function"] == "Greeter.greet" and value(job.cluster, stop, "words") == "['alan', 'turing']"
    job.resume()
    assert job.end(DEADLINE) == 0, job.out
    assert "200 hello ada" in job.out and "200 hello alan" in job.out and "500 " in job.out
    assert failed_at(job, "serve_async.py", "greet") == "IndexError"
    assert "its driver exited without an error" in first_error(job)


@needs("dask")
def test_a_graph_of_dask_stops_and_fails(launch: Launch) -> None:
    job = begin(launch, "dask_graph.py", stop=at("dask_graph.py", "total", "if len(rows) == 3"))
    stop = next_stop(job)
    assert stop["function"] == "total" and value(job.cluster, stop, "rows, added") == "([0, 1, 2], 3)"
    job.resume()
    assert job.end(DEADLINE) == 1 and "totals (0, 1, 3)" in job.out, job.out
    assert failed_at(job, "dask_graph.py", "fails") == "ZeroDivisionError"


@needs("gymnasium", "tree", "scipy", install="make test-programs HEAVY=1")
def test_an_env_runner_of_rllib_stops(launch: Launch) -> None:
    place = "ray.rllib.env.single_agent_env_runner:SingleAgentEnvRunner.sample @SingleAgentEnvRunner"
    job = begin(launch, "rllib_ppo.py", stop=place)
    stop = next_stop(job)
    assert stop["role"] == "SingleAgentEnvRunner" and value(job.cluster, stop, "self.worker_index") == "1"
    [point] = [each for each in job.cluster.json("ps")["breakpoints"] if place in each["spec"]]
    job.cluster.devkit("break", "--clear", point["id"])
    job.resume()
    assert job.end(DEADLINE) == 0 and "steps 200" in job.out, job.out
