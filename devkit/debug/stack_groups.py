"""Stacks of many processes put together: what of a stack tells, which ranks have the same, and which are odd."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

from devkit.debug.grouping import Group, group, odd
from devkit.debug.naming import Who, is_library

MAIN = "MainThread"
_RUNS_A_LOOP = re.compile(r"asyncio/base_events\.py:.*\b_run_once$")
LOOP_THREAD = "AsyncIO Thread"  # in which an async actor's coroutines run
TASK = "task "  # so the name of an asyncio task begins among those of threads, and what a Ray task's process is called
WORKER = "worker"  # the role of a process that is no actor
NUMBER = " #"  # tells threads of one name apart
# What calls the user's code, or waits for it: Ray's own loops, and how Python starts a thread or a program.
STARTERS = re.compile(
    r"(/ray/_private/|/ray/_raylet|/ray/actor\.py$|/ray/util/tracing/|/ray/train/.*thread_runner|/threading\.py$"
    r"|/concurrent/futures/|<frozen |/runpy\.py$|/asyncio/|/multiprocessing/|(^|/)_raylet\.py)"
)
CHILD = "child of "  # what a worker has started has its role and rank, and is not the rank
CHILDS_ID = re.compile(r"[0-9a-f]+(-\d+)+")  # its worker's, and its own process number
# What stands around a call of the program's, or one into Ray or torch, and says nothing of it.
WRAPPERS = re.compile(
    r"/ray/_private/(auto_init_hook|client_mode_hook|async_compat)\.py$|/ray/util/tracing/|/ray/util/annotations\.py$"
    r"|/torch/distributed/c10d_logger\.py$|/torch/utils/_contextlib\.py$"
)
_SOCKETS = re.compile(r"/(socket|ssl)\.py$")
OURS = re.compile(r"(^|/)devkit_inworker/|/devkit/debug/inworker/|/devkit/smoke/warm(_client)?\.py$")


class Frame(NamedTuple):
    file: str
    line: int
    function: str


Stack = tuple[Frame, ...]  # innermost first


class Key(NamedTuple):
    """What makes two processes equal: the role, and the user's frames of the thread that works."""

    role: str
    frames: Stack  # without the classes of methods: not every view of a process has them
    stopped: bool  # in a debugger's stop


SOME_CALL = "?"  # one that is under way, whose name is not known


@dataclass(frozen=True)
class Process:
    """One process, its threads reduced to what tells."""

    who: Who
    node_ip: str
    pid: int
    stack: Stack  # of the thread that works, without what started it; empty: idle
    thread: str
    stopped: bool
    others: Mapping[str, Stack] = field(default_factory=dict)  # other threads and tasks with frames of the user's
    idle: int = 0  # threads that have none
    idle_tasks: int = 0
    error: str | None = None
    role: str = ""  # as the hub has it
    call: str = ""  # the actor's method, or the task, that is under way
    untold: int = 0  # children that did not say in time what they do

    @property
    def own(self) -> Stack:
        return own_of(self.stack)

    @property
    def key(self) -> Key:
        return Key(self.who.role, without_classes(self.own), self.stopped)

    @property
    def is_child(self) -> bool:
        return self.who.role.startswith(CHILD)


def own_of(stack: Stack) -> Stack:
    """The user's frames; all, if there are none of the user's."""
    return tuple(frame for frame in stack if not is_library(frame.file)) or stack


def without_classes(stack: Stack) -> Stack:
    """Functions by their bare names: not every view of a process has the classes of methods."""
    return tuple(frame._replace(function=frame.function.rpartition(".")[2]) for frame in stack)


