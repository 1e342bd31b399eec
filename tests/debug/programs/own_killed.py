"""A program that starts its own Ray, an actor of which dies without a word; it ends at once, by an error or without."""

from __future__ import annotations

import os
import signal
import sys
import time

import ray


@ray.remote
class Reader:
    def __init__(self, path: str, rank: int, shards: list[int]) -> None:
        self.path = path
        self.rank = rank

    def ready(self) -> str:
        return self.path

    def pid(self) -> int:
        return os.getpid()

    def limit(self, seconds: int) -> None:
        signal.alarm(seconds)  # @limit

    def read(self, how: str) -> int:
        if how == "late":
            work(4.0)
        if how in ("exit", "leaves"):
            os._exit(7)
        if how == "guard":
            work(300.0)
        os.kill(os.getpid(), signal.SIGKILL)
        return 0


@ray.remote(num_cpus=0)
class Guard:
    """Ends what it takes for too large."""

    def check(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)  # @kills


def work(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)  # @works


how = sys.argv[1]
ray.init(num_cpus=2)
reader = Reader.options(name="reader-b").remote("/data/part-7", 3, [1, 2, 3])  # type: ignore[attr-defined]
if how != "quick":
    print(ray.get(reader.ready.remote()), flush=True)
pid = ray.get(reader.pid.remote()) if how == "guard" else 0  # type: ignore[attr-defined]
try:
    if how == "alarm":
        ray.get(reader.limit.remote(4))  # type: ignore[attr-defined]
        while True:
            ray.get(reader.ready.remote())
            time.sleep(0.2)
    if how == "guard":
        guard = Guard.remote()  # type: ignore[attr-defined]
        asked = reader.read.remote(how)
        time.sleep(3)  # it is seen at work
        guard.check.remote(pid)
        ray.get(asked)
    ray.get(reader.read.remote(how))  # @asks
except ray.exceptions.RayError as error:
    if how == "leaves":
        os._exit(3)
    if how not in ("caught", "closed"):
        raise
    print(f"gave up: {type(error).__name__}", flush=True)
if how == "closed":
    ray.shutdown()
