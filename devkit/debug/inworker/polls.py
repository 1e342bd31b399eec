"""What a loop that sleeps waits for: the condition that would end it, and the values that it looks at.

Read from the text around the line at which a thread sleeps; nothing of the program is run.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import linecache
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from types import FrameType
from typing import Any

from . import asked_of, keeps, passed_over, proxies, read_by, this_round, watched_files
from .expressions import holds, look, nodes_of, short, tree_of, values
from .expressions import known as is_known
from .insides import attributes
from .sources import is_standard, is_users
from .stacks import asyncio_tasks, awaiting, is_ours
from .whole import digest

TEXT = 120  # characters of a condition
MOST = 3  # values that are shown
MOST_POLLS = 10
MOST_OUTER = 2  # loops around the innermost one
MOST_COUNTED = 10_000  # values of a list in which one is looked for
_FORS = (ast.For, ast.AsyncFor)
DEPTH = 100  # frames
MOST_KEPT = 50  # variables, and attributes, of which a digest is made

_CLOCKS = frozenset({"time", "monotonic", "perf_counter", "process_time", "now", "utcnow"})
_REFERENCE = re.compile(r"<ObjectRef [^>]*>")  # each call has another one
_ASKS_RAY = frozenset({"ray.get", "ray.wait"})
_Loop = ast.While | ast.For | ast.AsyncFor
_LOOPS: tuple[type[_Loop], ...] = (ast.While, ast.For, ast.AsyncFor)

Document = dict[str, Any]


def describe(frames: Mapping[int, FrameType], names: Mapping[int, str]) -> list[Document]:
    """[{"thread", "at", "by", "loop", "values", "sums"}]: of each thread, and each asyncio task, that sleeps in a loop.

    `at` is the program's innermost line, `by` the line in the loop, which may be a library's; `loop` is "while ..." or
    "until ...". `sums` is a digest of what the loop adds up, empty where it adds up nothing.
    """
    works = [(names.get(ident, f"thread {ident}"), outwards(frame)) for ident, frame in frames.items()]
    found = ((name, _poll(stack)) for name, stack in [*works, *tasks()])
    return [{"thread": name, **each} for name, each in found if each is not None][:MOST_POLLS]


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    count = 0
    while frame is not None and count < DEPTH:
        yield frame
        frame, count = frame.f_back, count + 1


def tasks() -> Iterator[tuple[str, Iterable[FrameType]]]:
    for task in asyncio_tasks():
        try:
            places = [] if task.done() else awaiting(task.get_coro())
            name = f"task {task.get_name()}"
        except Exception:  # noqa: BLE001 - a task of somebody's own make: the others are still wanted
            continue
        yield name, [frame for frame, _ in places]


def _poll(stack: Iterable[FrameType]) -> Document | None:
    """The frame that sleeps is the innermost one, but for asyncio's own."""
    frames = [frame for frame in stack if not is_standard(frame.f_code.co_filename)]
    own = next((frame for frame in frames if is_users(frame.f_code.co_filename)), None)
    if own is None or is_ours(own.f_code.co_filename):
        return None
    sleeps = "sleep" in linecache.getline(frames[0].f_code.co_filename, frames[0].f_lineno or 0)
    told = loop_of(frames[0]) if sleeps else None
    return None if told is None else {"at": _place(own), "by": _place(frames[0]), "sums": _sums(frames[0]), **told}


def _place(frame: FrameType) -> Document:
    return {"file": frame.f_code.co_filename, "line": frame.f_lineno or 0, "function": frame.f_code.co_qualname}


def loop_of(frame: FrameType) -> Document | None:
    """{"loop", "values"} of the innermost loop around a frame's line, in its function, or None.

    And "passes_over", as `passed_over.of` has it.
    """
    return _told(_loop_around(frame), frame)


def _loop_around(frame: FrameType) -> _Loop | None:
    _, tree = tree_of(frame.f_code.co_filename)
    return _innermost(tree, frame.f_code.co_firstlineno, frame.f_lineno or 0) if tree is not None else None


