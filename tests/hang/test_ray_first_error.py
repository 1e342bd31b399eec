"""The first error of a job that ran without devkit, on a Ray that knows nothing of it."""

from __future__ import annotations

import json
import secrets
import shutil
import socket
import subprocess
import sys
import tarfile
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests import documents
from tests.debug.conftest import DEADLINE, PROGRAMS, environment, eventually, mark

PROGRAM = "first_error.py"
SECRET = "abc" * 5
RAY = str(Path(sys.executable).with_name("ray"))


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return int(server.getsockname()[1])


@pytest.fixture(scope="module")
def plain_ray() -> Iterator[dict[str, str]]:
    """The environment in which `ray` and devkit find a Ray of one node, as users start it."""
    folder = Path("/tmp") / f"dk{secrets.token_hex(3)}"
    folder.mkdir(mode=0o700)
    url = f"http://127.0.0.1:{(port := free_port())}"
    environ = {**environment(folder, "disabled"), "RAY_API_SERVER_ADDRESS": url, "RAY_DASHBOARD_URL": url}
    # Tasks of a worker that its job's end kills are in Ray's table only if it has reported them by then.
    environ["RAY_task_events_report_interval_ms"] = "100"
    ports = [f"--{name}={free_port()}" for name in ("port", "dashboard-agent-listen-port", "metrics-export-port")]
    command = [RAY, "start", "--head", "--block", "--num-cpus=4", *ports]
    log = (folder / "log").open("w")
    ray = subprocess.Popen(
        [*command, f"--dashboard-port={port}", f"--temp-dir={folder}/ray"], env=environ, stdout=log, stderr=log
    )
    try:
        eventually(lambda: answers(f"{url}/api/jobs/"), "a Ray with a dashboard")
        yield environ
    finally:
        ray.terminate()
        ray.wait(DEADLINE)
        log.close()
        shutil.rmtree(folder, ignore_errors=True)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def devkit(environ: dict[str, str], *arguments: str, check: int | None = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "devkit", *arguments]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=DEADLINE)
    assert check is None or done.returncode == check, f"{arguments}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def test_the_cause_is_told_and_not_what_came_of_it(plain_ray: dict[str, str], tmp_path: Path) -> None:
    submit = [RAY, "job", "submit", "--", sys.executable, str(PROGRAMS / PROGRAM)]
    done = subprocess.run(submit, env=plain_ray, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 1 and "ActorDiedError" in done.stdout + done.stderr
    # when nobody says which job is meant
    bundle = tmp_path / "bug.tar.gz"
    said = devkit(plain_ray, "logs", "--first-error", "--bundle", str(bundle), "--json", check=1)
    found: dict[str, Any] = json.loads(said.stdout)
    documents.check_output(["logs"], found)
    cause = found["cause"]
    assert (cause["type"], cause["message"]) == ("KeyError", "'response'")
    assert (Path(cause["file"]).name, cause["line"]) == (PROGRAM, mark(PROGRAM, "cause"))
    assert cause["role"].startswith("Rank") and cause["pid"] > 0 and found["sure"]
    assert len(cause["seen"]) > 1, "the row of the inner task, and of the outer one"
    whys = {each["why"] for each in found["followed"]}
    assert any("died" in why for why in whys), found["followed"]
    # and of the actor that left by itself in the same moment nobody can say that it follows
    assert [each["type"] for each in found["others"]] in ([], ["ProcessDied"]), found["others"]
    # then the bundle has the driver's log, and no secret
    with tarfile.open(bundle) as tar:
        content = {name: tar.extractfile(name).read().decode() for name in tar.getnames()}  # type: ignore[union-attr]
    assert any("/job-driver-" in name for name in content) and "first error: KeyError" in content["report.txt"]
    assert [name for name, text in content.items() if SECRET in text] == []


def test_a_command_that_is_not_there(plain_ray: dict[str, str]) -> None:
    submit = [RAY, "job", "submit", "--submission-id=typo", "--", "pythonn", "t.py"]
    subprocess.run(submit, env=plain_ray, capture_output=True, text=True, timeout=DEADLINE)
    found = json.loads(devkit(plain_ray, "logs", "typo", "--first-error", "--json", check=1).stdout)
    assert "not found" in found["cause"]["message"], found


def test_a_job_without_an_error(plain_ray: dict[str, str]) -> None:
    submit = [RAY, "job", "submit", "--submission-id=fine", "--", "true"]
    subprocess.run(submit, env=plain_ray, capture_output=True, text=True, timeout=DEADLINE, check=True)
    said = devkit(plain_ray, "logs", "fine", "--first-error").stdout
    assert said.startswith("no error was found in job fine (SUCCEEDED)")
