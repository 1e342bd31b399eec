"""What threads and asyncio tasks of this process wait for among themselves: a lock, a barrier, a queue, a future, ...

The object stands in a frame of Python's own library, as `self` of the method that waits; its state says what is
missing. Nothing of the program's is run. Who holds an asyncio lock is found in the coroutines: one that is inside of an
`async with` keeps the lock's `__aexit__` for its end.
"""

from __future__ import annotations

import gc
import linecache
import os
import re
import sys
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from types import FrameType, MethodType
from typing import Any, NamedTuple

from . import awaited as told
from . import forgotten, http_pools, pools, shared_locks, waits
from .locks import holdings_of
from .sources import is_standard, is_users
from .stacks import asyncio_tasks, awaiting, is_ours, unwrapped
from .words import ASLEEP, READERS_TURN, UNREAD

MOST = 20  # different waits that are told
DEPTH = 100
NAME = 60  # characters of a thread's name
UNHEARD = "completed by another thread without loop.call_soon_threadsafe, so its event loop was not woken"
AN_EVENT = (
    "an asyncio.Event that is set (by another thread or event loop, without loop.call_soon_threadsafe: that does not "
    "wake the event loop of who waits)"
)
SET = (  # of a loop of which it is not known whether it sleeps, such as uvloop's
    "an asyncio.Event that is set, but its event loop has not come to who waits (a set() in another thread or event "
    "loop does not wake it)"
)

_RUNS = re.compile(r"\brun_(until_complete|forever)\(")
_FEEDER = "QueueFeederThread"  # Python's own name of a multiprocessing queue's thread

_AWAITED, _FRAMES = ("cr_await", "gi_yieldfrom", "ag_await"), ("cr_frame", "gi_frame", "ag_frame")

Document = dict[str, Any]


class Wait(NamedTuple):
    """One thread or task, what it waits for, and the program's lines that lead there."""

    thread: str
    awaited: Any
    what: str
    at: FrameType
    call: str  # the outermost function of the program
    blocks: bool  # a thread in a callback of its event loop
    side: bool = False  # a thread that the program has started: no call of Ray's
    joins: str = ""  # the thread whose end it waits for
    closes: bool = False  # at the end of an executor's `with`


class Work(NamedTuple):
    """A thread or a task, and its frames, innermost first."""

    name: str
    frames: list[FrameType]
    coroutines: list[Any]  # of a task, the same as its frames
    future: Any = None  # of a task: for which it has told its event loop to wait


def describe(frames: Mapping[int, FrameType], names: Mapping[int, str]) -> list[Document]:
    """[{"thread", "call", "at", "what", "kind", "count", "side", "free", "blocks", "joins", "closes", "holder",
    "holder_call", "held_at", "shared"}]

    `count` of equal ones are one, `side` of them threads of the program's own. `blocks`: a thread waits so within its
    event loop, which does nothing meanwhile. `joins`: it waits for the end of that thread, and `closes` an executor so,
    at the end of its `with`. `free`: a lock or a semaphore that nobody living holds. `holder`: the
    thread or task that holds it, in the call `holder_call`, since the line `held_at`; `shared`: others may hold it, as
    the permits of a semaphore.
    """
    works = [*_threads(frames, names), *_tasks()]
    found_waits = [wait for work in works if (wait := _wait(work)) is not None]
    found: dict[Any, Document] = {}
    for wait in found_waits:
        held = type(wait.awaited).__name__ in _HELD  # of others, what they say is all that is told
        key = id(wait.awaited) if held else wait.what, wait.at.f_code, wait.at.f_lineno
        if key in found:
            found[key]["count"] += 1
            found[key]["side"] += wait.side
        elif len(found) < MOST:
            found[key] = _document(wait, works, found_waits)
    return list(found.values())


def _threads(frames: Mapping[int, FrameType], names: Mapping[int, str]) -> Iterator[Work]:
    for ident, innermost in frames.items():
        stack: list[FrameType] = []
        frame: FrameType | None = innermost
        while frame is not None and len(stack) < DEPTH:
            stack.append(frame)
            frame = frame.f_back
        yield Work(names.get(ident, f"thread {ident}")[:NAME], stack, [])


