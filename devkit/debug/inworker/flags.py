"""Loops that nothing inside of them ends: `while True` without a way out, `while self.running` where only other methods
change that.

Read from the text of the file in which the loop is; nothing of the program is run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import FrameType
from typing import Any

from .expressions import nodes_of, short, tree_of, values

MOST = 3  # methods that end it
MOST_KEPT = 200
TEXT = 120  # characters of a condition
_EXITS = frozenset({"next", "anext", "exit", "_exit", "quit", "exit_actor"})
# What says by an exception that there is no more.
_RUNS_OUT = frozenset({"pop", "popleft", "popitem", "get_nowait", "put_nowait", "send", "throw", "recv", "recv_bytes"})
_LIMITED = frozenset({"get", "put", "result", "wait_for"})  # which raise at a time-out
_CHANGES = frozenset({"set", "clear"})  # of an event
_LOOKS = frozenset({"set", "clear", "is_set", "wait"})
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SCOPES = (*_FUNCTIONS, ast.Lambda, ast.ClassDef)
_INNER_LOOPS = (ast.While, ast.For, ast.AsyncFor)

Document = dict[str, Any]
_kept: dict[tuple[str, int, int, int], tuple[ast.While, list[Document]] | None] = {}


def endless(frame: FrameType) -> Document | None:
    """{"loop", "values", "by": [{"line", "function"}]} of the outermost such loop around a frame's line, or None.

    `by` are the methods that change what its condition looks at, each of which somebody else has to call; empty where
    the loop has no condition. What the text does not tell for certain is no such loop. An exception may end each: of
    those that the text shows, by which a loop is meant to end, there is none in it.
    """
    filename, first, line = frame.f_code.co_filename, frame.f_code.co_firstlineno, frame.f_lineno or 0
    size, tree = tree_of(filename)
    if tree is None:
        return None
    key = (filename, size, first, line)
    if key not in _kept:
        if len(_kept) >= MOST_KEPT:
            _kept.clear()
        around = (loop for loop in _around(tree, first, line) if not _leaves(loop, tree))
        around = (loop for loop in around if not _is_tried(tree, first, loop))
        _kept[key] = next(((loop, by) for loop in around if (by := _by(tree, loop, first)) is not None), None)
    if (found := _kept[key]) is None:
        return None
    loop, by = found
    text = short(f"while {ast.unparse(loop.test)}", TEXT)
    return {"loop": text, "values": dict(values([loop.test], frame, 1)), "by": by}


def _around(tree: ast.Module, first: int, line: int) -> list[ast.While]:
    """Those of the function that begins at `first`, the outermost one first."""
    found = (node for node in nodes_of(tree, ast.While) if first <= node.lineno <= line <= (node.end_lineno or 0))
    return sorted(found, key=lambda node: node.lineno)


def _leaves(loop: ast.While, tree: ast.Module) -> bool:
    """Whether something in it may end it: `break`, `return`, `raise`, `assert`, `next` of an iterator, an exit, or a
    function of the same file that raises.
    """
    raising = _raising(tree)
    nodes = [found for each in loop.body for found in _inside(each, inner=False)]
    return any(_is_way_out(node, inner) or _called(node) in raising for node, inner in nodes)


def _raising(tree: ast.Module) -> frozenset[str]:
    """The names of functions and classes of a file that raise something, or call one that does."""
    functions: list[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef] = [
        *nodes_of(tree, ast.FunctionDef),
        *nodes_of(tree, ast.AsyncFunctionDef),
        *nodes_of(tree, ast.ClassDef),
    ]
    calls = {each.name: {_called(node) for node in ast.walk(each)} for each in functions}
    found = {each.name for each in functions if any(isinstance(node, ast.Raise) for node in ast.walk(each))}
    while more := {name for name, names in calls.items() if name not in found and not names.isdisjoint(found)}:
        found |= more
    return frozenset(found)


def _called(node: ast.AST) -> str | None:
    if not isinstance(node, ast.Call):
        return None
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)


def _inside(node: ast.AST, *, inner: bool) -> Iterator[tuple[ast.AST, bool]]:
    """The nodes of one function, each with whether it is in a loop within the loop."""
    yield node, inner
    if isinstance(node, _SCOPES):
        return
    inner = inner or isinstance(node, _INNER_LOOPS)
    for child in ast.iter_child_nodes(node):
        yield from _inside(child, inner=inner)


def _is_tried(tree: ast.Module, first: int, loop: ast.While) -> bool:
    """Whether it is in a `try` of its function: then an exception is its way out."""
    tries = (node for node in nodes_of(tree, ast.Try) if node.lineno >= first and node.handlers)
    return any(each.lineno <= loop.lineno <= (each.end_lineno or 0) for node in tries for each in node.body)


def _is_way_out(node: ast.AST, inner: bool) -> bool:
    if isinstance(node, ast.Call):
        limited = _called(node) in _LIMITED and any(each.arg == "timeout" for each in node.keywords)
        return _called(node) in _EXITS | _RUNS_OUT or limited
    return isinstance(node, ast.Return | ast.Raise | ast.Assert) or (isinstance(node, ast.Break) and not inner)


def _by(tree: ast.Module, loop: ast.While, first: int) -> list[Document] | None:
    """Who changes what its condition looks at; None where the loop itself may, or nobody is known to."""
    if isinstance(loop.test, ast.Constant):
        return [] if loop.test.value else None
    name, own = _flag(loop.test), _class_of(tree, first)
    if not name or own is None or own.bases:  # methods of a base may change it, too
        return None
    inside = {id(node) for node in ast.walk(own)}
    if any(_changes(node, name) for node in ast.walk(tree) if id(node) not in inside and not _is_selfs(node)):
        return None
    if _is_handed_on(own, name):
        return None
    setters = [each for each in own.body if isinstance(each, _FUNCTIONS) and each.name != "__init__"]
    setters = [each for each in setters if any(_changes(node, name) for node in ast.walk(each))]
    called = {node.attr for node in ast.walk(own) if isinstance(node, ast.Attribute) and _is_own(node)}
    if not setters or any(each.name in called or _begins(each) == first for each in setters):
        return None
    return [{"line": each.lineno, "function": each.name} for each in setters[:MOST]]


def _is_handed_on(own: ast.ClassDef, name: str) -> bool:
    """Whether an object of the class, or an event of it, is given to somebody else, who may change it."""
    owners = {id(node.value) for node in ast.walk(own) if isinstance(node, ast.Attribute)}
    looked_at = {id(node.value) for node in ast.walk(own) if isinstance(node, ast.Attribute) and node.attr in _LOOKS}
    for node in ast.walk(own):
        if isinstance(node, ast.Name) and node.id == "self" and id(node) not in owners:
            return True
        if _is_own(node) and isinstance(node, ast.Attribute) and node.attr == "__dict__":
            return True
    given = (arg for node in ast.walk(own) if isinstance(node, ast.Call) for arg in ast.walk(node) if _is_own(arg))
    return any(isinstance(arg, ast.Attribute) and arg.attr == name and id(arg) not in looked_at for arg in given)


def _class_of(tree: ast.Module, first: int) -> ast.ClassDef | None:
    """The one that has the method whose code begins at `first`."""
    methods = (
        (each, node) for each in nodes_of(tree, ast.ClassDef) for node in each.body if isinstance(node, _FUNCTIONS)
    )
    return next((each for each, node in methods if _begins(node) == first), None)


def _flag(test: ast.expr) -> str:
    """The attribute that `self.running`, `not self.done`, `not self.stop.is_set()` look at; empty of others."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test = test.operand
    if isinstance(test, ast.Call) and isinstance(test.func, ast.Attribute) and test.func.attr == "is_set":
        test = test.func.value
    return test.attr if isinstance(test, ast.Attribute) and _is_own(test) else ""


def _is_own(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def _is_selfs(node: ast.AST) -> bool:
    """An attribute of another class's object, or an event in one."""
    target = node.func.value if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else node
    return _is_own(target)


def _begins(function: _Function) -> int:
    """The line at which its code begins: that of its first decorator."""
    return min([function.lineno, *(each.lineno for each in function.decorator_list)])


def _changes(node: ast.AST, name: str) -> bool:
    """Whether it assigns to an attribute of that name, or sets or clears it, of whatever object."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGES:
        return isinstance(node.func.value, ast.Attribute) and node.func.value.attr == name
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "setattr":
        return True  # of what, nobody knows
    return isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del) and node.attr == name


__all__ = ["endless"]
