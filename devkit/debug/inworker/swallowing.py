"""How what was caught was caught: by its name, which is a way of working, or by a handler of whatever may come.

try:
    return cache[key]
except KeyError:  # meant
    ...
try:
    return float(score(answer))
except Exception:  # swallows what nobody has thought of
    return 0.0
"""

from __future__ import annotations

import ast
import builtins
import linecache
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

ANY, NAMED, KEPT, UNKNOWN = "any", "named", "kept", ""
OF_TASKS = "asyncio/__init__.py"  # what keeps an exception that no handler has caught
KEEPERS = (OF_TASKS, "concurrent/futures/thread.py", "concurrent/futures/process.py")
# What says no more than that something has not come yet, or that something is to end.
USUAL = frozenset(
    {
        *("Empty", "Full", "QueueEmpty", "QueueFull", "TimeoutError", "GetTimeoutError", "TimeoutExpired"),
        *("BlockingIOError", "InterruptedError", "timeout", "WouldBlock", "EndOfStream", "CancelledError"),
        *("KeyboardInterrupt", "SystemExit", "StopIteration", "StopAsyncIteration", "GeneratorExit"),
    }
)
_ALL = ("Exception", "BaseException")
_FILES = 16  # whose handlers are kept
_MOST_LINES = 20_000  # of a file that is read
_ANEW = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class Guard(NamedTuple):
    """The lines that a `try` or a `suppress` guards, and the names in each of its handlers; None: of whatever comes."""

    first: int
    last: int
    handlers: tuple[tuple[str, ...] | None, ...]
    depth: int  # functions around it


def handler(file: str, line: int, kind: str) -> str:
    """ANY, NAMED or UNKNOWN: what handles an exception of this type that comes out of this line."""
    guards = [each for each in _guards(file) if each.first <= line <= each.last]
    if not guards:
        return UNKNOWN
    depth = max(each.depth for each in guards)
    for guard in sorted((each for each in guards if each.depth == depth), key=lambda each: each.last - each.first):
        for names in guard.handlers:
            if how := _match(names, kind):
                return how if how != _PERHAPS else UNKNOWN
    return UNKNOWN


_PERHAPS = "perhaps"


def _match(names: tuple[str, ...] | None, kind: str) -> str:
    if names is None or any(each in _ALL for each in names):
        return ANY
    if kind in names:
        return NAMED
    raised = getattr(builtins, kind, None)
    if not isinstance(raised, type):
        return _PERHAPS  # which types a type of the program's own is derived from is not in its name
    known = [getattr(builtins, each, None) for each in names]
    return NAMED if any(isinstance(each, type) and issubclass(raised, each) for each in known) else ""


@lru_cache(_FILES)
def _guards(file: str) -> tuple[Guard, ...]:
    lines = linecache.getlines(file)
    if not lines or len(lines) > _MOST_LINES:
        return ()
    try:
        return tuple(_in(ast.parse("".join(lines)), 0))
    except (SyntaxError, ValueError, RecursionError):
        return ()


def _in(node: ast.AST, depth: int) -> Iterator[Guard]:
    for each in ast.iter_child_nodes(node):
        if isinstance(each, (ast.Try, ast.TryStar)):
            found: list[tuple[str, ...] | None] = [_names(one.type) for one in each.handlers]
            yield Guard(each.body[0].lineno, each.body[-1].end_lineno or 0, tuple(found), depth)
        elif isinstance(each, (ast.With, ast.AsyncWith)):
            calls = [one.context_expr for one in each.items if isinstance(one.context_expr, ast.Call)]
            named = [_of_all(call.args) for call in calls if _tail(call.func) == "suppress"]
            if named:
                yield Guard(each.body[0].lineno, each.body[-1].end_lineno or 0, tuple(named), depth)
        yield from _in(each, depth + isinstance(each, _ANEW))


def _names(node: ast.expr | None) -> tuple[str, ...] | None:
    return None if node is None else _of_all([node])


def _of_all(nodes: list[ast.expr]) -> tuple[str, ...]:
    return tuple(
        _tail(each) for node in nodes for each in (node.elts if isinstance(node, (ast.Tuple, ast.List)) else [node])
    )


def _tail(node: ast.AST) -> str:
    """The last part of a name: "JSONDecodeError" of `json.JSONDecodeError`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


__all__ = ["ANY", "KEEPERS", "KEPT", "NAMED", "OF_TASKS", "UNKNOWN", "USUAL", "handler"]
