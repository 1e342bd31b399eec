"""The cluster that the rounds of a soak share, and what each of them reports."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from devkit.debug.client import HubClient
from tests.debug.conftest import PROGRAMS, Cluster, Job, eventually, mark, start

LOOP = PROGRAMS / "loop.py"


@dataclass
class Tally:
    """What one round did, and what of it went wrong. Nothing should."""

    tries: int = 0
    wrong: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def expect(self, fine: bool, what: str) -> None:
        self.tries += 1
        if not fine:
            self.wrong.append(what)


@dataclass(frozen=True)
class World:
    folder: Path
    cluster: Cluster

    @contextmanager
    def looping(self, ranks: int = 2) -> Iterator[Loop]:
        """Ranks that step on and on."""
        end = self.folder / f"end-{os.urandom(3).hex()}"
        job = Job(self.cluster, "--", sys.executable, str(LOOP), str(end), str(ranks))
        try:
            loop = Loop(self.cluster, job.joined())
            eventually(lambda: len(loop.workers()) == ranks, f"{ranks} ranks")
            yield loop
            self.cluster.devkit("break", "--clear", "all", check=None)
            job.resume(check=None)  # a rank may be gone with its job before it is asked; the end of all counts
            end.touch()
            job.end()
        finally:
            job.kill()


@dataclass(frozen=True)
class Loop:
    cluster: Cluster
    job: Job

    def workers(self) -> list[dict[str, Any]]:
        found = self.cluster.json("ps", check=None).get("workers", ())
        return [each for each in found if each["job_id"] == self.job.id and each["role"] == "Worker"]

    def stop_all(self, count: int = 2) -> list[dict[str, Any]]:
        """Its ranks, stopped at each step."""
        self.cluster.json("break", self.place, "--job", self.job.id)
        return self.job.stops(count)

    @property
    def place(self) -> str:
        return f"{LOOP}:{mark(LOOP, 'loop')}"

    def stops(self, hub: HubClient) -> list[dict[str, Any]]:
        return [each for each in hub.call("ps")["stops"] if each["job_id"] == self.job.id]


@contextmanager
def world(folder: Path, *options: str) -> Iterator[World]:
    cluster = start(folder, *options)
    try:
        yield World(folder, cluster)
    finally:
        cluster.devkit("debug-cluster", "stop")


def hub_process(cluster: Cluster) -> psutil.Process:
    return psutil.Process(json.loads(cluster.find_log("devkit/hub.json").read_text())["pid"])
