"""A thread that a test leaves at work is that test's error: it takes a core, and Python's lock, from all that follow.

One that waits does not matter. So the processor time of each thread that a test began is looked at, where it lives on:
only what has used some, or waits for a core, at all looks of a while is at work. Where the kernel does not tell that,
nothing is said.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import pace

FIRST_S, PAUSE_S = 0.02, 0.2  # before the first look, which nothing survives that waits, and before each other one
LOOKS_S = 2.0  # on two quiet cores; what a fixture has only just ended may have something left to do
LEAST_S = 0.005  # of PAUSE_S: more than a thread takes that looks at something each 10 ms
_there = pytest.StashKey[set[int]]()


class _Look(NamedTuple):
    used: float  # seconds of processor time until now
    runs: bool  # or would, if a core were free


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[_there] = {each.ident for each in threading.enumerate() if each.ident is not None}


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """When the test's fixtures are over."""
    yield
    before = item.stash.get(_there, set())
    new = [each for each in threading.enumerate() if each.ident not in before]
    if left := at_work(new, pace.stretched(LOOKS_S)):
        pytest.fail("\n".join(said(each) for each in left), pytrace=False)


def at_work(threads: list[threading.Thread], seconds: float) -> list[threading.Thread]:
    """Those that are at work at each look, for so many seconds. Returns as soon as there are none."""
    left = _looks(threads)
    end = time.monotonic() + seconds
    pause, least = FIRST_S, 0.0
    while left and time.monotonic() < end:
        time.sleep(pause)
        now = _looks(list(left))
        left = {each: look for each, look in now.items() if look.runs or look.used - left[each].used > least}
        pause, least = PAUSE_S, LEAST_S
    return list(left)


def _looks(threads: list[threading.Thread]) -> dict[threading.Thread, _Look]:
    return {each: look for each in threads if (look := _look(each)) is not None}


def _look(thread: threading.Thread) -> _Look | None:
    """None: it has ended, or nothing tells."""
    own = Path(f"/proc/self/task/{thread.native_id}")
    try:
        used = int((own / "schedstat").read_text().split()[0]) / 1e9
        return _Look(used, (own / "stat").read_text().rpartition(") ")[2][:1] == "R")
    except (OSError, ValueError, IndexError):
        return None


def said(thread: threading.Thread) -> str:
    frame = sys._current_frames().get(thread.ident or 0)
    stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
    return f"the test has left the thread {thread.name} at work:\n{stack}"
