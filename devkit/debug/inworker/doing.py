"""Where this process works, told every other second: of one that is killed nobody can ask it afterwards.

Of the program's frames only the lines are read. To look at the variables of a frame that runs would keep them alive:
Python before 3.13 keeps the dictionary that it makes of them until the frame ends, and large tensors with it.
"""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress
from types import FrameType
from typing import Any

from . import alarms, called_methods, cpu_limit, kills, mapped, ownership, signals, unmet
from .identity import DRIVER
from .made import Call, current_call, told
from .stacks import users_lines
from .usage import memory

EVERY_SECONDS = 2.0
MOST_FRAMES = 5
GROWN = 0.05  # by which part memory has changed when it is told again

Document = dict[str, Any]


class Doing:
    """What has been told of this process last."""

    def __init__(self) -> None:
        self._told: list[Document] = []
        self._memory: dict[str, int] = {}
        self._known: Document = {}  # beside these
        self._next = 0.0
        self._lock = threading.Lock()
        self._connection: Any = None
        self._who: Document = {}
        self._is_kept = False  # in a file
        self._since = 0.0  # who hears it now does
        self._making: Call | None = None
        self._made: Document | None = None

    def now(self) -> None:
        """There is news that should not wait."""
        self._next = 0.0

    def making(self, call: Call) -> None:
        """The actor of this process is made in this way, which is told at once."""
        self._making, self._next = call, 0.0

    def news(self) -> Document | None:
        """What is to be told now: nothing where the process is as it was, or was looked at just now."""
        with self._lock:
            return self._news()

    def _news(self) -> Document | None:
        now = time.monotonic()
        if now < self._next:
            return None
        self._next = now + EVERY_SECONDS
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        frames, used = place_of_work(frame), memory()
        fresh, known = self._learn(), _known()
        if not fresh and (frames, known) == (self._told, self._known) and not _has_grown(self._memory, used):
            return None
        self._told, self._memory, self._known = frames, used, known
        said = {"made": self._made, "call": _call_of(frame), "memory": used, **known}
        return {"type": "doing", "time": time.time(), "frames": frames, **{k: v for k, v in said.items() if v}}

    def tell(self, connection: Any, identity: Document) -> None:
        """To the hub; and to a file until it has surely heard it. Raises OSError when the way to the hub is gone.

        A hub that is busy starting reads what was sent only later, or not any more.
        """
        with self._lock:
            if connection is not self._connection:
                self._since = time.monotonic()
            heard = connection is not None and time.monotonic() - self._since >= EVERY_SECONDS
            if connection is not self._connection or (identity != self._who and not heard):
                self._told, self._memory, self._next = [], {}, 0.0  # who hears it has been told nothing
            self._connection, self._who = connection, identity
            news = self._news()
            if news is not None and connection is not None:
                connection.send(news)
            if heard and self._is_kept:
                self._is_kept = False
                unmet.forget(str(identity["worker_id"]))
            elif news is not None and not heard:
                self._keep(identity, news)

    def _keep(self, identity: Document, news: Document) -> None:
        if identity["role"] != DRIVER:
            with suppress(OSError, KeyError, AttributeError):  # no folder to write to, as in a child without Ray
                unmet.keep(str(identity["worker_id"]), identity, news)
                self._is_kept = True

    def _learn(self) -> bool:
        """With what the actor is made, in words: the values themselves are not held any longer."""
        call, self._making = self._making, None
        if call is None:
            return False
        self._made = told(call)
        return True


def _known() -> Document:
    """What may be why it ends, or why others do."""
    own: Document = {"alarm": alarms.pending(), "cpu": cpu_limit.pending(), "maps": mapped.noted()}
    own["recursion"] = sys.getrecursionlimit()
    return {
        **own,
        "puts": ownership.puts(),
        "kills": kills.noted(),
        "signals": signals.noted(),
        "methods": called_methods.called(),
    }


def _call_of(frame: FrameType | None) -> Document | None:
    try:
        return current_call(frame)
    except Exception:  # noqa: BLE001 - the stack moves on while it is read; then there is no word of its call
        return None


def _has_grown(before: dict[str, int], now: dict[str, int]) -> bool:
    own = before.get("own", 0)
    return abs(now.get("own", 0) - own) > own * GROWN


def place_of_work(frame: FrameType | None) -> list[Document]:
    """The program's own frames of a stack, innermost first; of many, those at both ends."""
    found = list(users_lines(frame))
    return found if len(found) <= MOST_FRAMES else [*found[: MOST_FRAMES - 1], found[-1]]
