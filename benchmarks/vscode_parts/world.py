"""Many ranks without Ray: a hub and one process per rank, which devkit's commands find as the last `devkit run`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from devkit.debug import processes
from devkit.debug.client import HubClient
from devkit.debug.hub_file import HubPlace
from devkit.debug.inworker import wire
from devkit.debug.runs import Run

HERE = Path(__file__).parent
WORKER = HERE / "worker.py"
DEADLINE = 60.0
JOB = "01000000"

Process = subprocess.Popen[str]


class World:
    """The hub, the ranks, and the environment in which `devkit` finds them."""

    def __init__(self, place: dict[str, Any], workers: list[Process], environ: dict[str, str]) -> None:
        self.place = place
        self.environ = environ
        self._workers = workers

    def client(self) -> HubClient:
        """A client of the hub in this process."""
        key = wire.derive_key("", self.place["hub_id"])
        return HubClient(wire.Connection((self.place["host"], self.place["port"]), key, "client"))

    def stop(self, rank: int) -> float:
        """Tells a rank to stop; the monotonic time at which it does."""
        worker = self._workers[rank]
        assert worker.stdin is not None and worker.stdout is not None
        worker.stdin.write("stop\n")
        worker.stdin.flush()
        return float(worker.stdout.readline())

    def devkit(self, *arguments: str) -> subprocess.Popen[bytes]:
        """A `devkit` command, its stdin and stdout open."""
        command = [sys.executable, "-m", "devkit", *arguments]
        return subprocess.Popen(command, env=self.environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)


@contextmanager
def world(ranks: int) -> Iterator[World]:
    """A hub with so many ranks, none of which is stopped."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dkv")))
        environ = _environment(folder)
        hub = stack.enter_context(_process([str(HERE / "hub.py")], environ))
        assert hub.stdout is not None
        place = json.loads(hub.stdout.readline())
        _announce(folder / "home", hub.pid, place)
        workers = [stack.enter_context(_worker(rank, place, folder, environ)) for rank in range(ranks)]
        made = World(place, workers, environ)
        with made.client() as client:
            wait_for(client, "workers", ranks)
        yield made


def wait_for(client: HubClient, what: str, count: int) -> list[dict[str, Any]]:
    """The stops or the workers that the hub lists, once there are so many."""
    end = time.monotonic() + DEADLINE
    while len(found := client.call("ps")[what]) < count:
        assert time.monotonic() < end, f"{len(found)} of {count} {what}"
        time.sleep(0.02)
    listed: list[dict[str, Any]] = found
    return listed


def _environment(folder: Path) -> dict[str, str]:
    """One that knows of no other Ray."""
    names = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "RAY_AUTH_TOKEN")
    kept = {name: value for name, value in os.environ.items() if name not in names}
    return {**kept, "DEVKIT_HOME": str(folder / "home"), "RAY_AUTH_MODE": "disabled"}


def _announce(home: Path, pid: int, place: dict[str, Any]) -> None:
    """As `devkit run` does for a Ray without a dashboard."""
    run = Run(pid, processes.started(pid) or "", "", "", time.time(), HubPlace(**place), JOB, "disabled")
    (home / "runs").mkdir(parents=True, mode=0o700)
    (home / "runs" / f"run-{pid}.json").write_text(json.dumps(asdict(run)))


@contextmanager
def _worker(rank: int, place: dict[str, Any], folder: Path, environ: dict[str, str]) -> Iterator[Process]:
    card = folder / "card.json"
    card.write_text(json.dumps({"job_id": JOB, "node_id": "node", "node_ip": "127.0.0.1", "role": "Worker"}))
    own = {**environ, "RANK": str(rank), "DEVKIT_PARENT": str(card)}
    with _process([str(WORKER), json.dumps(place)], own) as process:
        yield process


@contextmanager
def _process(arguments: list[str], environ: dict[str, str]) -> Iterator[Process]:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, *arguments], env=environ, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()