def _told(loop: _Loop | None, frame: FrameType) -> Document | None:
    text, looked_at = _words(loop) if loop is not None else ("", [])
    if not text:
        return None
    over = isinstance(loop, ast.While) and holds(loop.test, frame) is False
    gone = this_round.stale(loop, frame.f_lineno or 0) if loop is not None else frozenset()
    known = {name: value for name, value in _values(looked_at, frame).items() if _root(name) not in gone}
    told: Document = {"loop": short(text, TEXT), "values": known}
    if loop is not None and (passed := passed_over.of(loop, looked_at)) is not None:
        told["passes_over"] = passed
    return {**told, "whole": digest(looked_at, frame), **({"over": True} if over else {})}


def _values(looked_at: list[ast.expr], frame: FrameType) -> dict[str, str]:
    """What it looks at, of a file with whether that is there, of a URL with the proxy that is in the way; of what it
    calls what that reads.
    """
    known = {**dict(values(looked_at, frame, MOST)), **proxies.said(looked_at, frame), **read_by.said(looked_at, frame)}
    for text, there in watched_files.said(looked_at, frame).items():
        known[text] = f"{known[text]}, {there}" if text in known else there
    return known


def _sums(frame: FrameType) -> str:
    """A digest of what the loop around its line adds up, as `total += self.step(k)`.

    Such a loop works, however long it sleeps. A count of the turns, the time and the length of a sleep change in a
    loop that only looks around, too.
    """
    loop = _loop_around(frame)
    nodes = list(ast.walk(loop)) if loop is not None else []
    slept = {ast.unparse(name) for node in nodes if _sleeps(node) for name in ast.walk(node)}
    added = [each.target for each in nodes if isinstance(each, ast.AugAssign) and _is_result(each.value)]
    return digest([each for each in added if ast.unparse(each) not in slept], frame)


