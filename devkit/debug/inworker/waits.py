"""What this process waits for of Ray: the tasks behind each `ray.get`, `ray.wait`, and `await` of a result.

References name their tasks. They stand in Ray's own frames, and behind the futures that coroutines wait for; none of
the program's code runs when they are looked at.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from itertools import islice
from types import FrameType, MethodType
from typing import Any

from . import ray_queues
from .sources import is_users
from .stacks import is_ours

RAYS_FILE = os.path.join("ray", "_private", "worker.py")
_REFERENCES = {"get": ("object_refs",), "wait": ("ray_waitables", "object_refs")}  # of Ray's functions, by release
MOST_TASKS = 50  # of one wait
MOST_WAITS = 50
MOST_NEAR = 4
DEPTH = 100
ENDLESS = 10**6  # seconds: what `ray.wait` makes of no time-out
_GROUP = "__ray_concurrency_group__"  # of a method, by Ray
MOST_GROUPED = 50  # methods
_ASYNC_ACTOR_THREAD = "AsyncIO Thread"

Document = dict[str, Any]


def of_process(frames: dict[int, FrameType], names: dict[int, str]) -> list[Document]:
    """One document for each wait; `frames` are the innermost ones of the threads, by their idents.

    As `_document` has it, with "takes": the queues of Ray that it takes from elsewhere, as `ray_queues` has them.
    """
    found = [each for ident, frame in frames.items() if (each := of_thread(frame, names.get(ident, ""))) is not None]
    return (found + list(_of_coroutines()))[:MOST_WAITS]


def actor() -> Document:
    """The actor that lives here, and how many calls it takes at once; empty and 0 where there is none."""
    from .core import asking
    from .identity import has_job

    worker = getattr(sys.modules.get("ray._private.worker"), "global_worker", None)
    with asking() as is_open:
        try:
            if not is_open or worker is None or not has_job() or worker.actor_id.is_nil():
                return {"actor_id": "", "concurrency": 0}
            taken = int(worker.core_worker.current_actor_max_concurrency())
            return {"actor_id": str(worker.actor_id.hex()), "concurrency": taken, **_groups(worker)}
        except Exception:  # noqa: BLE001 - another Ray's: then nothing is known of it
            return {"actor_id": "", "concurrency": 0}


def _groups(worker: Any) -> Document:
    """{"grouped": whether calls of some methods take slots of their own, "method_groups": {method: its group}}."""
    kinds = [base for each in worker.actors.values() for base in type(each).__mro__]
    methods = {name: each for kind in reversed(kinds) for name, each in vars(kind).items()}
    groups = {name: vars(each)[_GROUP] for name, each in methods.items() if _GROUP in getattr(each, "__dict__", {})}
    known = {name: group for name, group in islice(groups.items(), MOST_GROUPED) if isinstance(group, str)}
    return {"grouped": bool(groups), "method_groups": known}


def is_async_actor() -> bool:
    from .core import asking

    worker = getattr(sys.modules.get("ray._private.worker"), "global_worker", None)
    with asking() as is_open:
        try:
            return is_open and worker is not None and bool(worker.core_worker.current_actor_is_asyncio())
        except Exception:  # noqa: BLE001 - another Ray's, or none that is connected
            return False


# ---- threads


def of_thread(frame: FrameType | None, name: str) -> Document | None:
    """The innermost wait of a thread, if it is in one."""
    stack: list[FrameType] = []
    while frame is not None and len(stack) < DEPTH:
        stack.append(frame)
        frame = frame.f_back
    for index, each in enumerate(stack):
        parameters = _REFERENCES.get(each.f_code.co_name, ())
        if not parameters or not each.f_code.co_filename.endswith(RAYS_FILE):
            continue
        values = each.f_locals
        tasks = task_ids(next((values[name] for name in parameters if name in values), ()))
        own = [outer for outer in stack[index:] if _is_programs(outer)]
        if tasks and own:
            needed = int(values.get("num_returns") or 1) if each.f_code.co_name == "wait" else len(tasks)
            timeout = values.get("timeout")
            ends = timeout is not None and timeout < ENDLESS
            side, blocks = is_side(stack[-1], name), name.startswith(_ASYNC_ACTOR_THREAD)
            found = _document(name, own, tasks, needed, ends=ends, side=side, blocks=blocks)
            return {**found, "takes": ray_queues.taken_from(own, stack[index:])}
    return None


def is_side(outermost: FrameType, name: str) -> bool:
    """Whether the program has started this thread: Ray's own, which take calls, begin in C or run an async actor."""
    is_pythons = outermost.f_code.co_name == "_bootstrap" and outermost.f_globals.get("__name__") == "threading"
    return is_pythons and not name.startswith(_ASYNC_ACTOR_THREAD)