def read(document: Mapping[str, Any], place: Frame | None = None, *, hears: bool = False) -> Process:
    """A process as the hub has it. `place`: where the thread or the task stands that it is about, if that is known.

    A thread that the document has as `named` is shown, be it in libraries alone; with `hears` also one of a server's
    that reads from a connection.
    """
    threads = document.get("threads") or ()
    named = [(_unique(str(thread["name"]), number), thread) for number, thread in enumerate(threads)]
    stacks = [(name, _frames(thread["frames"])) for name, thread in named]
    telling = {name: trim(stack) for name, stack in stacks if has_own(stack)}
    wanted = {name for name, thread in named if document.get("named") and thread["name"] == document["named"]}
    wanted |= {name for name, stack in stacks if hears and name not in telling and _reads_from_a_socket(stack)}
    telling |= {name: trim(stack) for name, stack in stacks if name in wanted}
    stopped = [name for name, thread in named if thread.get("stopped")]
    parked = [name for name in stopped if name in telling] or stopped[:1]  # one of libraries' frames is stopped, too
    there = [name for name, stack in telling.items() if place is not None and _place(stack) == place]
    holding = [name for name, thread in named if thread.get("gil") and name in telling]  # the others can't go on
    by_name = dict(stacks)
    order = sorted(
        telling, key=lambda name: (name in wanted, _rank(name, only_a_loop=_only_runs_a_loop(by_name[name])))
    )
    chosen = next(iter([*parked, *there, *holding, *order]), "")
    idle = [name for name, stack in stacks if not has_own(stack) and name not in wanted]
    return Process(
        who=Who(role_of(document), document.get("rank"), f"pid {document['pid']}"),
        node_ip=str(document.get("node_ip") or ""),
        pid=int(document["pid"]),
        stack=telling.get(chosen, ()),
        thread=chosen,
        stopped=chosen in parked,
        others={name: stack for name, stack in telling.items() if name != chosen},
        idle=sum(not is_task(name) for name in idle),
        idle_tasks=sum(is_task(name) for name in idle),
        error=document.get("error"),
        role=str(document.get("role") or ""),
        call=str(document.get("call") or ""),
        untold=int(document.get("untold") or 0),
    )


def _reads_from_a_socket(stack: Stack) -> bool:
    """Whether a thread that a library serves with stands in a connection: who only waits for one is at rest."""
    file = stack[0].file if trim(stack) else ""
    return bool(_SOCKETS.search(file)) and not any("/ray/" in frame.file for frame in stack)


def _rank(name: str, *, only_a_loop: bool) -> int:
    """Which of several stacks is shown first: an async actor's calls before a thread that helps them, and whatever runs
    in an event loop before the line of the program that has started it.
    """
    if only_a_loop:
        return 4
    return 0 if name == MAIN else 1 if name.startswith(LOOP_THREAD) else 2 if is_task(name) else 3


def _only_runs_a_loop(stack: Stack) -> bool:
    """Whether a thread is in `asyncio.run`, and in no callback of the program's."""
    loop = next((at for at, frame in enumerate(stack) if _RUNS_A_LOOP.search(f"{frame.file}:{frame.function}")), None)
    return loop is not None and not has_own(stack[:loop])


def role_of(document: Mapping[str, Any]) -> str:
    """What a process is called; a child after whom it descends from.

    >>> role_of({"role": "Scorer", "worker_id": "0a-17", "parent": 7, "rank": None}), role_of({"role": "Scorer"})
    ('child of Scorer pid 7', 'Scorer')
    """
    role, task = str(document.get("role") or ""), str(document.get("task") or "")
    if not CHILDS_ID.fullmatch(str(document.get("worker_id"))):
        return task_role(role, task)
    parent = document.get("parent")
    of = f" pid {parent}" if parent and document.get("rank") is None and role != "driver" else ""
    return f"{CHILD}{role or WORKER}{of}"


def task_role(role: str, task: str) -> str:
    """What a process is called that has no name but Ray's own: by the task that it is at.

    >>> task_role("worker", "load_kernel"), task_role("worker", ""), task_role("Engine", "update")
    ('task load_kernel', 'worker', 'Engine')
    """
    return f"{TASK}{task}" if task and role == WORKER else role


def is_task(name: str) -> bool:
    """Whether it is the name of an asyncio task, and not of a thread."""
    return name.startswith(TASK)


def _place(stack: Stack) -> Frame | None:
    return next((frame for frame in stack if not is_library(frame.file)), None)


def _unique(name: str, number: int) -> str:
    return name if name == MAIN else f"{name or 'thread'}{NUMBER}{number}"


def _frames(documents: Iterable[Mapping[str, Any]]) -> Stack:
    return tuple(Frame(str(one["file"]), int(one["line"] or 0), str(one["function"])) for one in documents)


def trim(stack: Stack) -> Stack:
    """Without the outer frames that started the thread or called the task.

    >>> trim((Frame("/job/a.py", 1, "step"), Frame("<frozen runpy>", 1, "run")))
    (Frame(file='/job/a.py', line=1, function='step'),)
    """
    end = len(stack)
    while end and (STARTERS.search(stack[end - 1].file) or OURS.search(stack[end - 1].file)):
        end -= 1
    return stack[:end]


