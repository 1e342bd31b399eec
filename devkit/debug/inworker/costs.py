"""What it costs a process to be looked at: seconds that are ours, and no work of the program."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

_seconds = 0.0
_children: set[int] = set()


@contextmanager
def counted() -> Iterator[None]:
    """What the calling thread computes meanwhile is ours."""
    global _seconds
    began = time.thread_time()
    try:
        yield
    finally:
        _seconds += time.thread_time() - began


def seconds() -> float:
    """Until now.

    >>> before = seconds()
    >>> with counted():
    ...     _ = sum(range(1_000_000))
    >>> seconds() > before
    True
    """
    return _seconds


@contextmanager
def our_child(pid: int) -> Iterator[None]:
    """A process that this one has started for us meanwhile: py-spy, for one."""
    _children.add(pid)
    try:
        yield
    finally:
        _children.discard(pid)


def is_our_child(pid: int) -> bool:
    return pid in _children
