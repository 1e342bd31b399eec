"""Where this process works, told every other second: of one that is killed nobody can ask it afterwards.

Only frames and their lines are read. To look at the variables of a frame that runs would keep them alive: Python before
3.13 keeps the dictionary that it makes of them until the frame ends, and large tensors with it.
"""

from __future__ import annotations

import sys
import threading
import time
from types import FrameType
from typing import Any

from .sources import is_users
from .stacks import OURS

EVERY_SECONDS = 2.0
MOST_FRAMES = 5

Document = dict[str, Any]


class Doing:
    """What has been told of this process last."""

    def __init__(self) -> None:
        self._told: list[Document] = []
        self._next = 0.0

    def news(self) -> Document | None:
        """What is to be told now: nothing where the process is where it was, or was looked at just now."""
        now = time.monotonic()
        if now < self._next:
            return None
        self._next = now + EVERY_SECONDS
        frames = place_of_work(sys._current_frames().get(threading.main_thread().ident or 0))
        if frames == self._told:
            return None
        self._told = frames
        return {"type": "doing", "time": time.time(), "frames": frames}


def place_of_work(frame: FrameType | None) -> list[Document]:
    """The program's own frames of a stack, innermost first; of many, those at both ends."""
    found: list[Document] = []
    while frame is not None:
        code = frame.f_code
        if is_users(code.co_filename) and not code.co_filename.startswith(OURS):
            found.append({"file": code.co_filename, "line": frame.f_lineno or 0, "function": code.co_qualname})
        frame = frame.f_back
    return found if len(found) <= MOST_FRAMES else [*found[: MOST_FRAMES - 1], found[-1]]
