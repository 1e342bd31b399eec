"""What is read of a thread that runs meanwhile: it has to be of one moment, or values of two stand side by side."""

from __future__ import annotations

import inspect
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

from . import turns

TRIES = 4
DEPTH = 50  # frames
_SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_T = TypeVar("_T")


def read(ident: int, frame: FrameType, look: Callable[[FrameType], _T]) -> tuple[_T, bool]:
    """What a look at a thread's innermost frame gives, and whether the thread has not gone on meanwhile.

    Where it has, the look is taken again, at the frame that is innermost by then. One that computes in C, without
    Python's lock, has not gone on: two looks at it are equal.
    """
    began, is_there = _computed(ident), sys._current_frames().get(ident) is frame
    found = look(frame)
    if began is None or ident == threading.get_ident() or _is_suspended(frame):
        return found, True
    if is_there and _computed(ident) == began:
        return found, True
    with turns.patient():
        for _ in range(TRIES):
            began, now = _computed(ident), sys._current_frames().get(ident)
            if now is None:  # it has ended
                return found, False
            there, found = _place(now), look(now)
            if _computed(ident) == began or (_place(sys._current_frames().get(ident)) == there and look(now) == found):
                return found, True
    return found, False


def _place(frame: FrameType | None) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    while frame is not None and len(found) < DEPTH:
        found.append((id(frame), frame.f_lasti))
        frame = frame.f_back
    return found


def _is_suspended(frame: FrameType) -> bool:
    """Whether it is of a generator or a coroutine that nobody is in."""
    return bool(frame.f_code.co_flags & _SUSPENDED) and frame.f_back is None


def _computed(ident: int) -> int | None:
    """Nanoseconds that a thread has had a core; None where that is not known.

    By the kernel's number of the thread: of one that has ended that is an error, where `pthread_getcpuclockid` crashes.
    """
    thread = getattr(threading, "_active", {}).get(ident)
    native = getattr(thread, "native_id", None)
    if native is None or sys.platform != "linux":
        return None
    try:
        return time.clock_gettime_ns((~native << 3) | 6)  # as the kernel numbers the clock of a thread's own time
    except (OSError, OverflowError):
        return None


__all__ = ["read"]
