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
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

LAST = " (the last one)"  # behind what one of several says that do not all say the same
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


class Handler(NamedTuple):
    """What has handled an exception: ANY, NAMED or UNKNOWN, and its line; 0: that is not known."""

    how: str
    line: int


NONE = Handler(UNKNOWN, 0)


class Guard(NamedTuple):
    """The lines that a `try` or a `with` guards, and the names in each of its handlers; None: of whatever comes.

    One that has none, a `finally` or a `with` of something else than `suppress`, may swallow an exception all the same.
    """

    first: int
    last: int
    handlers: tuple[tuple[str, ...] | None, ...]
    lines: tuple[int, ...]  # of the handlers
    entry: tuple[int, int]  # the lines at which what has failed goes on
    depth: int  # functions around it
    is_veil: bool = False  # whether it has no handlers, and may end what has failed all the same


def handler(file: str, line: int, kind: str, bases: Sequence[str] = (), entry: int = 0) -> Handler:
    """What handles an exception of this type that comes out of this line.

    `bases` are the names of its class and of those that it is derived from, where they are known; `entry` is the line
    at which the function went on, where that is known.
    """
    guards = [each for each in _guards(file) if each.first <= line <= each.last]
    if not guards:
        return NONE
    depth, is_veiled = max(each.depth for each in guards), False
    for guard in sorted((each for each in guards if each.depth == depth), key=lambda each: each.last - each.first):
        if entry and not guard.entry[0] <= entry <= guard.entry[1]:
            continue
        if found := _of(guard, kind, bases):
            return found._replace(line=0) if is_veiled else found
        if entry:  # what it names is not what we take it for
            return Handler(UNKNOWN, guard.lines[0]) if len(guard.lines) == 1 else NONE
        is_veiled = is_veiled or guard.is_veil
    return NONE


def named_at(file: str, line: int, name: str) -> int:
    """The line of a handler around this one that names such a type, and nothing of whatever comes; 0: there is none."""
    inside = [each for each in _guards(file) if each.first <= line <= each.last]
    depth = max((each.depth for each in inside), default=0)
    for guard in (each for each in inside if each.depth == depth):
        for names, at in zip(guard.handlers, guard.lines, strict=False):
            if names and name in names and not {*_ALL} & {*names}:
                return at
    return 0


def _of(guard: Guard, kind: str, bases: Sequence[str]) -> Handler | None:
    """None: none of its handlers."""
    for names, line in zip(guard.handlers, guard.lines, strict=False):
        if how := _match(names, kind, bases):
            sure = how != _PERHAPS
            return Handler(how, line) if sure else Handler(UNKNOWN, line if len(guard.lines) == 1 else 0)
    return None


_PERHAPS = "perhaps"


def _match(names: tuple[str, ...] | None, kind: str, bases: Sequence[str]) -> str:
    if names is None:
        return ANY
    meant = [_builtin(each) for each in names]
    raised = getattr(builtins, kind, None)
    known = bases or ([each.__name__ for each in raised.__mro__] if isinstance(raised, type) else ())
    if any(each in _ALL and (each in known or not known) for each in meant):
        return ANY
    if kind in names or any(each in known for each in meant):
        return NAMED
    # Which types a type of the program's own is derived from is not in its name, nor what is in `ERRORS`.
    return "" if known and all(map(_is_class, names)) else _PERHAPS


def _builtin(name: str) -> str:
    """`IOError` is another name of OSError."""
    found = getattr(builtins, name, None)
    return found.__name__ if isinstance(found, type) else name


def _is_class(name: str) -> bool:
    """
    >>> _is_class("OSError"), _is_class("RETRIED"), _is_class("error"), _is_class("")
    (True, False, False, False)
    """
    return name[:1].isupper() and not name.isupper()


@lru_cache(_FILES)
def _guards(file: str) -> tuple[Guard, ...]:
    lines = linecache.getlines(file)
    if not lines or len(lines) > _MOST_LINES:
        return ()
    try:
        tree = ast.parse("".join(lines))
        return tuple(_in(tree, 0, frozenset(_renamed(tree))))
    except (SyntaxError, ValueError, RecursionError):
        return ()


def _renamed(tree: ast.AST) -> Iterator[str]:
    """Names that need not be those of their classes: `import ... as Failed`, `Failed = ...`."""
    for each in ast.walk(tree):
        if isinstance(each, ast.alias) and each.asname:
            yield each.asname
        elif isinstance(each, (ast.Assign, ast.AnnAssign)):
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def _in(node: ast.AST, depth: int, renamed: frozenset[str]) -> Iterator[Guard]:
    for each in ast.iter_child_nodes(node):
        if isinstance(each, (ast.Try, ast.TryStar)):
            yield from _of_try(each, depth, renamed)
        elif isinstance(each, (ast.With, ast.AsyncWith)):
            calls = [one.context_expr for one in each.items if isinstance(one.context_expr, ast.Call)]
            named = tuple(_of_all(call.args, renamed) for call in calls if _tail(call.func) == "suppress")
            entry = each.lineno, max(one.context_expr.end_lineno or 0 for one in each.items)
            lines = (each.lineno,) * max(1, len(named))
            first, last = each.body[0].lineno, each.body[-1].end_lineno or 0
            yield Guard(first, last, named, lines, entry, depth, is_veil=not named)
        yield from _in(each, depth + isinstance(each, _ANEW), renamed)


def _of_try(node: ast.Try | ast.TryStar, depth: int, renamed: frozenset[str]) -> Iterator[Guard]:
    first, last = node.body[0].lineno, node.body[-1].end_lineno or 0
    if node.handlers:
        found = tuple(None if one.type is None else _of_all([one.type], renamed) for one in node.handlers)
        lines = tuple(one.lineno for one in node.handlers)
        ends = getattr(node.handlers[0].type, "end_lineno", None) or lines[0]
        yield Guard(first, last, found, lines, (lines[0], ends), depth)
    if node.finalbody:
        start, until = node.finalbody[0].lineno, node.finalbody[-1].end_lineno or 0
        leaves = (ast.Return, ast.Break, ast.Continue)
        is_veil = any(isinstance(each, leaves) for one in node.finalbody for each in ast.walk(one))
        yield Guard(first, start - 1, (), (start,), (start, until), depth, is_veil)


def _of_all(nodes: list[ast.expr], renamed: frozenset[str]) -> tuple[str, ...]:
    """The names of the types; empty: of what has another name, or none."""
    every = (each for node in nodes for each in (node.elts if isinstance(node, (ast.Tuple, ast.List)) else [node]))
    return tuple("" if isinstance(each, ast.Name) and each.id in renamed else _tail(each) for each in every)


def _tail(node: ast.AST) -> str:
    """The last part of a name: "JSONDecodeError" of `json.JSONDecodeError`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


__all__ = [
    "ANY",
    "KEEPERS",
    "KEPT",
    "LAST",
    "NAMED",
    "NONE",
    "OF_TASKS",
    "UNKNOWN",
    "USUAL",
    "Handler",
    "handler",
    "named_at",
]
