"""What a process waits for that it shares with others: locks, semaphores, events and full queues of multiprocessing.

None of their own methods is called but those that read a number: an event takes a lock to say whether it is set.
"""

from __future__ import annotations

from types import FrameType
from typing import Any

from . import locks

_KINDS = ("Lock", "RLock", "Semaphore", "BoundedSemaphore")
_MODULE = "multiprocessing.synchronize"


def held(it: Any) -> str:
    """A lock or a semaphore that another process has, or has ended with; empty: it is free, or none."""
    name = type(it).__name__
    if type(it).__module__ != _MODULE or name not in _KINDS or it._semlock._get_value():
        return ""
    return f"a multiprocessing.{name} {'that is taken' if name.endswith('Lock') else 'with no permit left'}"


def signalled(it: Any) -> str:
    """An event or a condition."""
    what = {"Event": "that is not set", "Condition": "to be notified"}.get(type(it).__name__, "")
    return f"a multiprocessing.{type(it).__name__} {what}" if what and type(it).__module__ == _MODULE else ""


def room(it: Any) -> str:
    """A queue of multiprocessing that is full."""
    full = not it._sem._semlock._get_value()
    return f"room in a multiprocessing queue that is full ({it._maxsize})" if full else ""


def acquired(frame: FrameType) -> str:
    """For a frame in `lock.acquire()`, which is a function of C without a frame of its own."""
    lock = locks.taken_at(frame)
    return held(lock) if type(lock).__module__ == _MODULE else ""


__all__ = ["acquired", "held", "room", "signalled"]