def _tasks() -> Iterator[Work]:
    for task in asyncio_tasks():
        try:
            if not task.done() and (places := awaiting(task.get_coro())):
                frames, future = [frame for frame, _ in places], getattr(task, "_fut_waiter", None)
                yield Work(f"task {task.get_name()}"[:NAME], frames, list(_coroutines(task)), future)
        except Exception:  # noqa: BLE001 - a task of somebody's own make: the others are still wanted
            continue


def _coroutines(task: Any) -> Iterator[Any]:
    each, count = task.get_coro(), 0
    while each is not None and count < DEPTH:
        yield each
        inner = next((kept for name in _AWAITED if (kept := getattr(each, name, None)) is not None), None)
        each, count = unwrapped(inner), count + 1


def _wait(work: Work) -> Wait | None:
    """The outermost of the library's frames that the program's innermost one has called tells most."""
    own = next((number for number, frame in enumerate(work.frames) if _is_programs(frame)), None)
    if own is None:
        return None
    outer = next(frame for frame in reversed(work.frames) if _is_programs(frame))
    if what := _unheard(work.future):
        what = next((AN_EVENT for frame in work.frames[:own] if _is_wait_of_event(frame)), what)
        return Wait(work.name, work.future, what, work.frames[own], outer.f_code.co_qualname, False)
    side = waits.is_side(work.frames[-1], work.name) and not work.coroutines
    if what := http_pools.said(work.frames[:own]):
        return Wait(work.name, work.future, what, work.frames[own], outer.f_code.co_qualname, False, side)
    for frame in reversed(work.frames[:own]):
        tell = _KINDS.get((os.path.basename(frame.f_code.co_filename), frame.f_code.co_name))
        if tell is not None and is_standard(frame.f_code.co_filename):
            awaited = frame.f_locals.get("self", frame.f_locals.get("fs"))  # of `asyncio.wait`
            try:
                what = tell(awaited)
                if type(awaited).__name__ == "Condition" and told.is_notified(work.frames[:own]):
                    what = f"the lock of {_kind(awaited)}, which has notified it"
            except (AttributeError, TypeError):  # another Python's, or an object of the program's that looks like it
                return None
            blocks = not work.coroutines and _is_in_a_loop(work.frames)
            found = Wait(work.name, awaited, what, work.frames[own], outer.f_code.co_qualname, blocks, side)
            return _of_thread(found, work.frames[:own]) if what else None
    inner = work.frames[own - 1]
    what = _uncompleted(work.future) if own == 0 or _hands_over(inner) else _limited(inner)
    if own == 0 and not work.coroutines and not what:
        what = shared_locks.acquired(work.frames[0])
    return Wait(work.name, work.future, what, work.frames[own], outer.f_code.co_qualname, False) if what else None


def _of_thread(wait: Wait, inner: list[FrameType]) -> Wait:
    """With whose end that is, if it is a thread's."""
    if not isinstance(wait.awaited, threading.Thread):
        return wait
    name = os.path.join("concurrent", "futures", "_base.py")
    closes = any(each.f_code.co_name == "__exit__" and each.f_code.co_filename.endswith(name) for each in inner)
    return wait._replace(joins=wait.awaited.name[:NAME], closes=closes)


def _is_in_a_loop(frames: list[FrameType]) -> bool:
    """Whether a thread is in a callback or a coroutine of the event loop that it runs.

    That of uvloop has no frame of its own; who has called it has one.
    """
    return any(map(_runs_a_loop, frames)) or any(map(_has_called_a_loop, frames[1:]))


def _has_called_a_loop(frame: FrameType) -> bool:
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno or 0)
    return bool(_RUNS.search(line))


def _runs_a_loop(frame: FrameType) -> bool:
    return frame.f_code.co_name == "_run_once" and frame.f_globals.get("__name__") == "asyncio.base_events"


