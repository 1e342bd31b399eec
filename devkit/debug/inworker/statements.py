"""What the lines at which threads and coroutines stand look at: the statements, the loops around them, and values.

Read from the program's text and its frames; nothing of the program is run.
"""

from __future__ import annotations

import ast
import copy
import signal
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import FrameType, ModuleType
from typing import Any

from . import counterparts, keeps, locks, one_moment
from .caught import handled
from .expressions import holds, look, nodes_of, own_text, short, tree_of, values
from .flags import endless
from .polls import around, asking, outwards, tasks, under
from .redaction import scrub_start
from .sources import is_users
from .stacks import is_ours

TEXT = 160  # characters of a statement
VALUES = 5  # of one statement
CALLERS = 2  # frames of the program around the innermost one
NESTED = 60  # frames in which handlers of signals are looked for
MOST = 24  # threads, and asyncio tasks
MOST_KEPT = 500  # statements
_SIGNALS = {int(each): each.name for each in signal.Signals}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

Document = dict[str, Any]
_kept: dict[tuple[str, int, int], ast.stmt | None] = {}


def describe(frames: Mapping[int, FrameType], names: Mapping[int, str]) -> list[Document]:
    """[{"thread", "lines": [{"at", "text", "values", "loop", ...}]}]: of each thread and asyncio task.

    Of those that are in the program's code. `lines` begins with the innermost frame that is the program's; `values`
    is {text: value}; `loop` is the innermost one around the line, as `polls.around` has it, or None;
    `under` the `if` around it; `endless` a loop that nothing in it ends, as `flags.endless` has it. The innermost line
    has `ends`, what could end its wait; `locals`, what its function keeps; `asking`, the loop that asks Ray, as
    `polls.asking` has it; `met`, whether the predicate holds for which it waits; and `handles`, the exception in whose
    handler the thread is, as `caught.handled` has it. A thread that runs on meanwhile is looked at again; where that
    does not help, it has no values: those of two moments would stand side by side.
    """
    known = handled()
    stacks = {ident: list(_of_this_process(outwards(frame))) for ident, frame in frames.items()}
    coroutines = [(name, list(stack)) for name, stack in tasks()]
    every = [*stacks.values(), *(stack for _, stack in coroutines)]
    under_way = {frame.f_code.co_qualname: frame for stack in every for frame in stack if _is_programs(frame)}

    def of_thread(ident: int, frame: FrameType) -> list[Document]:
        def look(at: FrameType) -> list[Document]:
            return _lines(_of_this_process(outwards(at)), under_way, known.get(ident))

        lines, at_once = one_moment.read(ident, frame, look)
        return lines if at_once else list(map(_without_values, lines))

    threads = ((names.get(ident, f"thread {ident}"), of_thread(ident, frame)) for ident, frame in frames.items())
    waiting = ((name, _lines(stack, under_way, None)) for name, stack in coroutines)
    return [*_told(threads), *_told(waiting)]


def _of_this_process(stack: Iterable[FrameType]) -> Iterator[FrameType]:
    """Without those that a child of `multiprocessing` has of its parent: a copy, as that was at the fork."""
    for frame in stack:
        yield frame
        if frame.f_code.co_name == "_bootstrap" and frame.f_globals.get("__name__") == "multiprocessing.process":
            return


def _told(found: Iterable[tuple[str, list[Document]]]) -> Iterator[Document]:
    return islice(({"thread": name, "lines": lines} for name, lines in found if lines), MOST)


def _without_values(line: Document) -> Document:
    """Of a thread that has run on while it was looked at: the text alone."""
    loop = line["loop"] and {"loop": line["loop"]["loop"], "values": {}}
    return {"at": line["at"], "text": line["text"], "values": {}, "loop": loop}


