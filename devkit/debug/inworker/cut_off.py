"""Calls that are under way, or not yet begun, when a driver ends: Ray ends them with it, and says nothing.

So what nobody has waited for, as a checkpoint that is saved beside the training, may be half done or not done at all.
"""

from __future__ import annotations

import ast
import functools
import importlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from . import calls_made
from .core import asking
from .expressions import nodes_of, tree_of
from .imports import on_import
from .passing import unframed
from .stacks import users_lines

WAIT_SECONDS = 0.15  # what ends in this time is not told of
LOOK_SECONDS = 0.01
MOST = 4  # kinds of calls that are named
MOST_ACTORS = 8  # of which is asked whether they go on
MOST_CANCELLED = 10_000  # that are kept
FOR_EVER = frozenset({"serve_forever", "run_forever", "wait_for_termination"})
ACTOR, NO_ACTOR = (
    8,
    b"\xff" * 12,
)  # where the actor's id begins in that of its call; of a task that is no call, with what
_MARK = "__devkit_cancels__"

Site = tuple[str, int, str]  # file, line, function
_cancelled: dict[bytes, Site | None] = {}  # tasks, the last ones, and where the program has cancelled them


class Pending(NamedTuple):
    """A call of the program that has not ended."""

    name: str
    place: str  # `a.py:3 in main`; empty: not the program's own
    ago: float  # seconds since it was called
    more: bool = False  # others have not ended either, of which it is not sure that they end by themselves


# ---- finding them


def watch() -> None:
    """Notes what the program cancels: that it has not ended then is no news."""
    on_import("ray._private.worker", lambda module: _watch(module, sys.modules.get("ray")))


def _watch(*holders: Any) -> None:
    for holder in holders:
        original = getattr(holder, "cancel", None)
        if original is not None and not hasattr(original, _MARK):
            holder.cancel = _noting(original)


