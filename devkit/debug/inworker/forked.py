"""A forked child's part: it runs nothing of ours until somebody looks, and then tells once how far it has come.

It has none of its parent's threads, so no agent either. What costs nothing is a handler at a signal that nobody has a
use for, which starts one thread for the answer; that goes into a file without a name which the parent holds open, and
the child by inheritance. A process that has executed another program has lost both. Why so:
docs/decisions/2026-11-25-forked-children.md.
"""

from __future__ import annotations

import _thread
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from typing import Any

from . import costs, offering, threads
from .stacks import users_lines

Document = dict[str, Any]

LEAVES_SECONDS = 1.0  # that the starting thread has to be gone
_NAME = "devkit-children"

box = -1  # where children answer; -1: there is none
number = 0  # the signal at which they do
_facts: Callable[[], Document] | None = None
_forked_at: Document | None = None
_is_child = False
_about: dict[int, tuple[Document | None, bool]] = {}  # by thread that forks: where, and whether the signal is free


def prepare(facts: Callable[[], Document]) -> None:
    """In a worker or a driver, before it forks: `facts` is what its children will tell of themselves."""
    global box, number, _facts
    if box >= 0 or not sys.platform.startswith("linux"):
        return
    import fcntl

    number = offering.free(lowest=True)
    if number:
        with suppress(OSError):  # no file is to be had
            box = os.memfd_create(name(os.getpid()))
            fcntl.fcntl(box, fcntl.F_SETFL, fcntl.fcntl(box, fcntl.F_GETFL) | os.O_APPEND)
            _facts = facts
            os.register_at_fork(before=_about_to_fork, after_in_parent=_has_forked, after_in_child=_born)


def name(pid: int) -> str:
    return f"{_NAME}-{pid}"


def is_child() -> bool:
    """Whether this process was forked from one with Ray in it, whose core does not work here."""
    return _is_child


def at() -> Document | None:
    """The line of the program at which this process was forked."""
    return _forked_at


def _about_to_fork() -> None:
    """In the parent, where it costs a tenth of what it would in the child, which copies each page that it touches."""
    at = next(islice(users_lines(sys._getframe(1)), 1), None)
    ours = signal.getsignal(number) is _asked  # a child that forks: it has been born with it
    _about[_thread.get_ident()] = at, ours or number not in offering.signals("self", "SigCgt")


def _has_forked() -> None:
    _about.pop(_thread.get_ident(), None)


def _born() -> None:
    """In each forked child, at once. Takes no lock, loads nothing, starts nothing."""
    global _is_child, _forked_at
    _is_child = True
    _forked_at, is_free = _about.get(_thread.get_ident(), (None, False))
    _about.clear()
    with suppress(ValueError, OSError):  # in an interpreter of its own: then it can only be looked at
        if is_free and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _asked)


def _asked(_signal: int, _frame: Any) -> None:
    """In the program's main thread, wherever that is: so it only starts a thread, which may wait for any lock."""
    with suppress(RuntimeError):  # no thread is to be had: nobody is told
        _thread.start_new_thread(_begin, ())


def _begin() -> None:
    mine = _thread.get_ident()
    threads.start(lambda: _answer(mine), "devkit-asked")


def _answer(starter: int) -> None:
    """One line, in one call: so several children can write at the same time."""
    end = time.monotonic() + LEAVES_SECONDS
    while starter in sys._current_frames() and time.monotonic() < end:
        time.sleep(0.001)
    if _facts is None:
        return
    with costs.counted():
        facts = {**_facts(), "costs": [costs.seconds(), costs.moved()]}
        text = json.dumps({"pid": os.getpid(), "facts": facts})
    with suppress(OSError):
        if is_box(os.readlink(f"/proc/self/fd/{box}")):  # else the program has closed it
            os.write(box, f"{text}\n".encode())


def is_box(link: str) -> bool:
    """Whether a file that a process has open under this name is where children answer."""
    return link.startswith(f"/memfd:{_NAME}-")