def _is_programs(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return is_users(name) and not is_ours(name)


def _lines(stack: Iterable[FrameType], under_way: Mapping[str, FrameType], error: Document | None) -> list[Document]:
    every = list(filter(_is_programs, stack))
    own, since = _without_later_signals(every, _keeper(every))
    first = [{**_innermost_line(frame, under_way), "handles": error} for frame in own[:1]]
    interrupted = next((number + 1 for number, frame in enumerate(own) if _signal(frame)), 0) if since else 0
    lines = [*first, *(_line(frame) for frame in own[1 : max(CALLERS, interrupted) + 1])]
    for each in lines if since else ():
        if "signal" in each:
            each["signal"] += f" ({since} more since)"
    return lines


def _keeper(stack: Sequence[FrameType]) -> FrameType | None:
    """The frame that holds the lock for which its own thread waits."""
    waited = locks.awaited(stack[0]) if stack else None
    if waited is None or sum(bool(_signal(each)) for each in stack[:NESTED]) < 2:
        return None
    own = set(map(id, stack))
    held = (place for place in locks.holdings(stack[0]) if place.lock is waited.lock and id(place.frame) in own)
    return next((place.frame for place in held), None)


def _without_later_signals(stack: list[FrameType], keeper: FrameType | None) -> tuple[list[FrameType], int]:
    """Of a signal's handlers that have interrupted each other, the one that interrupted who holds the lock for which
    the innermost waits; and how many came after it.
    """
    if keeper is None:
        return stack, 0
    handlers = [number for number, frame in enumerate(stack[: stack.index(keeper)]) if _signal(frame)]
    if len({stack[number].f_code for number in handlers}) != 1:
        return stack, 0
    first, last = handlers[0], handlers[-1]
    return [*stack[:first], *stack[last:]], len(handlers) - 1


def _line(frame: FrameType) -> Document:
    code, found = frame.f_code, _statement_at(frame)
    return {
        "at": {"file": code.co_filename, "line": frame.f_lineno or 0, "function": code.co_qualname},
        "text": "" if found is None else scrub_start(short(own_text(found, code.co_filename), TEXT), TEXT, code=True),
        "values": {} if found is None else dict(values(_looked_at(found), frame, VALUES)),
        "loop": around(frame),
        "under": under(frame),
        "endless": endless(frame),
        **({"signal": name} if (name := _signal(frame)) else {}),
    }


def _signal(frame: FrameType) -> str:
    """The signal whose handler this is: it has that one's number, and the frame which it has interrupted.

    Which need not be next to it: Ray wraps the methods of actors.
    """
    code = frame.f_code
    given = [frame.f_locals.get(name) for name in code.co_varnames[: code.co_argcount]]
    numbers = [each for each in given if isinstance(each, int) and each in _SIGNALS]
    if not numbers or not any(isinstance(each, FrameType) for each in given):
        return ""
    return _SIGNALS[numbers[0]] if any(each is outer for outer in _up_to_programs(frame) for each in given) else ""


def _up_to_programs(frame: FrameType) -> Iterator[FrameType]:
    """The frames around one, as far as the first that is the program's."""
    for outer in islice(outwards(frame), 1, None):
        yield outer
        if _is_programs(outer):
            return


def _looked_at(statement: ast.stmt) -> list[ast.AST]:
    """Not what it is about to assign to: that has its value of before."""
    if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
        return [statement.value]
    return [statement]


def _innermost_line(frame: FrameType, under_way: Mapping[str, FrameType]) -> Document:
    line, found = _line(frame), _statement_at(frame)
    ends = counterparts.of(found, frame, under_way) if found is not None else None
    known = keeps.of_function(frame, line["values"])
    met = found is not None and _is_met(found, frame)
    return {**line, "ends": ends, "locals": known, "asking": asking(frame), "met": met}


def _is_met(waits: ast.stmt, frame: FrameType) -> bool:
    """Whether the predicate of a `condition.wait_for(lambda: ...)` holds: who waits there was not woken up for it."""
    calls = (node for node in ast.walk(waits) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute))
    asked = [node.args[0] for node in calls if node.func.attr == "wait_for" and node.args]  # type: ignore[attr-defined]
    lambdas = [each for each in asked if isinstance(each, ast.Lambda) and not each.args.args]
    if len(lambdas) != 1:
        return False
    wanted = look(lambdas[0].body, frame)
    return bool(wanted) if type(wanted) in (list, dict, set, deque) else holds(lambdas[0].body, frame) is True


def _statement_at(frame: FrameType) -> ast.stmt | None:
    return statement(frame.f_code.co_filename, frame.f_code.co_firstlineno, frame.f_lineno or 0)


def statement(filename: str, first: int, line: int) -> ast.stmt | None:
    """The innermost one that a line is in, of a `with` or a loop its head; `first` is where the function begins."""
    size, tree = tree_of(filename)
    key = (filename, size, line)
    if tree is not None and key not in _kept:
        if len(_kept) >= MOST_KEPT:
            _kept.clear()
        _kept[key] = _innermost(tree, first, line)
    return _kept.get(key)


def globals_at(frame: FrameType, line: int, most: int) -> list[tuple[str, Any]]:
    """The data of its module that a frame's line names: a registry, a configuration. A worker's may be older than the
    driver's.
    """
    if frame.f_globals is frame.f_locals:
        return []
    found = statement(frame.f_code.co_filename, frame.f_code.co_firstlineno, line)
    names = dict.fromkeys(node.id for node in ast.walk(found) if isinstance(node, ast.Name)) if found else {}
    known = [(name, frame.f_globals[name]) for name in names if name in frame.f_globals and name not in frame.f_locals]
    return [each for each in known if not callable(each[1]) and not isinstance(each[1], ModuleType)][:most]


def _innermost(tree: ast.Module, first: int, line: int) -> ast.stmt | None:
    found: ast.stmt | None = None
    for node in nodes_of(tree, ast.stmt):
        if first <= node.lineno <= line <= (node.end_lineno or 0):
            found = node if found is None or node.lineno >= found.lineno else found
    if found is None or isinstance(found, _FUNCTIONS):
        return None
    return _head(found)


def _head(node: ast.stmt) -> ast.stmt:
    """Without what is inside of it."""
    if not hasattr(node, "body"):
        return node
    head = copy.copy(node)
    for part in ("body", "orelse", "finalbody", "handlers", "cases"):
        if hasattr(head, part):
            setattr(head, part, [])
    return head


__all__ = ["describe", "globals_at", "statement"]
