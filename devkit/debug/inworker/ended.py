"""What has ended in this process that somebody may still wait for: its threads, and asyncio tasks that failed unheard.

Both are known as long as the program keeps the object, and nobody is told of it: an exception in a task that no one
awaits appears when the task is collected, and a thread that returns leaves no word.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from types import CodeType, FrameType, TracebackType
from typing import Any
from weakref import WeakKeyDictionary

from . import reaching
from .redaction import scrub_start
from .sources import is_users
from .stacks import asyncio_tasks, awaiting

MOST = 5  # of each kind
CANCELLED = 20  # names of tasks
TEXT = 200  # characters of an exception
_TASKS = ("_all_tasks", "_scheduled_tasks")  # asyncio's own sets of living objects, up to Python 3.11 and from 3.12 on

Document = dict[str, Any]
_raised: WeakKeyDictionary[Any, Document] = WeakKeyDictionary()  # by thread: "said" and "at"


def note(thread: Any, error: BaseException) -> None:
    """By what a thread has ended, while its object is there."""
    _raised[thread] = {"said": _said(error), "at": _place(error.__traceback__)}


def ended() -> list[Document]:
    """[{"kind", "name", "said", "at"}]: what it raised and where, if it did.

    "thread"; "task"; "part", a task whose error `asyncio.gather` or `wait` keeps until others are done; or "cancelled",
    whose "at" is where it was made, if only one line of its file does that. Of tasks of one name that failed at one
    line there is one, with their "count", whether they are "alike" in what they raised, how many of that name are
    "open", and what of its file it "reaches", as `reaching` has it.
    """
    every = _every_task()
    return [*list(_tasks(every))[:MOST], *islice(_cancelled(every), CANCELLED), *list(_threads())[:MOST]]


def _threads() -> Iterator[Document]:
    threading = sys.modules.get("threading")
    for each in _copy(getattr(threading, "_dangling", ())):
        if each.ident is not None and not each.is_alive() and not each.name.startswith(("devkit", "ray")):
            yield {"kind": "thread", "name": str(each.name), "said": "", "at": None, **_raised.get(each, {})}


def _every_task() -> list[Any]:
    tasks = sys.modules.get("asyncio.tasks")
    return list({id(task): task for name in _TASKS for task in _copy(getattr(tasks, name, ()))}.values())


def _cancelled(every: Sequence[Any]) -> Iterator[Document]:
    """Of coroutines of the program's, in loops that are open: one that closes has cancelled all that it had."""
    found: dict[str, CodeType] = {}
    counted: Counter[str] = Counter()
    for each in every:
        is_it = getattr(each, "cancelled", bool)() and not each.get_loop().is_closed()
        code = _code(each) if is_it else None
        if code is not None and is_users(code.co_filename):
            found[_name(each)] = code
            counted[_name(each)] += 1
    unfinished = Counter(_name(each) for each in every if not each.done()) if found else Counter[str]()
    for name, code in found.items():
        at = reaching.made_at(code)
        yield {
            "kind": "cancelled",
            "name": name,
            "said": "",
            "at": at,
            "count": counted[name],
            "open": unfinished[name],
        }


def _code(task: Any) -> CodeType | None:
    return getattr(task.get_coro(), "cr_code", None)


def _tasks(every: Sequence[Any]) -> Iterator[Document]:
    kept = _kept_by_others()
    found: dict[tuple[str, str, int], Document] = {}
    for each in every:
        # `exception()` would take it for heard.
        raised = getattr(each, "_exception", None) if getattr(each, "_log_traceback", False) and each.done() else None
        at = _place(raised.__traceback__) if raised is not None else None
        if raised is not None and at is not None:
            kind, name, said = "part" if id(each) in kept else "task", _name(each), _said(raised)
            key = kind, name, at["line"]
            if key not in found:
                new = {"kind": kind, "name": name, "said": said, "at": at, "count": 0, "alike": True}
                found[key] = {**new, "reaches": reaching.of(_code(each))}
            same = found[key]
            same["count"] += 1
            same["alike"] &= same["said"] == said
    unfinished = Counter(_name(each) for each in every if not each.done()) if found else Counter[str]()
    return iter([{**each, "open": unfinished[each["name"]]} for each in found.values()])


def _name(task: Any) -> str:
    return str(getattr(task.get_coro(), "__qualname__", task.get_name()))


def _kept_by_others() -> frozenset[int]:
    """Ids of the tasks that an `asyncio.gather` or `asyncio.wait` under way will hand out."""
    found: set[int] = set()
    for each in asyncio_tasks():
        try:
            if not each.done():
                found.update(map(id, getattr(getattr(each, "_fut_waiter", None), "_children", ())))
                waits = (frame for frame, _ in awaiting(each.get_coro()) if _is_wait(frame))
                found.update(id(task) for frame in waits for task in frame.f_locals.get("fs", ()))
        except Exception:  # noqa: BLE001 - of somebody's own make: the others are still wanted
            continue
    return frozenset(found)


def _is_wait(frame: FrameType) -> bool:
    return frame.f_code.co_name == "_wait" and frame.f_globals.get("__name__") == "asyncio.tasks"


def _said(error: BaseException) -> str:
    """Of an error of Ray's that hands on another one, that one, which was raised elsewhere, and was awaited here: Ray's
    own text is a whole traceback.
    """
    try:
        cause = getattr(error, "cause", None) if type(error).__name__.startswith("RayTaskError") else None
        own = cause if isinstance(cause, BaseException) else error
        text = scrub_start(str(own), TEXT)
        said = f"{type(own).__name__}: {text}" if text else type(own).__name__
        return said if own is error else f"{said}, awaited"
    except Exception:  # noqa: BLE001 - the program's own text of it may fail
        return type(error).__name__


def _place(trace: TracebackType | None) -> Document | None:
    """The innermost line of the program."""
    found = None
    while trace is not None:
        code = trace.tb_frame.f_code
        if is_users(code.co_filename):
            found = {"file": code.co_filename, "line": trace.tb_lineno, "function": code.co_qualname}
        trace = trace.tb_next
    return found


def _copy(weak: Iterable[Any]) -> list[Any]:
    """Of a set to which other threads may add meanwhile."""
    for _ in range(3):
        try:
            return list(weak)
        except RuntimeError:
            continue
    return []
