"""Which lines of a program could end a wait: those that set the event, put into the queue, release the lock.

Read from the text of the file in which the wait stands, by the name of what is waited for; nothing is run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, NamedTuple

from .expressions import tree_of

MOST = 3  # lines
MOST_KEPT = 200

# What waits, what ends that, and how it is said.
_ENDS: dict[str, tuple[frozenset[str], str]] = {
    "wait": (frozenset({"set", "notify", "notify_all"}), "set"),
    "wait_for": (frozenset({"notify", "notify_all"}), "notified"),
    "get": (frozenset({"put", "put_nowait"}), "put into"),
    "put": (frozenset({"get", "get_nowait"}), "taken from"),
    "acquire": (frozenset({"release"}), "released"),
}

Document = dict[str, Any]
_kept: dict[tuple[str, int, str, str], list[Document]] = {}


class _Waited(NamedTuple):
    """`self.idle.wait()`: for what, by the last of its names, and how."""

    text: str
    name: str
    how: str


def of(statement: ast.stmt, filename: str) -> Document | None:
    """{"what": "self.idle", "how": "set", "at": [{"line", "function"}]} of a statement that waits for an object of the
    program's; None of any other. `at` is empty where no line of the file does it.
    """
    waited = _waited(statement)
    size, tree = tree_of(filename)
    if waited is None or tree is None:
        return None
    key = (filename, size, waited.name, waited.how)
    if key not in _kept:
        if len(_kept) >= MOST_KEPT:
            _kept.clear()
        _kept[key] = list(_found(tree, waited))
    return {"what": waited.text, "how": _ENDS[waited.how][1], "at": _kept[key][:MOST]}


def _waited(statement: ast.stmt) -> _Waited | None:
    for node in ast.walk(statement):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _ENDS:
            name = _last(node.func.value)
            if name and not _is_of_a_library(node.func):
                return _Waited(ast.unparse(node.func.value), name, node.func.attr)
    return None


def _is_of_a_library(function: ast.Attribute) -> bool:
    """`ray.get`, `dist.wait`, `asyncio.wait`, `os.environ.get`: functions of modules, and dictionaries."""
    return isinstance(function.value, ast.Name) and function.value.id in ("ray", "asyncio", "dist", "os", "concurrent")


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _found(tree: ast.Module, waited: _Waited) -> Iterator[Document]:
    ends = _ENDS[waited.how][0]
    for node, function in _calls(tree, ""):
        if isinstance(node.func, ast.Attribute) and node.func.attr in ends and _last(node.func.value) == waited.name:
            yield {"line": node.lineno, "function": function or "<module>"}


def _calls(node: ast.AST, function: str) -> Iterator[tuple[ast.Call, str]]:
    """Each call, and the function that it stands in, as Python names that."""
    for child in ast.iter_child_nodes(node):
        name = function
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{function}.{child.name}".lstrip(".")
        if isinstance(child, ast.Call):
            yield child, function
        yield from _calls(child, name)


__all__ = ["of"]
