"""Variables that may not be any more what they were when it failed: a handler or a `finally` has run since.

A snapshot is taken where an exception leaves a task. A frame that it passed has gone on meanwhile, to where it ended.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from .expressions import tree_of, tries_of
from .lineage import Place, places_of
from .sources import is_users

MOST = 3  # frames that are told of
NAMES = 4  # of one frame
CHANGING = frozenset(
    {"add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "popleft", "remove"}
    | {"reverse", "setdefault", "sort", "update"}
)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def said(errors: Iterable[BaseException]) -> list[str]:
    """One line for each of the user's frames whose variables were written to after an error had passed it."""
    places = [each for error in errors for each in places_of(error.__traceback__)]
    return list(dict.fromkeys(filter(None, map(_of, places))))[:MOST]


def _of(place: Place) -> str:
    frame, line = place
    code, now = frame.f_code, frame.f_lineno
    if now in (None, line) or not is_users(code.co_filename):
        return ""
    _, tree = tree_of(code.co_filename)
    known = {name for name in frame.f_locals if not name.startswith((".", "__"))}
    names = [name for name in written_since(tree, line, now) if name in known] if tree else []
    if not names:
        return ""
    where = f"{os.path.basename(code.co_filename)}:{now}"
    return f"{', '.join(names[:NAMES])} may have changed since the error: {code.co_qualname} went on to {where}"


def written_since(tree: ast.Module, raised: int, ended: int) -> list[str]:
    """The names that a block writes to, or into, which ran when line `raised` had failed, up to line `ended`.

    >>> text = "def f():\\n  try:\\n    x = g()\\n  except E as e:\\n    y.pop()\\n    z[0] = len(w)\\n    raise\\n"
    >>> written_since(ast.parse(text), 3, 7), written_since(ast.parse(text), 3, 5), written_since(ast.parse(text), 3, 3)
    (['y', 'z'], ['y'], [])
    """
    statements = [node for block in blocks_after(tree, raised) if _holds(block, ended) for node in block]
    found = [name for each in statements for name in _written(each, ended)]
    return list(dict.fromkeys(found))


def blocks_after(tree: ast.Module, raised: int) -> Iterator[Sequence[ast.stmt]]:
    """The blocks that run when that line fails."""
    for node in tries_of(tree):
        inside = [node.body, node.orelse, *(each.body for each in node.handlers)]
        if any(_holds(block, raised) for block in inside):
            yield node.finalbody
        if _holds(node.body, raised):
            yield from (each.body for each in node.handlers)


def _holds(block: Sequence[ast.stmt], line: int) -> bool:
    return bool(block) and block[0].lineno <= line <= (block[-1].end_lineno or block[-1].lineno)


def _written(node: ast.AST, ended: int) -> Iterator[str]:
    if isinstance(node, _FUNCTIONS) or getattr(node, "lineno", 0) > ended:
        return
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id
    elif isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
        yield from _root(node)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGING:
        yield from _root(node.func)
    for each in ast.iter_child_nodes(node):
        yield from _written(each, ended)


def _root(node: Any) -> Iterator[str]:
    """`batch` of `batch.rows[0]`."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    if isinstance(node, ast.Name):
        yield node.id


__all__ = ["CHANGING", "said", "written_since"]
