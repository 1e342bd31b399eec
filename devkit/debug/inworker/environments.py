"""Conversations of the trainer that wait: for an environment, for the engine's next turn, or for a retriever.

Read from the variables of the loop that waits (`trainer/agent/loop.py`) and of the retriever's client
(`trainer/retrieval/client.py`): nothing of the program's runs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

LOOP = os.path.join("trainer", "agent", "loop.py")
CLIENT = os.path.join("trainer", "retrieval", "client.py")
DEPTH = 100
MOST = 16  # the oldest ones

Document = dict[str, Any]
_OTHERS = (AttributeError, KeyError, TypeError, ValueError)  # another release's, or at its beginning


def describe(frames: Iterable[FrameType]) -> list[Document]:
    """One document per environment that was asked and has not answered, the oldest first."""
    for frame in _of(frames, LOOP, ("_ask", "_gather")):
        values = frame.f_locals
        try:
            if frame.f_code.co_name == "_ask":  # it answers within this call: it lives in this process
                return [_document(values["trajectory"], values["self"]._limits)]
            waiting = sorted(values["self"]._asked, key=lambda each: float(each.asked))
            return [_document(each, values["self"]._limits) for each in waiting[:MOST]]
        except _OTHERS:
            return []
    return []


def engine(frames: Iterable[FrameType]) -> Document | None:
    """The engine in processes of its own that is to say the next turn of some conversations, and since when."""
    for frame in _of(frames, LOOP, ("_gather",)):
        try:
            return _engine(frame.f_locals["self"])
        except (*_OTHERS, StopIteration):
            return None
    return None


def searches(frames: Iterable[FrameType]) -> list[Document]:
    """Requests to a retriever that have no answer yet, the oldest first."""
    found: list[Document] = []
    for frame in _of(frames, CLIENT, ("_ask",)):
        values = frame.f_locals
        try:
            failure = values.get("failure")
            found.append(
                {
                    "url": str(values["self"].url).partition("?")[0],  # a key may follow
                    "seconds": time.monotonic() - float(values["began"]),
                    "limit": float(values["self"].timeout),
                    "tries": int(values.get("tried", 1)),
                    "failure": "" if failure is None else type(failure).__name__,
                }
            )
        except _OTHERS:
            continue
    return sorted(found, key=lambda each: -each["seconds"])[:MOST]


def _document(trajectory: Any, limits: Any) -> Document:
    home = trajectory.home
    pid = int(getattr(home, "_pid", 0))
    return {
        **_turn(trajectory),
        "what": "step" if trajectory.said else "reset",
        "seconds": time.monotonic() - float(trajectory.asked),
        "pid": pid,  # 0: this process
        "thread": not pid and hasattr(home, "fileno"),  # of this process, and not the loop's own
        "limit": None if limits.turn_s is None else float(limits.turn_s),
    }


def _engine(loop: Any) -> Document | None:
    talk, speaking = loop._talk, list(loop._speaking.values())  # in one go: its thread goes on
    handle = getattr(talk, "_handle", None)
    if not speaking or handle is None:
        return None
    oldest = speaking[0]
    return {
        **_turn(oldest, after=1),
        "name": f"{handle.spec.name} engine {int(handle.part.engine)}",
        "node_ip": str(handle.node_ip),
        "pid": int(handle.info.pids[0]),
        "turns": len(speaking),
        "done": int(talk._done),
        "seconds": time.monotonic() - float(talk._heard),
        "limit": float(handle.timeout_s),
    }


def _turn(trajectory: Any, after: int = 0) -> Document:
    row = f"row {int(trajectory.row.index)} of {trajectory.row.file}"
    return {"row": row, "sample": int(trajectory.sample), "turn": len(trajectory.said) + after}


def _of(frames: Iterable[FrameType], file: str, names: tuple[str, ...]) -> Iterator[FrameType]:
    """Of each thread, the innermost frame that is in one of these functions of the file."""
    for innermost in frames:
        for frame in _outwards(innermost):
            if frame.f_code.co_name in names and frame.f_code.co_filename.endswith(file):
                yield frame
                break


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    count = 0
    while frame is not None and count < DEPTH:
        yield frame
        frame, count = frame.f_back, count + 1