def _unheard(future: Any) -> str:
    """A future that is done ends the wait as soon as its loop looks: one that sleeps does not until something wakes it,
    and one that is awake is about to. A future of `asyncio.gather` when all of its own are done.
    """
    try:
        if type(future).__name__ == "_GatheringFuture":
            return told.of_tasks("asyncio.gather", list(future._children))
        done = future is not None and future.done() is True and told.is_asleep(future.get_loop())
    except Exception:  # noqa: BLE001 - of somebody's own make
        return ""
    return f"a future that is done ({UNHEARD})" if done else ""


def _is_wait_of_event(frame: FrameType) -> bool:
    is_it = frame.f_code.co_name == "wait" and frame.f_globals.get("__name__") == "asyncio.locks"
    event = frame.f_locals.get("self") if is_it else None
    return type(event).__name__ == "Event" and event is not None and event.is_set() is True


def _hands_over(frame: FrameType) -> bool:
    """`asyncio.to_thread`."""
    return frame.f_code.co_name == "to_thread" and frame.f_globals.get("__name__") == "asyncio.threads"


def _limited(frame: FrameType) -> str:
    """`asyncio.wait_for`, up to Python 3.11, where what it waits for is a task of its own."""
    is_it = frame.f_code.co_name == "wait_for" and frame.f_globals.get("__name__") == "asyncio.tasks"
    limit = frame.f_locals.get("timeout") if is_it else None
    return f"asyncio.wait_for, for at most {limit:g} s" if isinstance(limit, int | float) else ""


def _uncompleted(future: Any) -> str:
    """A plain future, or a task, that a coroutine awaits, and no result of Ray's."""
    if type(future).__name__ not in ("Future", "Task") or any(True for _ in waits.references(future)):
        return ""
    if type(future).__name__ == "Task":
        return told.of_task(future, _is_programs)
    source = next(iter(_sources(future)), None)  # of `run_in_executor`: what a thread completes
    if source is None:
        return forgotten.said(future)
    if type(getattr(source, "_exception", None)) is StopIteration:  # asyncio refuses that, and only logs that it did
        return "an asyncio.Future that is never done: its thread raised StopIteration, which asyncio does not take over"
    return told.of_future(source)


def _sources(future: Any) -> Iterator[Any]:
    for callback, *_ in getattr(future, "_callbacks", None) or ():
        for cell in getattr(callback, "__closure__", None) or ():
            if type(cell.cell_contents).__module__ == "concurrent.futures._base":
                yield cell.cell_contents


def _is_programs(frame: FrameType) -> bool:
    return is_users(frame.f_code.co_filename) and not is_ours(frame.f_code.co_filename)


def _document(wait: Wait, works: Iterable[Work], waits: Iterable[Wait]) -> Document:
    waiting = {each.thread for each in waits if each.awaited is wait.awaited}
    others = [work for work in works if work.name not in waiting and any(map(_is_programs, work.frames))]
    parts = {id(work.coroutines[0]) for work in works if work.name in waiting and work.coroutines}
    may_hold = any(not _gathers(work, parts) for work in others)
    holder, at = next(((work, at) for work in others if (at := _holds(work, wait.awaited)) is not None), (None, None))
    if holder is None and (type(wait.awaited).__name__ == "Lock" or not may_hold):
        own, holder, at = next(_holds_already(wait, works, waits), (wait, None, None))
        wait = own if _place(own.at) == _place(wait.at) else wait
    document = {
        "thread": wait.thread,
        "call": wait.call,
        "at": _place(wait.at),
        "what": wait.what,
        "kind": type(wait.awaited).__name__,
        "count": 1,
        "side": int(wait.side),
        "blocks": wait.blocks,
        "joins": wait.joins,
        "closes": wait.closes,
        "free": holder is None and not may_hold and type(wait.awaited).__name__ in _HELD,
    }
    if holder is None:
        return document
    call = next(frame for frame in reversed(holder.frames) if _is_programs(frame))
    rest = (work for work in others if work is not holder and not _gathers(work, parts))
    return {
        **document,
        "holder": holder.name,
        "holder_call": call.f_code.co_qualname,
        "held_at": _place(at) if at is not None else None,
        "shared": type(wait.awaited).__name__ != "Lock" and any(True for _ in rest),
    }


