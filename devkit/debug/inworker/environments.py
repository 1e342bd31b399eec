"""Conversations of the trainer that wait for their environments: whose turn it is, since when, in which process.

Read from the variables of the loop that waits (`trainer/agent/loop.py`): nothing of the program's runs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

LOOP = os.path.join("trainer", "agent", "loop.py")
DEPTH = 100
MOST = 16  # the oldest ones

Document = dict[str, Any]


def describe(frames: Iterable[FrameType]) -> list[Document]:
    """One document per environment that was asked and has not answered, the oldest first."""
    for innermost in frames:
        for frame in _outwards(innermost):
            if not frame.f_code.co_filename.endswith(LOOP):
                continue
            values = frame.f_locals
            try:
                if frame.f_code.co_name == "_ask":  # it answers within this call: it lives in this process
                    return [_document(values["trajectory"], values["self"]._limits)]
                if frame.f_code.co_name == "_gather":
                    waiting = sorted(values["self"]._asked, key=lambda each: float(each.asked))
                    return [_document(each, values["self"]._limits) for each in waiting[:MOST]]
            except (AttributeError, KeyError, TypeError, ValueError):  # another release's, or at its beginning
                return []
    return []


def _document(trajectory: Any, limits: Any) -> Document:
    said, home = len(trajectory.said), trajectory.home
    return {
        "row": f"row {int(trajectory.row.index)} of {trajectory.row.file}",
        "sample": int(trajectory.sample),
        "turn": said,
        "what": "step" if said else "reset",
        "seconds": time.monotonic() - float(trajectory.asked),
        "pid": int(getattr(home, "_pid", 0)),  # 0: this process
        "limit": None if limits.turn_s is None else float(limits.turn_s),
    }


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    count = 0
    while frame is not None and count < DEPTH:
        yield frame
        frame, count = frame.f_back, count + 1
