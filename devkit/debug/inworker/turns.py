"""Python's lock for the one who looks around in a process that computes.

Each read of a file gives the lock up, and a thread that computes gives it back after the switch interval, 5 ms: a look
at the two hundred threads that a process has on a large machine takes several seconds so, in which it seems to be mute.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

OFTEN = 0.0002  # seconds; the program computes on in between

_lock = threading.Lock()
_askers = 0
_before = _ours = 0.0


@contextmanager
def often() -> Iterator[None]:
    """Until its end, threads that wait for Python's lock get it sooner. What a program sets meanwhile stays."""
    global _askers, _before, _ours
    with _lock:
        if not _askers:
            _before = _ours = sys.getswitchinterval()
            if _before > OFTEN:
                sys.setswitchinterval(OFTEN)
                _ours = sys.getswitchinterval()  # in whole microseconds
        _askers += 1
    try:
        yield
    finally:
        with _lock:
            _askers -= 1
            if not _askers:
                _restore()


def _restore() -> None:
    if _before != _ours == sys.getswitchinterval():  # nobody has set another one meanwhile
        sys.setswitchinterval(_before)


def _in_a_child() -> None:
    """Of a fork in the midst of a look: the thread that looked is not there to end it."""
    global _lock, _askers
    _lock = threading.Lock()
    if _askers:
        _askers = 0
        _restore()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_a_child)

__all__ = ["often"]
