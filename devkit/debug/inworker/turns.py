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
PATIENT = 0.005  # seconds: longer than it takes to read what is to be of one moment

_lock = threading.Lock()
_askers = 0
_before = _ours = 0.0
_readers = 0
_usual = _long = 0.0


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
        _set(_before)


@contextmanager
def patient() -> Iterator[None]:
    """Until its end, threads that wait for Python's lock leave it for a little longer to who reads of them."""
    global _readers, _usual, _long
    with _lock:
        if not _readers:
            _usual = _long = sys.getswitchinterval()
            if _usual < PATIENT:
                _set(PATIENT)
                _long = sys.getswitchinterval()
        _readers += 1
    try:
        yield
    finally:
        with _lock:
            _readers -= 1
            if not _readers:
                _no_longer_patient()


def _set(seconds: float) -> None:
    """Python cuts it to whole microseconds, and what it gives back may lie a little below one."""
    sys.setswitchinterval(seconds + 2e-7)


def _no_longer_patient() -> None:
    if _usual != _long == sys.getswitchinterval():
        ended = not _askers and _usual == _ours  # who looks around has ended meanwhile
        _set(_before if ended else _usual)


def _in_a_child() -> None:
    """Of a fork in the midst of a look: the thread that looked is not there to end it."""
    global _lock, _askers, _readers
    _lock = threading.Lock()
    if _readers:
        _readers = 0
        _no_longer_patient()
    if _askers:
        _askers = 0
        _restore()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_a_child)

__all__ = ["often", "patient"]
