"""What waits of Python's library for several things, or for somebody else's, are said to be for."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from .stacks import awaiting

_BEGUN = "PENDING"


def of_future(it: Any) -> str:
    """A `concurrent.futures.Future`. Only a pool knows whether it was begun: a coroutine's is pending to its end."""
    if it._state == "RUNNING":
        return "a concurrent.futures.Future that is being computed"
    if it._state != _BEGUN:
        return ""
    return f"a concurrent.futures.Future that {'nobody has begun' if _is_queued(it) else 'is not done'}"


def _is_queued(future: Any) -> bool:
    """Whether it is in the queue of a pool's threads. Such a queue is C's, and has a list or its items in itself."""
    queues = getattr(sys.modules.get("concurrent.futures.thread"), "_threads_queues", {})
    for queue in {id(each): each for each in list(queues.values())}.values():
        inner = gc.get_referents(queue)
        items = (item for each in inner for item in (list(each) if type(each) is list else [each]))
        if any(getattr(item, "future", None) is future for item in items):
            return True
    return False


def _left(futures: Any) -> int:
    return sum(each._state in ("PENDING", "RUNNING") for each in list(futures))


def of_wait(futures: Any) -> str:
    """`concurrent.futures.wait`."""
    return f"concurrent.futures.wait, of which {_left(futures)} of {len(futures)} are not done"


def of_as_completed(futures: Any) -> str:
    """Which forgets those that it has handed out."""
    return f"concurrent.futures.as_completed, of which {_left(futures)} are not done"


def of_task(task: Any, is_programs: Callable[[FrameType], bool]) -> str:
    """A task of asyncio that a coroutine awaits, with where that is."""
    frames = (frame for frame, _ in awaiting(task.get_coro()))
    at = next((frame for frame in frames if is_programs(frame)), None)
    where = f", which is at {os.path.basename(at.f_code.co_filename)}:{at.f_lineno}" if at is not None else ""
    return f"the asyncio task {task.get_name()}{where}"


def is_notified(frames: Iterator[FrameType] | list[FrameType]) -> bool:
    """Whether a thread or a task in `Condition.wait` was woken, and waits for the lock again."""
    for frame in frames:
        names = frame.f_locals
        if frame.f_code.co_name != "wait" or "self" not in names:
            continue
        if "waiter" in names:  # of threading: whoever notifies takes it out
            return all(each is not names["waiter"] for each in list(getattr(names["self"], "_waiters", ())))
        if "fut" in names:
            return bool(names["fut"].done())
    return False


__all__ = ["is_notified", "of_as_completed", "of_future", "of_task", "of_wait"]
