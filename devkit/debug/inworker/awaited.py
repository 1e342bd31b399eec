"""What waits of Python's library for several things, or for somebody else's, are said to be for."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from .stacks import awaiting
from .words import QUEUED

_BEGUN = "PENDING"
_WAITS_IN = ("threading.py", "_base.py")  # where a thread is that waits for a future


def of_future(it: Any) -> str:
    """A `concurrent.futures.Future`. Only a pool knows whether it was begun: a coroutine's is pending to its end."""
    if it._state == "RUNNING":
        return "a concurrent.futures.Future that is being computed"
    if it._state != _BEGUN:
        return ""
    queue = next((each for each in _queues() if any(one is it for one in _queued(each))), None)
    if queue is None:
        return "a concurrent.futures.Future that is not done"
    if waiters := _waiters_within(queue):
        many, ours = waiters
        threads = f"all {many} threads of which wait" if many > 1 else "the only thread of which waits"
        return f"{QUEUED}, {threads} for {'what is queued there' if ours else 'other futures'}"
    return "a concurrent.futures.Future that nobody has begun"


def _queues() -> list[Any]:
    """Of the pools of threads."""
    known = getattr(sys.modules.get("concurrent.futures.thread"), "_threads_queues", {})
    return list({id(each): each for each in list(known.values())}.values())


def _queued(queue: Any) -> list[Any]:
    """The futures in it. Such a queue is C's, and has a list or its items in itself."""
    items = (item for each in gc.get_referents(queue) for item in (list(each) if type(each) is list else [each]))
    return [future for item in items if (future := getattr(item, "future", None)) is not None]


def _waiters_within(queue: Any) -> tuple[int, bool] | None:
    """How many threads a pool has, where each of them waits for a future, and whether all do for jobs that are queued
    in that pool; else None.

    A future of another kind may still lead there, as that of a coroutine that awaits `asyncio.to_thread`.
    """
    known = getattr(sys.modules.get("concurrent.futures.thread"), "_threads_queues", {})
    threads = [thread for thread, own in list(known.items()) if own is queue and thread.is_alive()]
    jobs, frames = {id(future) for future in _queued(queue)}, sys._current_frames()
    awaited = [_awaited(frames.get(each.ident)) for each in threads]
    if not threads or None in awaited:
        return None
    return len(threads), all(each in jobs for each in awaited)


def _awaited(frame: FrameType | None) -> int | None:
    """Which future a thread waits for in `Future.result`; None where it is elsewhere."""
    while frame is not None and os.path.basename(frame.f_code.co_filename) in _WAITS_IN:
        if frame.f_code.co_name in ("result", "exception") and "self" in frame.f_locals:
            return id(frame.f_locals["self"])
        frame = frame.f_back
    return None


def _left(futures: Any) -> int:
    return sum(each._state in ("PENDING", "RUNNING") for each in list(futures))


def of_wait(futures: Any) -> str:
    """`concurrent.futures.wait`."""
    return f"concurrent.futures.wait, of which {_left(futures)} of {len(futures)} are not done"


def of_as_completed(futures: Any) -> str:
    """Which forgets those that it has handed out."""
    return f"concurrent.futures.as_completed, of which {_left(futures)} are not done"


def is_asleep(loop: Any) -> bool:
    """Whether an event loop of Python's waits for something that wakes it, with nothing that is ready to run."""
    for frame in list(sys._current_frames().values()):
        inner = os.path.basename(frame.f_code.co_filename) == "selectors.py"
        outer = frame.f_back
        if inner and outer is not None and outer.f_code.co_name == "_run_once" and outer.f_locals.get("self") is loop:
            timeout = outer.f_locals.get("timeout")
            return timeout is None or timeout > 0
    return False


def is_pythons(task: Any) -> bool:
    """Whether it is of asyncio's own class, whose methods may be called."""
    tasks = sys.modules.get("asyncio.tasks")
    return tasks is not None and type(task) in (tasks.Task, tasks._PyTask)


def of_tasks(how: str, tasks: list[Any]) -> str:
    """Several that are awaited together. One that was cancelled and has not ended may have caught that, and go on."""
    left = [each for each in tasks if not each.done()]
    cancelled = sum(is_pythons(each) and each.cancelling() > 0 for each in left)
    every = {1: "it", 2: "both"}.get(len(left), f"all {len(left)}")
    them = every if cancelled == len(left) else f"{cancelled} of these"
    but = f" (cancel() was called on {them})" if cancelled else ""
    return f"{how}, of which {len(left)} of {len(tasks)} are not done{but}"


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


__all__ = ["is_notified", "of_as_completed", "of_future", "of_task", "of_tasks", "of_wait"]
