"""How slow this machine is just now: the deadlines of all tests are multiples of it.

A deadline says when a wait is given up. What takes 20 s on two quiet cores takes a minute beside other work, and no
fault is found by giving it up sooner; so once per run something known is timed, and all waits are that much longer.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

VARIABLE = "DEVKIT_TESTS_PACE"  # what tests start in other processes has it, too
QUIET_S = 0.6  # what `_known_work` takes on two quiet cores
MOST = 10.0
MOST_CROWDED = 4.0  # it is one look, at whoever runs just then


def stretched(seconds: float) -> float:
    """A deadline of so many seconds on two quiet cores, for this machine in this hour."""
    return seconds * float(os.environ.get(VARIABLE, "1"))


def measured() -> float:
    """1 on two quiet cores or better, 10 at most."""
    return min(MOST, max(1.0, _crowd(), statistics.median(_known_work() for _ in range(3)) / QUIET_S))


def _crowd() -> float:
    """Threads that want a core, per core: a fast machine does what is timed quickly beside others, too."""
    try:
        running = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0]) - 1  # without this one
    except (OSError, ValueError, IndexError):  # no Linux
        return 1.0
    return min(MOST_CROWDED, 1.0 + running / len(os.sched_getaffinity(0)))


def _known_work() -> float:
    """Four interpreters that start side by side, each importing what most programs do. In seconds."""
    start = time.perf_counter()
    command = [sys.executable, "-I", "-c", "import asyncio, email.message, http.client, json, unittest"]
    for process in [subprocess.Popen(command) for _ in range(4)]:
        process.wait()
    return time.perf_counter() - start