def _sleeps(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in ("sleep", "wait")


def _is_result(added: ast.expr) -> bool:
    nodes = list(ast.walk(added))
    return any(isinstance(each, ast.Call) for each in nodes) and not any(map(_asks_clock, nodes))


def asking(frame: FrameType) -> Document | None:
    """{"loop", "values", "kept", "asked", "stale"} of the innermost `while` around a frame's line in which it asks Ray.

    That is, waits for results. Of a loop that nothing ends, `values` are those of its `if`s. "kept" is a digest of what
    its function and the object of that have, "asked" is as `asked_of.calls` has it, and "stale" are those of `values`
    that this round does not look at: they are of an earlier one. None of a loop that the clock ends.
    """
    _, tree = tree_of(frame.f_code.co_filename)
    first, line = frame.f_code.co_firstlineno, frame.f_lineno or 0
    loop = _innermost(tree, first, line, (ast.While,), heads=True) if tree is not None else None
    if not isinstance(loop, ast.While) or not any(map(_asks_ray, ast.walk(loop))):
        return None
    text, looked_at = _words(loop)
    if not text:
        text, looked_at = f"while {ast.unparse(loop.test)}", [each.test for each in _ifs(loop.body)]
    if any(_asks_clock(node) for each in looked_at for node in ast.walk(each)):
        return None
    told = {"loop": short(text, TEXT), "values": dict(values(looked_at, frame, MOST)), "kept": _digest(loop, frame)}
    passed = this_round.stale(loop, line)
    gone = [name for name in told["values"] if _root(name) in passed]
    return {
        **told,
        **({"asked": asked} if (asked := asked_of.calls(loop, frame)) else {}),
        **({"stale": gone} if gone else {}),
    }


def _root(name: str) -> str:
    """
    >>> _root("status['done']"), _root("self.done")
    ('status', 'self')
    """
    found = re.match(r"\w+", name)
    return found[0] if found else ""


def _asks_ray(node: ast.AST) -> bool:
    """`ray.get(...)`, `await actor.ask.remote()`."""
    if isinstance(node, ast.Await):
        functions = (each.func for each in ast.walk(node) if isinstance(each, ast.Call))
        return any(isinstance(each, ast.Attribute) and each.attr == "remote" for each in functions)
    return isinstance(node, ast.Call) and ast.unparse(node.func) in _ASKS_RAY


def _asks_clock(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in _CLOCKS


def _digest(loop: ast.While, frame: FrameType) -> str:
    """Of variables and attributes, but for what only tells the turns: counters, and where inner loops are."""
    passing = {ast.unparse(name) for node in ast.walk(loop) for name in _passing(node)}
    me = frame.f_locals.get("self")
    known = [(name, value) for name, value in frame.f_locals.items() if name != "self"][:MOST_KEPT]
    known += [(f"self.{name}", value) for name, value in (attributes(me)[:MOST_KEPT] if me is not None else ())]
    told = [(name, _REFERENCE.sub("", keeps.content(value))) for name, value in known if name not in passing]
    return hashlib.blake2s(repr(told).encode(errors="replace"), digest_size=8).hexdigest()


def _passing(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.AugAssign) and isinstance(node.value, ast.Constant):
        yield node.target
    elif isinstance(node, ast.For | ast.AsyncFor):
        yield from ast.walk(node.target)


def around(frame: FrameType) -> Document | None:
    """As `loop_of`, but of a `for` what it goes through, and where it is: {"loop": "for name in names", "values"}.

    "whole" is the same as long as nothing that it looks at changes, and empty where not all of that can be seen; of a
    `for` it is where that is. "over" is there where the condition of a `while` holds no more: who waits inside of it
    may have missed that. At its condition a `while` is around its line, too. "outer" is [{"loop", "values"}] of the
    loops around that one, the nearest first.
    """
    _, tree = tree_of(frame.f_code.co_filename)
    first, line = frame.f_code.co_firstlineno, frame.f_lineno or 0
    if tree is None:
        return None
    at_head = _innermost(tree, first, line, (ast.While,), heads=True)
    loop = at_head if at_head is not None and line < at_head.body[0].lineno else _innermost(tree, first, line)
    told = _of_for(loop, frame) if isinstance(loop, _FORS) else _told(loop, frame)
    if told is not None and loop is not None and (outer := list(islice(_outer(tree, first, loop, frame), MOST_OUTER))):
        told["outer"] = outer
    return told


def _of_for(loop: ast.For | ast.AsyncFor, frame: FrameType) -> Document:
    head = copy.copy(loop)
    head.body, head.orelse = [], []
    text = short(ast.unparse(head).strip().removesuffix(":"), TEXT)
    known = dict(values([loop.target, loop.iter], frame, MOST))
    if number := _number(loop, frame):
        known[ast.unparse(loop.target)] = f"{known.get(ast.unparse(loop.target), '...')} ({number})"
    return {"loop": text, "values": known, "whole": digest([loop.target], frame)}


def _number(loop: ast.For | ast.AsyncFor, frame: FrameType) -> str:
    """Which of how many it is at, as "no. 2 of 3", where it goes through a list or a tuple that has this value once."""
    through, value = look(loop.iter, frame), look(loop.target, frame)
    if type(through) not in (list, tuple) or not is_known(value) or len(through) > MOST_COUNTED:
        return ""
    if _sets(loop, (ast.unparse(loop.target), ast.unparse(loop.iter))):
        return ""
    places = [place for place, each in enumerate(list(through), 1) if each is value]
    return f"no. {places[0]} of {len(through)}" if len(places) == 1 else ""


def _sets(loop: ast.For | ast.AsyncFor, names: tuple[str, str]) -> bool:
    """Whether a loop's body assigns to one of these: then it may be another value by now."""
    nodes = (node for each in loop.body for node in ast.walk(each) if isinstance(node, ast.expr))
    assigned = (node for node in nodes if isinstance(getattr(node, "ctx", None), ast.Store | ast.Del))
    return any(ast.unparse(node) in names for node in assigned)


def _outer(tree: ast.Module, first: int, loop: _Loop, frame: FrameType) -> Iterator[Document]:
    """Those of its function that have something to show."""
    around = _next_out(tree, first, loop)
    while around is not None:
        told = _of_for(around, frame) if isinstance(around, _FORS) else _told(around, frame)
        if told is not None and told["values"]:
            yield {"loop": told["loop"], "values": told["values"]}
        around = _next_out(tree, first, around)


def _next_out(tree: ast.Module, first: int, loop: _Loop) -> _Loop | None:
    """The innermost one around a loop, which begins on an earlier line: a line has one at most."""
    there = [each for each in nodes_of(tree, *_LOOPS) if first <= each.lineno < loop.lineno]
    inside = (each for each in there if any(part.lineno <= loop.lineno <= (part.end_lineno or 0) for part in each.body))
    return max(inside, key=lambda each: each.lineno, default=None)


def under(frame: FrameType) -> Document | None:
    """{"if", "values"} of the innermost `if` that a frame's line is under, in its function, or None.

    "over" is there where its condition holds no more: the program has changed what it looks at since.
    """
    _, tree = tree_of(frame.f_code.co_filename)
    first, line = frame.f_code.co_firstlineno, frame.f_lineno or 0
    found: ast.If | None = None
    for node in nodes_of(tree, ast.If) if tree is not None else ():
        if node.lineno < first or (found is not None and node.lineno < found.lineno):
            continue
        is_under = any(each.lineno <= line <= (each.end_lineno or 0) for each in node.body)
        if is_under and not ast.unparse(node.test).startswith("__name__ =="):  # which says nothing
            found = node
    if found is None:
        return None
    known = {**dict(values([found.test], frame, MOST)), **read_by.said([found.test], frame)}
    over = {"over": True} if holds(found.test, frame) is False else {}
    return {"if": short(ast.unparse(found.test), TEXT), "values": known, **over}


def _innermost(
    tree: ast.Module, first: int, line: int, kinds: tuple[type[_Loop], ...] = _LOOPS, *, heads: bool = False
) -> _Loop | None:
    """The loop is inside of the function that begins at `first`; a module begins at 1 at the latest. With `heads` also
    the one at whose condition it is.
    """
    found: _Loop | None = None
    for node in nodes_of(tree, *kinds):
        if first <= node.lineno <= line <= (node.end_lineno or 0):
            begins = node.lineno if heads else node.body[0].lineno
            inside = any(begins <= line <= (each.end_lineno or 0) for each in node.body)
            if inside and (found is None or node.lineno >= found.lineno):
                found = node
    return found


def _words(loop: _Loop) -> tuple[str, list[ast.expr]]:
    """What keeps it going, or what would end it, and the expressions in that."""
    if isinstance(loop, ast.While) and not isinstance(loop.test, ast.Constant):
        return f"while {ast.unparse(loop.test)}", [loop.test]
    ends = [each.test for each in _ifs(loop.body) if _leaves(each.body)]
    ends += [ast.UnaryOp(ast.Not(), each.test) for each in _ifs(loop.body) if each.orelse and _leaves(each.orelse)]
    return (f"until {' or '.join(map(ast.unparse, ends))}", list(ends)) if ends else ("", [])


def _ifs(body: Iterable[ast.stmt]) -> Iterator[ast.If]:
    """Those of the loop itself, also inside of `with` and `try`."""
    for each in body:
        if isinstance(each, ast.If):
            yield each
        elif isinstance(each, ast.With | ast.Try):
            yield from _ifs(each.body)


def _leaves(body: Iterable[ast.stmt]) -> bool:
    return any(isinstance(each, ast.Break | ast.Return) for each in body)


__all__ = ["around", "asking", "describe", "loop_of", "outwards", "tasks", "under"]
