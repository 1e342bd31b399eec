"""A process that has loaded torch, from which runs and their ranks are forked: `-m tests.trainer.warm_ranks SOCKET`.

It is the smoke test's (`devkit/smoke/warm.py`), but serves one run after another: a fork wears the mark of its own run,
so that what is left of that run is found. A stand-in that asks for `LEAN` gets that program in place of Ray's worker.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

from devkit.smoke import warm

LEAN = "tests.trainer.lean_main"
MARK = "TRAINER_TEST_RUN"
UNWORN = "0" * 32  # as long as a mark


def wear(mark: str) -> None:
    """From now on `/proc/PID/environ` of this process has this mark. It shows what is at a place in its memory."""
    start = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[47])  # env_start, see proc(5)
    at = Path("/proc/self/environ").read_bytes().index(f"{MARK}={UNWORN}\0".encode()) + len(MARK) + 1
    assert len(mark) == len(UNWORN)
    ctypes.memmove(start + at, mark.encode(), len(mark))


become_worker = warm._become_worker


def become(arguments: list[str], environment: str, folder: str, streams: list[int]) -> None:
    """The worker or the run that is asked for, in this process. Never returns."""
    wear(dict(item.split("=", 1) for item in environment.split("\0"))[MARK])
    if LEAN in arguments:
        arguments.remove(LEAN)
        sys.path[0] = folder  # as `python -m` has it
        warm.runpy = SimpleNamespace(run_path=run_lean)
    become_worker(arguments, environment, folder, streams)


def run_lean(_program: str, run_name: str) -> None:
    sys.stdout = os.fdopen(1, "w", closefd=False)  # what they are now: the process itself had other ones
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    try:
        runpy.run_module(LEAN, run_name=run_name, alter_sys=True)
    finally:  # a fork ends without Python's tear-down
        sys.stdout.flush()
        sys.stderr.flush()


if __name__ == "__main__":
    import trainer.main_ppo  # noqa: F401

    warm._become_worker = become
    warm.main()