def _noting(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def cancel(*arguments: Any, **options: Any) -> Any:
        with suppress(Exception):  # no reference: Ray says so
            reference = arguments[0] if arguments else options["ray_waitable"]
            first = getattr(reference, "_generator_ref", reference)
            at = next(users_lines(sys._getframe(1)), None)
            where = (at["file"], at["line"], at["function"]) if at else None
            _cancelled[first.binary()[: calls_made.TASK_BYTES]] = where
            if len(_cancelled) > MOST_CANCELLED:
                _cancelled.pop(next(iter(_cancelled)), None)
        try:
            return original(*arguments, **options)
        except BaseException as error:
            unframed(error)
            raise

    setattr(cancel, _MARK, True)
    return cancel


def is_cancelled(task: bytes) -> bool:
    """Whether the program has cancelled it."""
    return task in _cancelled


def cancelled_at(task: bytes) -> Site | None:
    """Where this process has called `ray.cancel` for it, the last time."""
    return _cancelled.get(task)


def found() -> list[Pending]:
    """The driver's own calls that do not end in a moment, but for those that go on without it, that it has cancelled,
    and that never end by themselves.
    """
    waiting = _pending()
    until = time.monotonic() + WAIT_SECONDS
    while waiting and time.monotonic() < until:
        time.sleep(LOOK_SECONDS)
        waiting = waiting & _pending()
    known = [(task, call) for task in waiting if (call := calls_made.of_task(task))]
    calls = [(task, call) for task, call in known if not _is_service(call)]
    more = any(not _is_rays(call) for _, call in known if _is_service(call))
    lasting = _lasting({_actor_of(task) for task, _ in calls} - {b""})
    now = time.monotonic()
    left = sorted((call for task, call in calls if _actor_of(task) not in lasting), key=lambda call: call.time)
    return [Pending(call.name, calls_made.place(call), now - call.time, more) for call in left]


def _pending() -> set[bytes]:
    """The tasks that the driver has asked for and that have not ended."""
    with asking() as is_open:
        worker: Any = getattr(sys.modules.get("ray._private.worker"), "global_worker", None)
        if not is_open or worker is None or not worker.connected:
            return set()
        tasks = worker.core_worker.get_pending_children_task_ids(worker.current_task_id)
        return {each.binary() for each in tasks} - _cancelled.keys()


def _actor_of(task: bytes) -> bytes:
    own = task[ACTOR:]
    return b"" if own.startswith(NO_ACTOR) else own


def _lasting(actors: Iterable[bytes]) -> set[bytes]:
    """Those of these actors that go on when the driver has ended, and those of which that is not known."""
    found = set()
    for number, actor in enumerate(sorted(actors)):
        if number >= MOST_ACTORS or _goes_on(actor):
            found.add(actor)
    return found


def _goes_on(actor: bytes) -> bool:
    """One that is detached, or of another job: `ray.get_actor` finds these, too."""
    with asking() as is_open:
        worker: Any = getattr(sys.modules.get("ray._private.worker"), "global_worker", None)
        if not is_open or not actor.endswith(worker.current_job_id.binary()):
            return True
        state = importlib.import_module("ray._private.state").state
        kind = importlib.import_module("ray.core.generated.gcs_pb2").ActorTableData
        ids = importlib.import_module("ray")
        told = state.get_actor_info(ids.ActorID(actor))
        return told is None or bool(kind.FromString(told).is_detached)


# ---- what never ends by itself


def _is_service(call: calls_made.Called) -> bool:
    """Whether its function is a loop without an end of its own, or of Ray or devkit themselves."""
    if _is_rays(call):
        return True
    module = str(call.descriptor.module_name)
    home = sys.modules.get(module) or sys.modules.get("__main__")  # which Ray calls by the name of its file
    file = getattr(home, "__file__", None) or call.code.co_filename
    _, tree = tree_of(file)
    kind, _, name = call.name.rpartition(".")
    return tree is not None and any(map(_never_ends, _functions(tree, kind, name)))


def _is_rays(call: calls_made.Called) -> bool:
    """Or devkit's."""
    return str(call.descriptor.module_name).partition(".")[0] in ("ray", "devkit", "devkit_inworker")


def _functions(tree: ast.Module, kind: str, name: str) -> Iterator[ast.AST]:
    """Of that name in a class, or wherever it is where the class inherits it."""
    written: tuple[ast.FunctionDef | ast.AsyncFunctionDef, ...]
    written = (*nodes_of(tree, ast.FunctionDef), *nodes_of(tree, ast.AsyncFunctionDef))
    functions = [each for each in written if each.name == name]
    classes = [each for each in nodes_of(tree, ast.ClassDef) if each.name == kind]
    inside = {id(part) for one in classes for part in one.body}
    own = [each for each in functions if id(each) in inside]
    yield from own or functions


def _never_ends(function: ast.AST) -> bool:
    """
    >>> def never_ends(text): return _never_ends(ast.parse(text).body[0])
    >>> never_ends("def run(self):\\n  while not self.stopped:\\n    self.turn()")
    True
    >>> never_ends("async def run(self):\\n  while True:\\n    await self.turn()")
    True
    >>> never_ends("def save(self, left):\\n  while len(left) > 0:\\n    left.pop()")
    False
    """
    loops = (node for node in ast.walk(function) if isinstance(node, ast.While))
    called = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
    return any(_is_flag(each.test) for each in loops) or any(
        isinstance(each, ast.Attribute) and each.attr in FOR_EVER for each in called
    )


def _is_flag(test: ast.expr) -> bool:
    """Whether a condition is a mere word: true, or what somebody else sets."""
    if isinstance(test, ast.UnaryOp):
        return _is_flag(test.operand)
    if isinstance(test, ast.BoolOp):
        return all(map(_is_flag, test.values))
    if isinstance(test, ast.Call):
        return isinstance(test.func, ast.Attribute) and not test.args and test.func.attr.startswith("is_")
    return isinstance(test, ast.Constant | ast.Name | ast.Attribute)


# ---- saying it


def said(calls: Sequence[Pending]) -> str:
    """One line; empty of none.

    >>> save = Pending("Saver.save", "job.py:9 in Saves.save", 1.84)
    >>> said([save, save._replace(ago=0.0), Pending("evaluate", "", 3.0)])[:97]
    '3 calls had not ended when the driver did, and Ray ends them with it: Saver.save (called 1.8 s an'
    >>> said([save])[26:]
    'the driver did, and Ray ends it with it: Saver.save (called 1.8 s before at job.py:9 in Saves.save)'
    """
    if not calls:
        return ""
    groups: dict[tuple[str, str], list[float]] = {}
    for each in calls:
        groups.setdefault((each.name, each.place), []).append(each.ago)
    named = [f"{name} ({_when(ago)}{f' at {place}' if place else ''})" for (name, place), ago in groups.items()]
    rest = len(named) - MOST
    more = f", and calls of {rest} more {'kind' if rest == 1 else 'kinds'}" if rest > 0 else ""
    least = "at least " if any(each.more for each in calls) else calls_made.at_least(len(calls))
    what, them = (f"{least}1 call", "it") if len(calls) == 1 else (f"{least}{len(calls)} calls", "them")
    return f"{what} had not ended when the driver did, and Ray ends {them} with it: {', '.join(named[:MOST])}{more}"


def _when(ago: Sequence[float]) -> str:
    """
    >>> _when([1.84, 0.01]), _when([3.0]), _when([3.0, 2.0, 1.0])
    ('called 1.8 s and 0.0 s before', 'called 3.0 s before', '3 times, called 3.0 to 1.0 s before')
    """
    if len(ago) > 2:
        return f"{len(ago)} times, called {ago[0]:.1f} to {ago[-1]:.1f} s before"
    return f"called {' and '.join(f'{each:.1f} s' for each in ago)} before"


__all__ = ["Pending", "found", "is_cancelled", "said", "watch"]
