"""Which processes have not ended. A zombie has: where PID 1 reaps no orphans, as in many containers, it stays."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress

import psutil


def living(processes: Iterable[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Those that live on after so many seconds; empty as soon as none does."""
    end = time.monotonic() + seconds
    while (left := [each for each in processes if _lives(each)]) and time.monotonic() < end:
        time.sleep(0.05)
    return left


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False