def _holds_already(
    wait: Wait, works: Iterable[Work], waits: Iterable[Wait]
) -> Iterator[tuple[Wait, Work, FrameType | None]]:
    """Those who wait for it and have taken it further out: a lock of asyncio can't be taken twice."""
    by_name = {work.name: work for work in works}
    for each in waits:
        work = by_name.get(each.thread)
        if each.awaited is wait.awaited and work is not None and (at := _taken_further_out(work, each)) is not None:
            yield each, work, at


def _taken_further_out(work: Work, wait: Wait) -> FrameType | None:
    if type(wait.awaited).__name__ not in _HELD or not work.coroutines:
        return None
    frames = list(_frames_of(work.coroutines))
    entering = any(frame.f_code.co_name == "__aenter__" for frame in work.frames)
    for coroutine, frame in zip(work.coroutines, frames, strict=True):
        own = sum(_is_exit_of(wait.awaited, each) for each in gc.get_referents(coroutine))
        if own > (entering and frame is wait.at):
            return frame
    outer = (frame for frame in work.frames if frame is not wait.at and _is_programs(frame))
    taken = (frame for frame in outer for place in holdings_of(frame, type(wait.awaited)) if place.lock is wait.awaited)
    return next(taken, None)


def _gathers(work: Work, parts: Container[int]) -> bool:
    """Whether it waits for those together, which is no sign that it holds what they wait for."""
    children = getattr(work.future, "_children", ())
    return any(id(task.get_coro()) in parts for task in children if hasattr(task, "get_coro"))


def _place(frame: FrameType) -> Document:
    return {"file": frame.f_code.co_filename, "line": frame.f_lineno or 0, "function": frame.f_code.co_qualname}


def _holds(work: Work, awaited: Any) -> FrameType | None:
    """The frame in which a task is inside of the `async with` of this object, or has called its `acquire`."""
    if type(awaited).__name__ not in _HELD:
        return None
    for coroutine, frame in zip(work.coroutines, _frames_of(work.coroutines), strict=True):
        kept = gc.get_referents(coroutine)
        if any(_is_exit_of(awaited, each) for each in kept):
            return frame
    for frame in work.frames:
        if _is_programs(frame) and any(place.lock is awaited for place in holdings_of(frame, type(awaited))):
            return frame
    return None


def _is_exit_of(awaited: Any, kept: Any) -> bool:
    return isinstance(kept, MethodType) and kept.__name__ == "__aexit__" and kept.__self__ is awaited


def _frames_of(coroutines: Iterable[Any]) -> Iterator[FrameType | None]:
    for each in coroutines:
        yield next((kept for name in _FRAMES if (kept := getattr(each, name, None)) is not None), None)


# ---- what they say


_HELD = frozenset({"Lock", "Semaphore", "BoundedSemaphore", "lock"})


def _barrier(it: Any) -> str:
    have = "has" if it._count == 1 else "have"
    return f"{_kind(it)} for {it._parties}, at which {it._count} {have} arrived"


def _semaphore(it: Any) -> str:
    return f"{_kind(it)} with no permit left" if not it._value else ""


def _event(it: Any) -> str:
    if not it.is_set():
        return f"{_kind(it)} that is not set"
    waiters = list(getattr(it, "_waiters", ())) if type(it).__module__ == "asyncio.locks" else []
    return SET if waiters and all(each.done() for each in waiters) else ""


def _lock(it: Any) -> str:
    return _kind(it)


def _condition(it: Any) -> str:
    return f"{_kind(it)} to be notified"


def _predicate(it: Any) -> str:
    return f"the predicate of {_kind(it)} to hold"


def _get(it: Any) -> str:
    return f"an item from {_kind(it)} that is empty" if not _size(it) else ""


