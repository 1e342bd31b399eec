"""To which processes a process has sent a deadly signal, and where: Ray says of who was killed only that it is gone."""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from .kills import who as sent_by
from .passing import unframed
from .stacks import users_lines
from .words import NO_WORD

MOST = 20  # that are told, the last ones
NEAR = 10.0  # seconds between a signal and an end that came of it
HALTING = frozenset(getattr(signal, name) for name in ("SIGSTOP", "SIGTSTP") if hasattr(signal, name))
RESUMING = frozenset(getattr(signal, name) for name in ("SIGCONT", "SIGKILL") if hasattr(signal, name))
DEADLY = frozenset(
    getattr(signal, name) for name in ("SIGKILL", "SIGTERM", "SIGINT", "SIGABRT", "SIGSEGV") if hasattr(signal, name)
)

Document = dict[str, Any]

_MARK = "__devkit_signals__"
_noted: deque[Document] = deque(maxlen=MOST)
_halted: dict[int, Document] = {}  # by the process that was stopped, until it is resumed


# ---- in the process that sends


def watch(on_new: Callable[[], object]) -> None:
    """Notes where `os.kill` is called by the program, also through a library. Calls back before each."""
    if hasattr(os.kill, _MARK):
        return
    original = os.kill

    @functools.wraps(original)
    def kill(pid: int, number: int, /) -> None:
        if number in DEADLY and pid > 0 and pid != os.getpid():
            _note(pid, number, on_new)
        _note_halt(pid, number)
        try:
            original(pid, number)
        except BaseException as error:
            unframed(error)
            raise

    setattr(kill, _MARK, True)
    os.kill = kill


def _note(pid: int, number: int, on_new: Callable[[], object]) -> None:
    try:
        if (site := next(users_lines(sys._getframe(2)), None)) is not None:
            _noted.append({"pid": int(pid), "signal": signal.Signals(number).name, "time": time.time(), **site})
            on_new()
    except Exception:  # noqa: BLE001 - whatever is wrong with the numbers, the kernel says so
        return


def _note_halt(pid: int, number: int) -> None:
    try:
        if number in RESUMING:
            _halted.pop(pid, None)
        site = next(users_lines(sys._getframe(2)), None) if number in HALTING and len(_halted) < MOST else None
        if site is not None:
            _halted[int(pid)] = {"pid": int(pid), "signal": signal.Signals(number).name, **site}
    except Exception:  # noqa: BLE001 - as above
        return


def halts() -> list[Document]:
    """Of the processes that this one has stopped and not resumed: [{"pid", "signal", "file", "line", "function"}]."""
    return list(_halted.values())


def noted() -> list[Document]:
    """[{"pid", "signal", "time", "file", "line", "function"}], the oldest first."""
    return list(_noted)


# ---- where it is told


def sender(victim: Document, seen: Iterable[tuple[Document, Document]]) -> tuple[Document, Document] | None:
    """Who sent a deadly signal to a process, and the note of it.

    Args:
        victim: its identity.
        seen: the identity of each process that has told of itself, and what it told.
    """
    for who, told in seen:
        if who["node_ip"] == victim["node_ip"]:
            for note in reversed(told.get("signals") or ()):
                if note["pid"] == victim["pid"]:
                    return who, note
    return None


def sentence(reason: str, who: Document, note: Document, died: float) -> str:
    """Why a process died, which was sent a signal: it may have outlived that, and have ended otherwise.

    >>> guard = {"role": "Guard", "pid": 7}
    >>> note = {"signal": "SIGTERM", "time": 90.0, "file": "/job/a.py", "line": 31, "function": "Guard.check"}
    >>> sentence(f"the process died: {NO_WORD}", guard, note, 91.0)
    'the process died: by SIGTERM, which Guard pid 7 sent at /job/a.py:31 in Guard.check'
    >>> sentence("exit code 3.", guard, note, 91.0)
    'exit code 3; 1.0 s before, Guard pid 7 sent it SIGTERM at /job/a.py:31 in Guard.check'
    """
    by = sent_by(who)
    place = f"{note['file']}:{note['line']} in {note['function']}"
    ago = max(0.0, died - float(note.get("time", died)))
    if NO_WORD in reason and ago <= NEAR:
        return reason.replace(NO_WORD, f"by {note['signal']}, which {by} sent at {place}")
    return f"{reason.rstrip('.')}; {ago:.1f} s before, {by} sent it {note['signal']} at {place}"
