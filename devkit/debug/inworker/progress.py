"""How far this process has come, for who looks for the cause of a hang: step, phase, collectives, locks, waits."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

from . import (
    collectives,
    connected,
    ended,
    environments,
    far_ends,
    forked,
    held_back,
    keeps,
    kernel_view,
    later,
    locks,
    lookups,
    loop_variables,
    polls,
    primitives,
    signals,
    statements,
    turning,
    waits,
)
from .held_back import MAIN
from .identity import STARTED_BY, identify
from .sources import is_users
from .spoken import last_words
from .stacks import OUR_THREADS, all_threads, asyncio_tasks, awaiting

Document = dict[str, Any]

# What programs call the number of the step that they are in, best first.
STEP_NAMES = ("global_steps", "global_step", "step", "iteration", "step_idx", "epoch")
HOLDERS = ("self", "progress", "state", "trainer")  # objects that keep it as an attribute
PHASE = "phase"
DEPTH = 100
WROTE = 2  # lines of each output
MOST_CALLS = 2  # of an async actor that are named


def facts(agent: Any) -> Document:
    """One sample. Reads only: no code of the program's runs."""
    frames, names = locks.innermost(OUR_THREADS)
    ident, main = next(((each, frame) for each, frame in frames.items() if names.get(each) == MAIN), (0, None))
    step, phase = position(main)
    threads = _threads()
    held = held_back.frame_of(_call_name(threads), main)
    if held is not None:
        frames, threads = {**frames, ident: held}, held_back.shown(threads, held)
    return {
        "time": time.time(),
        "rank": identify().rank,  # what the hub knows may be two seconds old
        "step": step,
        "phase": phase or _call_name(threads),
        "task": "" if forked.is_child() else task_function(),
        "threads": threads,
        "groups": [] if forked.is_child() else collectives.groups(),  # its parent's, if any: their locks may be held
        "call": _call(frames),
        "locks": locks.describe(frames, names),
        "waits": waits.of_process(frames, names),
        "lookups": lookups.in_vain(),
        "ended": ended.ended(),
        "caught": agent.caught(),
        "primitives": [*primitives.describe(frames, names), *([held_back.wait_at(held)] if held is not None else ())],
        "polls": polls.describe(frames, names),
        "environments": environments.describe(frames.values()),
        "engine": environments.engine(frames.values()),
        "searches": environments.searches(frames.values()),
        "statements": statements.describe(frames, names),
        "turning": [] if forked.is_child() else turning.describe(names, OUR_THREADS),
        "keeps": {} if forked.is_child() else keeps.of_actor(),
        "growing": {} if forked.is_child() else keeps.growing(),
        "models": {} if forked.is_child() else keeps.models(),
        "coroutines": _coroutines(),
        **waits.actor(),
        "process": kernel_view.process(os.getpid()),
        "unanswered": kernel_view.unanswered(),
        "halts": signals.halts(),
        "connected": connected.of_process(),
        "stops": [stop.id for stop in agent.stops.records()] if agent._stops else [],
        "wrote": [{"line": line, "last": last} for line, last in last_words(WROTE)],
        "forked": {"at": forked.at()} if forked.is_child() else None,
        "orphaned": _is_orphaned(),
    }


def _is_orphaned() -> bool:
    """Whether who started it, a shell for one, has ended: a signal to that has not reached this one."""
    return not forked.is_child() and bool(os.environ.get(later.CHILD_OF)) and os.getppid() != STARTED_BY


def _coroutines() -> Document:
    """{"count": asyncio tasks of the program that wait, "running": names of those that are at work right now}."""
    tasks = sys.modules.get("asyncio.tasks")
    running = [task.get_name() for task in list(getattr(tasks, "_current_tasks", {}).values())]
    return {"count": sum(map(_is_programs, asyncio_tasks())), "running": sorted(map(str, running))}


def _is_programs(task: Any) -> bool:
    """Whether an asyncio task is under way in the program's code."""
    try:
        return not task.done() and any(is_users(frame.f_code.co_filename) for frame, _ in awaiting(task.get_coro()))
    except Exception:  # noqa: BLE001 - a task of somebody's own make
        return False