def _taken(it: Any) -> str:
    """From a queue; several processes that read from one take turns, by a lock."""
    if not type(it).__module__.startswith("multiprocessing."):
        return _get(it)
    lock = it._rlock._semlock
    return READERS_TURN if not lock._count() and not lock._get_value() else ""


def _put(it: Any) -> str:
    if type(it).__module__.startswith("multiprocessing."):
        return shared_locks.room(it)
    most = it.maxsize
    return "" if _size(it) < most else f"room in {_kind(it)} that is full ({_size(it)} of {most})"


def _join(it: Any) -> str:
    left = int(it.unfinished_tasks if hasattr(it, "unfinished_tasks") else it._unfinished_tasks)
    return f"{left} {'item' if left == 1 else 'items'} of {_kind(it)} to be done (task_done)"


def _tasks_of_wait(it: Any) -> str:
    return told.of_tasks("asyncio.wait", list(it))


def _tasks_of_group(it: Any) -> str:
    left = len(it._tasks)
    return f"{left} {'task' if left == 1 else 'tasks'} of an asyncio.TaskGroup"


def _size(it: Any) -> int:
    kept = getattr(it, "queue", None)
    return len(kept if kept is not None else it._queue)


def _thread_end(it: Any) -> str:
    if it.name == _FEEDER:
        return UNREAD
    frame = sys._current_frames().get(it.ident)
    while frame is not None and not _is_programs(frame):
        frame = frame.f_back
    where = f", which is at {os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}" if frame is not None else ""
    return f"the end of thread {it.name}{where}"


def _kind(it: Any) -> str:
    """
    >>> import queue
    >>> _kind(queue.Queue())
    'a queue.Queue'
    """
    module = type(it).__module__.partition(".")[0]
    return f"{'an' if module[0] in 'aeiou' else 'a'} {module}.{type(it).__name__}"


Tell = Callable[[Any], str]
_KINDS: dict[tuple[str, str], Tell] = {
    ("threading.py", "wait"): lambda it: _THREADING.get(type(it).__name__, lambda _: "")(it),
    ("threading.py", "wait_for"): _predicate,
    ("threading.py", "acquire"): _semaphore,
    ("threading.py", "__enter__"): _semaphore,
    ("threading.py", "join"): _thread_end,
    ("synchronize.py", "__enter__"): shared_locks.held,
    ("synchronize.py", "wait"): shared_locks.signalled,
    ("queue.py", "get"): _get,
    ("queue.py", "put"): _put,
    ("queue.py", "join"): _join,
    ("pool.py", "get"): pools.result,
    ("pool.py", "wait"): pools.result,
    ("_base.py", "result"): told.of_future,
    ("_base.py", "exception"): told.of_future,
    ("_base.py", "wait"): told.of_wait,
    ("_base.py", "as_completed"): told.of_as_completed,
    ("streams.py", "_wait_for_data"): lambda _: "data from a stream of asyncio",
    ("streams.py", "_drain_helper"): lambda _: "room in a stream of asyncio",
    ("base_subprocess.py", "_wait"): lambda it: f"the end of child process {it._pid}",
    ("tasks.py", "_wait_for_one"): lambda _: "the next of asyncio.as_completed",
    ("tasks.py", "sleep"): lambda _: ASLEEP,
    ("tasks.py", "_wait"): _tasks_of_wait,
    ("taskgroups.py", "__aexit__"): _tasks_of_group,
    ("locks.py", "acquire"): lambda it: (_lock if type(it).__name__ == "Lock" else _semaphore)(it),
    ("locks.py", "wait"): lambda it: _THREADING.get(type(it).__name__, lambda _: "")(it),
    ("locks.py", "wait_for"): _predicate,
    ("queues.py", "get"): _taken,
    ("queues.py", "put"): _put,
    ("queues.py", "join"): _join,
}
_THREADING: dict[str, Tell] = {"Barrier": _barrier, "Event": _event, "Condition": _condition}
