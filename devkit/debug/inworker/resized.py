"""Which lines of a file change the size of a dictionary or a set that was changed while a loop went over it.

The loop itself is innocent as a rule: another call or thread changed it, while the loop awaited something, say. Read
from the text of the file, by the name that the loop has for it.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator
from types import CodeType

from .expressions import tree_of
from .lineage import places_of
from .sources import is_users

MOST = 3  # lines
_SAID = ("dictionary changed size during iteration", "dictionary keys changed during iteration",
         "Set changed size during iteration", "deque mutated during iteration")  # fmt: skip
_VIEWS = frozenset({"items", "keys", "values"})
_CHANGES = frozenset(
    {"add", "append", "appendleft", "clear", "difference_update", "discard", "intersection_update", "pop", "popitem"}
    | {"popleft", "remove", "setdefault", "update"}
)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def said(errors: Iterable[BaseException]) -> str:
    """`self.replicas is changed at job.py:17 in Coordinator.register; the loop awaits at job.py:26, where other calls
    go on`; empty where it is another error, or nothing of it is in the file.
    """
    error = next((each for each in errors if type(each) is RuntimeError and str(each) in _SAID), None)
    place = next(iter(places_of(error.__traceback__)), None) if error is not None else None
    if place is None or not is_users(place[0].f_code.co_filename):
        return ""
    file, line = place[0].f_code.co_filename, place[1]
    _, tree = tree_of(file)
    loop = next(_loops(tree, line), None) if tree is not None else None
    if tree is None or loop is None or not (name := _over(loop)):
        return ""
    base = os.path.basename(file)
    places = (each for each in _changed(tree, name, "") if _is_same(name, each[1], place[0].f_code))
    found = [f"{base}:{at} in {function}" for at, function in places][:MOST]
    waits = next((node.lineno for node in ast.walk(loop) if isinstance(node, ast.Await)), 0)
    parts = [f"{name} is changed at {' and '.join(found)}"] if found else []
    parts += [f"the loop awaits at {base}:{waits}, where other calls go on"] if waits else []
    return "; ".join(parts)


def _is_same(name: str, function: str, code: CodeType) -> bool:
    """Whether a name means the same there: of `self` in that class, of a variable in that function."""
    first = name.partition(".")[0]
    if first == "self":
        return function.partition(".")[0] == code.co_qualname.partition(".")[0]
    return function == code.co_qualname or first not in (*code.co_varnames, *code.co_cellvars, *code.co_freevars)


def _loops(tree: ast.Module, line: int) -> Iterator[ast.For]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.For) and node.lineno == line)


def _over(loop: ast.For) -> str:
    """`self.replicas` of `for name, each in self.replicas.items()`."""
    over = loop.iter
    if isinstance(over, ast.Call) and isinstance(over.func, ast.Attribute) and over.func.attr in _VIEWS:
        over = over.func.value
    return ast.unparse(over) if isinstance(over, ast.Name | ast.Attribute) else ""


def _changed(node: ast.AST, name: str, function: str) -> Iterator[tuple[int, str]]:
    """(line, function) of each statement that puts something into it or takes something out."""
    for each in ast.iter_child_nodes(node):
        inner = f"{function}.{each.name}".lstrip(".") if isinstance(each, _FUNCTIONS) else function
        if _changes(each, name):
            yield each.lineno, inner or "<module>"  # type: ignore[attr-defined]
        yield from _changed(each, name, inner)


def _changes(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
        return ast.unparse(node.value) == name
    called = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGES
    return called and ast.unparse(node.func.value) == name  # type: ignore[attr-defined]


__all__ = ["said"]
