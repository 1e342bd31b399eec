"""A worker without Ray: a process with devkit's real agent, which stops each time it is told to.

    python worker.py HUB    HUB is where the hub is, as JSON; `RANK` and `DEVKIT_PARENT` say who this is

It answers each line on stdin by the monotonic time at which it stops; the last line ends it.
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import sys
import threading
import time

from devkit.debug.inworker.agent import Agent, launch
from devkit.debug.inworker.settings import Settings


def step(agent: Agent, k: int) -> float:
    """One step of a training, with a few variables to look at."""
    loss = 1 / (k + 1)
    batch = {"ids": list(range(100)), "mask": [True] * 100}
    print(time.monotonic(), flush=True)
    agent.pause_here(sys._getframe())
    return loss * len(batch)


def main() -> None:
    place = json.loads(sys.argv[1])
    agent = launch(Settings(ray_extension="off"), lambda: place)
    told: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=listen, args=(told,), daemon=True).start()
    for k in itertools.count():
        told.get()
        step(agent, k)


def listen(told: queue.SimpleQueue[str]) -> None:
    """Who started this is gone when its lines end; a stop would outlive it."""
    for line in sys.stdin:
        told.put(line)
    os._exit(0)


if __name__ == "__main__":
    main()
