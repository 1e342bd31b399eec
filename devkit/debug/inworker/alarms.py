"""The timer that a process has set itself, `signal.alarm` or `signal.setitimer`: where nothing handles SIGALRM when it
runs out, the kernel ends the process without a word, and Ray knows only that it is gone.
"""

from __future__ import annotations

import functools
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from .stacks import users_lines

OFTEN = 0.5  # seconds
NEAR = 5.0  # seconds between when it was to run out and a death that came of it
EARLY = 0.3  # that a death may seem to be before it

Document = dict[str, Any]

_MARK = "__devkit_alarms__"
_set: list[Document] = []  # the last one


# ---- in the process that sets it


def watch(on_deadly: Callable[[], object]) -> None:
    """Notes where the program sets its timer. `on_deadly`: nothing handles its end, which may come before anybody asks;
    not more often than twice a second.
    """
    for name in ("alarm", "setitimer"):
        original = getattr(signal, name, None)
        if original is not None and not hasattr(original, _MARK):
            setattr(signal, name, _noting(original, on_deadly, at=0 if name == "alarm" else 1))


def _noting(original: Any, on_deadly: Callable[[], object], at: int) -> Any:
    said = 0.0

    @functools.wraps(original)
    def setting(*arguments: Any) -> Any:
        nonlocal said
        result = original(*arguments)
        if at == 0 or arguments[:1] == (signal.ITIMER_REAL,):
            _note(arguments[at])
            if _set and signal.getsignal(signal.SIGALRM) is signal.SIG_DFL and time.monotonic() - said >= OFTEN:
                said = time.monotonic()
                on_deadly()
        return result

    setattr(setting, _MARK, True)
    return setting


def _note(seconds: Any) -> None:
    try:
        lines = list(users_lines(sys._getframe(2))) if seconds > 0 else []
        due = {"due": round(time.time() + float(seconds), 1)}
        _set[:] = [{**due, **lines[0], "call": lines[-1]["function"]}] if lines else []
    except Exception:  # noqa: BLE001 - whatever is wrong with the number, Python has said so
        return


def pending() -> Document | None:
    """{"due", "file", "line", "function", "call"} of a timer whose end would end this process: nothing handles its
    signal. `call` is the outermost function of the program's in which it was set.
    """
    if not _set or signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL:
        return None
    return dict(_set[0]) if signal.getitimer(signal.ITIMER_REAL)[0] > 0 else None


# ---- where it is told


def sentence(seen: Document | None, died: float) -> str:
    """Why a process died, where its last look shows a timer that ran out then; else empty.

    >>> look = {"alarm": {"due": 100.0, "file": "/job/a.py", "line": 22, "function": "limit"}}
    >>> sentence(look, 100.6)
    'by SIGALRM, as a timer of its own, set at /job/a.py:22 in limit, ran out, and nothing handles that signal'
    >>> sentence(look, 120.0), sentence(look, 98.0), sentence({}, 100.0)
    ('', '', '')
    """
    alarm = (seen or {}).get("alarm")
    if not alarm or not -EARLY <= died - float(alarm["due"]) <= NEAR:
        return ""
    where = f"{alarm['file']}:{alarm['line']} in {alarm['function']}"
    return f"by SIGALRM, as a timer of its own, set at {where}, ran out, and nothing handles that signal"


__all__ = ["pending", "sentence", "watch"]
