"""What a loop that sleeps waits for: the condition that would end it, and the values that it looks at.

Read from the text around the line at which a thread sleeps; nothing of the program is run.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterable, Iterator, Mapping
from types import FrameType
from typing import Any

from .sources import is_standard, is_users
from .stacks import asyncio_tasks, awaiting, is_ours

LONGEST = 500_000  # characters of a file that is read for this
TEXT, VALUE = 120, 80  # characters of a condition, and of a value
MOST = 3  # values that are shown
MOST_KEPT = 50  # files
MOST_POLLS = 10
DEPTH = 100  # frames
_PLAIN = (str, int, float, bool, type(None))

Document = dict[str, Any]
_trees: dict[str, tuple[int, ast.Module | None]] = {}


def describe(frames: Mapping[int, FrameType], names: Mapping[int, str]) -> list[Document]:
    """[{"thread", "at", "by", "loop", "values"}]: of each thread, and each asyncio task, that sleeps in a loop.

    `at` is the program's innermost line, `by` the line in the loop, which may be a library's; `loop` is "while ..." or
    "until ...".
    """
    works = [(names.get(ident, f"thread {ident}"), _outwards(frame)) for ident, frame in frames.items()]
    found = ((name, _poll(stack)) for name, stack in [*works, *_tasks()])
    return [{"thread": name, **each} for name, each in found if each is not None][:MOST_POLLS]


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    count = 0
    while frame is not None and count < DEPTH:
        yield frame
        frame, count = frame.f_back, count + 1


def _tasks() -> Iterator[tuple[str, Iterable[FrameType]]]:
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
    return None if told is None else {"at": _place(own), "by": _place(frames[0]), **told}


def _place(frame: FrameType) -> Document:
    return {"file": frame.f_code.co_filename, "line": frame.f_lineno or 0, "function": frame.f_code.co_qualname}


def loop_of(frame: FrameType) -> Document | None:
    """{"loop", "values"} of the innermost loop around a frame's line, in its function, or None."""
    tree = _tree(frame.f_code.co_filename)
    line = frame.f_lineno or 0
    loop = _innermost(tree, frame.f_code.co_firstlineno, line) if tree is not None else None
    if loop is None:
        return None
    text, looked_at = _words(loop)
    if not text:
        return None
    return {"loop": _short(text, TEXT), "values": dict(_values(looked_at, frame))}


def _tree(filename: str) -> ast.Module | None:
    lines = linecache.getlines(filename)
    size = sum(map(len, lines))
    kept = _trees.get(filename)
    if kept is None or kept[0] != size:
        try:
            tree = ast.parse("".join(lines)) if 0 < size <= LONGEST else None
        except (SyntaxError, ValueError, RecursionError):
            tree = None
        if len(_trees) >= MOST_KEPT:
            _trees.clear()
        kept = _trees[filename] = (size, tree)
    return kept[1]


def _innermost(tree: ast.Module, first: int, line: int) -> ast.While | ast.For | None:
    """The loop is inside of the function that begins at `first`; a module begins at 1 at the latest."""
    found: ast.While | ast.For | None = None
    for node in ast.walk(tree):
        if isinstance(node, ast.While | ast.For) and first <= node.lineno <= line <= (node.end_lineno or 0):
            inside = any(node.body[0].lineno <= line <= (each.end_lineno or 0) for each in node.body)
            if inside and (found is None or node.lineno >= found.lineno):
                found = node
    return found


def _words(loop: ast.While | ast.For) -> tuple[str, list[ast.expr]]:
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


def _values(expressions: Iterable[ast.expr], frame: FrameType) -> Iterator[tuple[str, str]]:
    """Of the names and attributes that are looked at, those that are plain data, or how many are in them."""
    count = 0
    called = {id(node.func) for each in expressions for node in ast.walk(each) if isinstance(node, ast.Call)}
    seen: set[str] = set()
    for node in (node for each in expressions for node in ast.walk(each)):
        if not isinstance(node, ast.Name | ast.Attribute) or id(node) in called or count >= MOST:
            continue
        name, value = ast.unparse(node), _value(node, frame)
        if value is not None and name not in seen:
            seen.add(name)
            count += 1
            yield name, value


def _value(node: ast.expr, frame: FrameType) -> str | None:
    from .redaction import redact

    value = _look(node, frame)
    if value is _look:
        return None
    if type(value) in (list, tuple, dict, set):
        return f"{type(value).__name__} of {len(value)}"
    name = node.attr if isinstance(node, ast.Attribute) else ast.unparse(node)
    return _short(repr(redact(name, value)), VALUE) if type(value) in _PLAIN else None


def _look(node: ast.expr, frame: FrameType) -> Any:
    """The value of a name or of an attribute that an object has itself; this very function where there is none."""
    if isinstance(node, ast.Name):
        return next((names[node.id] for names in (frame.f_locals, frame.f_globals) if node.id in names), _look)
    if isinstance(node, ast.Attribute):
        owner = _look(node.value, frame)
        own = getattr(owner, "__dict__", None) if owner is not _look and not isinstance(owner, type) else None
        return own.get(node.attr, _look) if isinstance(own, dict) else _look
    return _look


def _short(text: str, most: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 3]}..."


__all__ = ["describe", "loop_of"]