def task_ids(references: Any) -> tuple[str, ...]:
    """The tasks whose results these are: one reference, or several."""
    found: list[str] = []
    for each in references if isinstance(references, (list, tuple)) else [references]:
        try:
            found.append(str(each.task_id().hex()))
        except Exception:  # noqa: BLE001 - a generator's, or no reference at all: then it names no task
            continue
    return tuple(dict.fromkeys(found))[:MOST_TASKS]


def _is_programs(frame: FrameType) -> bool:
    return is_users(frame.f_code.co_filename) and not is_ours(frame.f_code.co_filename)


def _document(
    thread: str,
    own: list[FrameType],
    tasks: tuple[str, ...],
    needed: int,
    *,
    ends: bool = False,
    side: bool = False,
    blocks: bool = False,
) -> Document:
    """`blocks`: the wait is a coroutine's own, and holds up the event loop of its actor. `near`: other references that
    the function has, by the names of its variables: what it waits for may have them as arguments.
    """
    inner, outer = own[0], own[-1]
    at = {"file": inner.f_code.co_filename, "line": inner.f_lineno or 0, "function": inner.f_code.co_qualname}
    call = outer.f_code.co_qualname
    return {
        "thread": thread,
        "call": call,
        "at": at,
        "tasks": list(tasks),
        "needed": needed,
        "ends": ends,
        "side": side,
        "blocks": blocks,
        "near": dict(_near(inner, tasks)),
    }


def _near(frame: FrameType, tasks: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """(name, task)."""
    references = ((name, value) for name, value in frame.f_locals.items() if type(value).__name__ == "ObjectRef")
    named = ((name, task) for name, value in references for task in task_ids(value))
    yield from islice((each for each in named if each[1] not in tasks), MOST_NEAR)


# ---- coroutines


def _of_coroutines() -> Iterator[Document]:
    from .stacks import asyncio_tasks, awaiting

    tasks = [task for task in asyncio_tasks() if not task.done()]
    parts = {id(part) for task in tasks for part in _parts(_awaited(task))}  # which `gather` has made of a call's own
    for task in tasks:
        try:
            awaited, frames = list(references(_awaited(task))), [frame for frame, _ in awaiting(task.get_coro())]
            own = [frame for frame in frames if _is_programs(frame)]
        except Exception:  # noqa: BLE001 - a task of somebody's own make: the other waits are still wanted
            continue
        found = task_ids(awaited)
        if found and own and id(task) not in parts:
            one = _document(f"task {task.get_name()}", own, found, len(found), ends=_is_limited(task, tasks))
            yield {**one, "takes": ray_queues.taken_from(own, frames)}


def _is_limited(task: Any, tasks: list[Any]) -> bool:
    """Whether a time-out ends its wait: of `asyncio.timeout`, or of `wait_for`, whose own task it is on Python 3.11."""
    from .stacks import awaiting

    for other in tasks:
        frames = [frame for frame, _ in awaiting(other.get_coro())]
        waits = [frame.f_locals for frame in frames if _is_wait_for(frame)]
        if any(each.get("fut") is task and each.get("timeout") is not None for each in waits):
            return True
    coroutine, count = task.get_coro(), 0
    while coroutine is not None and count < DEPTH:
        kept = (each for each in gc.get_referents(coroutine) if isinstance(each, MethodType))
        if any(type(each.__self__).__name__ == "Timeout" and _has_end(each.__self__) for each in kept):
            return True
        coroutine, count = getattr(coroutine, "cr_await", None), count + 1
    return False


def _is_wait_for(frame: FrameType) -> bool:
    return frame.f_code.co_name == "wait_for" and frame.f_globals.get("__name__") == "asyncio.tasks"


def _has_end(limit: Any) -> bool:
    return getattr(limit, "_when", None) is not None


def _awaited(task: Any) -> Any:
    """The future that a task waits for."""
    return getattr(task, "_fut_waiter", None)


def _parts(future: Any) -> list[Any]:
    """Those of `asyncio.gather`."""
    found = getattr(future, "_children", None)
    return list(found) if isinstance(found, list) else []


def references(future: Any, depth: int = 0) -> Iterator[Any]:
    """Ray's references behind a future: Ray keeps each on a future of another kind, which wakes this one."""
    if future is None or depth > DEPTH or future.done():
        return
    for part in _parts(future):
        yield from references(part, depth + 1)
    if hasattr(future, "_fut_waiter"):
        yield from references(future._fut_waiter, depth + 1)
    for callback, *_ in getattr(future, "_callbacks", None) or ():
        for cell in getattr(callback, "__closure__", None) or ():
            reference = getattr(cell.cell_contents, "object_ref", None)
            if reference is not None:
                yield reference