def has_own(stack: Stack) -> bool:
    """Whether a thread runs something of the user's; those of Ray, of libraries and ours don't."""
    return any(
        not (is_library(frame.file) or STARTERS.search(frame.file) or OURS.search(frame.file)) for frame in trim(stack)
    )


@dataclass(frozen=True)
class Merged:
    """All processes, each in one place."""

    groups: tuple[Group[Key], ...]  # of those that do something
    odd: tuple[Who, ...]
    idle: tuple[Process, ...]  # whole roles in which nobody does anything, children, and those without a rank
    silent: tuple[Process, ...]  # no stack could be had
    by_who: Mapping[Who, Process]


def merge(documents: Iterable[Mapping[str, Any]], places: Mapping[tuple[str, int], Frame] | None = None) -> Merged:
    """Equal stacks together, role by role; odd is who differs from most of its role.

    A rank that does nothing while its peers work is a group of its own: it may be the one they wait for. It is not odd
    for that, and neither is one that stands in no line of the program. A child of a rank is no peer of anybody.
    `places`: what some processes are about, by their node's address and their pid.
    """
    known = places or {}
    processes = [
        read(document, known.get((str(document.get("node_ip")), int(document["pid"]))), hears=True)
        for document in documents
    ]
    answered = [process for process in processes if not process.error]
    busy_roles = {process.who.role for process in answered if process.stack or process.stopped}
    unused = [one for one in answered if not (one.stack or one.stopped)]
    idle = [one for one in unused if one.who.role not in busy_roles or one.is_child or one.who.rank is None]
    shown = [one for one in answered if one not in idle]
    groups: list[Group[Key]] = []
    different: list[Who] = []
    for role, members in groupby(sorted(shown, key=lambda one: one.who.role), key=lambda one: one.who.role):
        found = group((process.who, process.key) for process in members)
        groups += found
        different += () if role.startswith(CHILD) else odd(one for one in found if one.key.frames)
    return Merged(
        groups=tuple(groups),
        odd=tuple(different),
        idle=tuple(idle),
        silent=tuple(process for process in processes if process.error),
        by_who={process.who: process for process in processes},
    )


class Line(NamedTuple):
    """One line of a stack as it is shown; `folded` frames of a library stand in one."""

    frame: Frame
    library: bool
    folded: int = 0


def fold(stack: Sequence[Frame]) -> list[Line]:
    """Each frame of the user's, and for each run of a library's the one that was called, with how many are below it.

    A run of nothing but wrappers is left out.

    >>> torch = "/v/lib/python3.11/site-packages/torch/distributed.py"
    >>> stack = [Frame(torch, 9, "wait"), Frame(torch, 5, "all_reduce"), Frame("/job/train.py", 3, "step")]
    >>> [(line.frame.function, line.folded) for line in fold(stack)]
    [('all_reduce', 1), ('step', 0)]
    >>> logger = Frame("/v/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", 83, "wrapper")
    >>> [(line.frame.function, line.folded) for line in fold((*stack[:2], logger, stack[2]))]
    [('all_reduce', 1), ('step', 0)]
    >>> tracing = Frame("/v/lib/python3.11/site-packages/ray/util/tracing/tracing_helper.py", 487, "_resume_span")
    >>> [line.frame.function for line in fold((stack[2], tracing, Frame("/job/train.py", 9, "fit")))]
    ['step', 'fit']
    >>> serves = Frame("/usr/lib/python3.11/socketserver.py", 235, "serve_forever")
    >>> [line.frame.function for line in fold((Frame("/usr/lib/python3.11/socket.py", 707, "readinto"), serves))]
    ['readinto', 'serve_forever']
    """
    lines: list[Line] = []
    telling = [frame for frame in stack if not WRAPPERS.search(frame.file)] or stack
    alone = all(is_library(frame.file) for frame in telling)  # then what it is in tells, file by file
    for (library, _), run in groupby(telling, key=lambda frame: (is_library(frame.file), frame.file if alone else "")):
        frames = list(run)
        lines += [Line(frames[-1], True, len(frames) - 1)] if library else [Line(frame, False) for frame in frames]
    return lines