def _call_name(threads: list[Document]) -> str:
    """A forked child has its parent's title, of the moment of the fork."""
    if forked.is_child():
        return ""
    return running_calls(threads) if waits.is_async_actor() else task_name()


def _threads() -> list[Document]:
    """The stacks, each with what the kernel says of its thread."""
    natives = _natives()
    return [
        {**each, **(_with_far_ends(kernel_view.thread(natives[each["name"]])) if each["name"] in natives else {})}
        for each in all_threads()
    ]


def _with_far_ends(known: Document) -> Document:
    return {**known, "wait": far_ends.of(known["wait"])} if "wait" in known else known


def _natives() -> dict[str, int]:
    """The kernel's number of each thread by its name; two of one name have none, for they could be mistaken."""
    import threading

    found: dict[str, int] = {}
    twice: set[str] = set()
    for thread in list(getattr(threading, "_active", {}).values()):
        if thread.name in found:
            twice.add(thread.name)
        if forked.is_child() and thread is threading.main_thread():
            found[thread.name] = os.getpid()  # Python keeps its parent's
        elif thread.native_id is not None:
            found[thread.name] = int(thread.native_id)
    return {name: number for name, number in found.items() if name not in twice}


def _call(frames: dict[int, FrameType]) -> Document | None:
    """The outermost call of torch.distributed that is under way, whichever thread is in it."""
    for frame in frames.values():
        found, meeting = None, None
        for each in _outwards(frame):
            found = collectives.call_of(each) or found
            meeting = meeting or collectives.meeting_of(each)
        if found is not None:
            return {**found, **(meeting or {})}
    return None


def position(frame: FrameType | None) -> tuple[int | None, str]:
    """The step and the phase that the main thread's variables tell; the outermost frame that has one is believed."""
    step, phase = None, ""
    for each in _outwards(frame):
        if not is_users(each.f_code.co_filename):
            continue
        values = each.f_locals
        left_over = {name for name in STEP_NAMES if name in values and loop_variables.is_left_over(each, name)}
        found = _step_of({name: value for name, value in values.items() if name not in left_over})
        step = found if found is not None else step
        if isinstance(values.get(PHASE), str):
            phase = values[PHASE]
    return step, phase


def _step_of(values: Any) -> int | None:
    """By the best name, of a variable or of an attribute: a local `epoch` is no step beside `self.global_step`."""
    kept: list[Any] = [getattr(values.get(holder), "__dict__", {}) for holder in HOLDERS]
    for name in STEP_NAMES:
        for own in (values, *kept):
            if hasattr(own, "get") and _is_count(own.get(name)):
                return int(own[name])
    return None


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    count = 0
    while frame is not None and count < DEPTH:
        yield frame
        frame, count = frame.f_back, count + 1


def running_calls(threads: list[Document]) -> str:
    """The calls that an async actor is in, by their coroutines: its title names the one that came last."""
    outermost = (_outermost(each["frames"]) for each in threads)
    names = list(dict.fromkeys(name for name in outermost if name))
    return ", ".join(names[:MOST_CALLS]) + (", ..." if len(names) > MOST_CALLS else "")


def _outermost(frames: list[Document]) -> str:
    return next((str(each["function"]).rpartition(".")[2] for each in reversed(frames) if is_users(each["file"])), "")


def task_function() -> str:
    """The task that runs in a process that is no actor, nor becomes one."""
    return "" if waits.actor()["actor_id"] else task_name()


def task_name() -> str:
    """The Ray task that runs here, which programs name by its phase: Ray writes it into the process's title.

    `ray::Worker.update` and `ray::update` are tasks; an actor that does nothing is called `ray::Worker`.
    """
    try:
        with open("/proc/self/cmdline", "rb") as file:
            title = file.read().split(b"\0")[0].decode(errors="replace").strip()
    except OSError:
        return ""
    name = title.removeprefix("ray::") if title.startswith("ray::") else ""
    if "." not in name and waits.actor()["actor_id"]:
        return ""  # an actor that does nothing
    return name.rpartition(".")[2] if name and name != "IDLE" else ""
