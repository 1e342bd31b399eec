"""`devkit dap` as a process, driven by `@vscode/debugadapter-testsupport`: a client that was not written here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devkit.debug.inworker import snapshot
from tests.debug import debuggee
from tests.debug.conftest import locked
from tests.debug.dap.support import Worker, until
from tests.debug.hubs import RunningHub
from tests.pace import stretched

HERE = Path(__file__).parent
INSTALL_SECONDS = stretched(90)
SESSION_SECONDS = stretched(60)
MARKS = ("pause", "batch", "forward")


@pytest.fixture(scope="module")
def project(request: pytest.FixtureRequest) -> Path:
    """A folder with what `package-lock.json` names, kept in pytest's cache; without node or a registry a skip."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    assert request.config.cache is not None
    folder = request.config.cache.mkdir("devkit-dap-node")
    with locked(folder / "lock"):  # xdist's workers share it
        install(folder)
    return folder


def install(folder: Path) -> None:
    lock = (HERE / "package-lock.json").read_text()
    done = folder / "installed.json"
    if done.is_file() and done.read_text() == lock:
        return
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / name, folder / name)
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    try:
        result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm ci did not end within {INSTALL_SECONDS} s: is its registry reachable?")
    if result.returncode:
        pytest.skip(f"npm ci failed: {result.stderr.strip()[-300:]}")
    done.write_text(lock)


@pytest.fixture
def workers(hub: RunningHub) -> Iterator[list[Worker]]:
    workers = [Worker(rank) for rank in range(2)]
    for worker in workers:
        worker.join(hub)
        worker.start(debuggee.train)
        until(worker.stops.records)
    yield workers
    for worker in workers:
        worker.finish()


def session(project: Path, hub: RunningHub, name: str, **options: Any) -> int:
    """Runs a scenario; the adapter's exit code."""
    lines = Path(debuggee.__file__).read_text().splitlines()
    marks = {mark: next(number for number, line in enumerate(lines, 1) if f"# @{mark}" in line) for mark in MARKS}
    environment = {
        **os.environ,
        "DEVKIT_TEST_NODE": str(project),
        "DEVKIT_TEST_PYTHON": sys.executable,
        "DEVKIT_TEST_ADAPTER": str(HERE / "adapter_main.py"),
        "DEVKIT_TEST_PORT": str(hub.port),
        "DEVKIT_TEST_OPTIONS": json.dumps(options),
        "DEVKIT_TEST_LINES": json.dumps(marks),
        "DEVKIT_TEST_FILE": debuggee.__file__,
    }
    result = subprocess.run(
        ["node", str(HERE / "sessions.js"), name],
        env=environment,
        cwd=HERE.parents[2],
        capture_output=True,
        text=True,
        timeout=SESSION_SECONDS,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    code = json.loads(result.stdout.splitlines()[-1])["code"]
    assert isinstance(code, int), "the adapter was ended by a signal"
    return code


def test_one_stop(project: Path, hub: RunningHub, workers: list[Worker]) -> None:
    [record] = workers[1].stops.records()
    assert session(project, hub, "attach", id=record.id) == 0
    assert [each.attached for each in until(workers[1].stops.records)] == [0]


def test_all_ranks(project: Path, hub: RunningHub, workers: list[Worker]) -> None:
    assert session(project, hub, "all", everything=True) == 0


def test_a_crash(project: Path, hub: RunningHub) -> None:
    worker = Worker(0)
    worker.join(hub)
    try:
        debuggee.Model(1).forward([None])  # type: ignore[list-item]  # fails on purpose
    except TypeError as error:
        document = snapshot.take(error, worker.identity, "task", budget=5.0)
    worker._send({"type": "crash", "document": document})
    with hub.client() as client:
        until(lambda: client.call("crashes")["crashes"])
    worker.close()
    assert session(project, hub, "crash", crash=document["id"]) == 0


def test_an_unknown_stop(project: Path, hub: RunningHub, workers: list[Worker]) -> None:
    assert session(project, hub, "error", id="nope") == 2
