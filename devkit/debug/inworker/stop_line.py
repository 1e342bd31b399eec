"""One line where the program's output is read: that somebody is stopped, where, why, and what to do about it.

Ray shows what a worker writes on its driver's terminal: whoever waits there for the next step learns why none comes.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from .words import say

LONGEST = 200  # characters of the reason

Document = dict[str, Any]


class StopLines:
    """Those of one process, each said once: at exceptions, and at the program's own `breakpoint()`."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def tell(self, stops: list[Document]) -> None:
        """Of stops that the hub knows, so that what the line says to do can be done. Never raises."""
        for stop in stops:
            if stop["id"] not in self._told and (reason := _reason(stop)):
                say(line_of(stop, reason))
        self._told = {stop["id"] for stop in stops}


def _reason(stop: Document) -> str:
    """Empty for a place that somebody has set from outside, who waits for it, and for a step."""
    raised = stop["exception"]
    if stop["reason"] == "exception" and raised:
        return ": ".join(filter(None, (raised["type"], raised["message"])))
    return "breakpoint()" if stop["reason"] == "breakpoint" and not stop["breakpoints"] else ""


def line_of(stop: Document, reason: str) -> str:
    """
    >>> line_of({"role": "PPOWorker", "rank": 0, "file": "/srv/job.py", "line": 7}, "ValueError: not finite")
    'rank 0 is stopped at /srv/job.py:7 (ValueError: not finite): devkit attach'
    >>> line_of({"role": "pick", "rank": None, "file": "/srv/job.py", "line": 7}, "breakpoint()")
    'pick is stopped at /srv/job.py:7 (breakpoint()): devkit attach'
    """
    who = stop["role"] if stop["rank"] is None else f"rank {stop['rank']}"
    said = " ".join(reason.split())
    said = said if len(said) <= LONGEST else f"{said[: LONGEST - 3]}..."
    return f"{who} is stopped at {_short(stop['file'])}:{stop['line']} ({said}): devkit attach"


def _short(file: str) -> str:
    """As it would be imported: below the longest folder of `sys.path` that it lies in."""
    folders = (os.path.abspath(each).rstrip(os.sep) + os.sep for each in (*sys.path, ""))
    return file[max((len(each) for each in folders if file.startswith(each) and each != os.sep), default=0) :]
