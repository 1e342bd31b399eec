"""A worker that is killed: in a task, in one that is tried again, in an actor's method. The driver's get fails."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import ray


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def work(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)  # @works
    die()


@ray.remote(max_retries=0)
def load(path: str, seconds: float) -> None:
    work(seconds)


@ray.remote(max_retries=1)
def again(path: str) -> None:
    die()


@ray.remote
class Reader:
    def read(self, path: str) -> None:
        die()


@ray.remote
def outer(path: str) -> Any:
    return ray.get(load.remote(path, 0.0))


CALLS = {
    "task": lambda: load.remote("/data/part-7", 5.0),
    "retried": lambda: again.remote("/data/part-7"),
    "actor": lambda: Reader.options(name=f"reader-{os.getpid()}").remote().read.remote("/data/part-7"),  # type: ignore[attr-defined]
    "nested": lambda: outer.remote("/data/part-7"),
}

ray.init()
ray.get(CALLS[sys.argv[1]]())
