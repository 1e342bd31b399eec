"""What it costs a process to be looked at: seconds that are ours, and no work of the program."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

_seconds = 0.0
_of_children = 0.0


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
def counted_children() -> Iterator[None]:
    """What children that end meanwhile have computed is ours: py-spy, for one."""
    global _of_children
    began = os.times()
    try:
        yield
    finally:
        ended = os.times()
        _of_children += ended.children_user + ended.children_system - began.children_user - began.children_system


def seconds_of_children() -> float:
    """Until now."""
    return _of_children
