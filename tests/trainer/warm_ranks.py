"""A process that has loaded torch, from which the ranks of many runs are forked: `-m tests.trainer.warm_ranks SOCKET`.

It is the smoke test's (`devkit/smoke/warm.py`), but serves one run after another: a fork wears the mark of its own run,
so that what is left of that run is found.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from devkit.smoke import warm

MARK = "TRAINER_TEST_RUN"
UNWORN = "0" * 32  # as long as a mark


def wear(mark: str) -> None:
    """From now on `/proc/PID/environ` of this process has this mark. It shows what is at a place in its memory."""
    start = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[47])  # env_start, see proc(5)
    at = Path("/proc/self/environ").read_bytes().index(f"{MARK}={UNWORN}\0".encode()) + len(MARK) + 1
    assert len(mark) == len(UNWORN)
    ctypes.memmove(start + at, mark.encode(), len(mark))


become_worker = warm._become_worker


def become_marked_worker(arguments: list[str], environment: str, *rest: Any) -> None:
    wear(dict(item.split("=", 1) for item in environment.split("\0"))[MARK])
    become_worker(arguments, environment, *rest)


if __name__ == "__main__":
    warm._become_worker = become_marked_worker
    warm.main()
