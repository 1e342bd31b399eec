"""Queues of `ray.util.queue` from which a thread that waits at one takes elsewhere in its functions, by their text."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

from .expressions import look, nodes_of, tree_of

FILE = os.path.join("ray", "util", "queue.py")
_TAKES = frozenset({"get", "get_async", "get_nowait", "get_nowait_batch"})
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_Function = ast.FunctionDef | ast.AsyncFunctionDef
MOST = 4  # queues
FRAMES = 4  # the program's, from the innermost one outwards

Document = dict[str, Any]


def taken_from(own: Iterable[FrameType], inner: Iterable[FrameType]) -> list[Document]:
    """[{"actor": the id of the queue's actor, "at": the line that takes from it}].

    Args:
        own: the program's frames of a thread that waits, the innermost one first.
        inner: those of libraries below; of any that is not in such a queue nothing is told.
    """
    if not any(frame.f_code.co_filename.endswith(FILE) for frame in inner):
        return []
    found: dict[str, Document] = {}
    for frame in list(own)[:FRAMES]:
        for node, function in _calls(frame):
            queue = look(node.func.value, frame)  # type: ignore[attr-defined]
            if (actor := _actor(queue)) and actor not in found and len(found) < MOST:
                at = {"file": frame.f_code.co_filename, "line": node.lineno, "function": function}
                found[actor] = {"actor": actor, "at": at}
    return list(found.values())


def _calls(frame: FrameType) -> Iterator[tuple[ast.Call, str]]:
    """Those in a frame's function, and those of its object's attributes in other methods of its class."""
    code = frame.f_code
    _, tree = tree_of(code.co_filename)
    if tree is None:
        return
    every: list[_Function] = [*nodes_of(tree, ast.FunctionDef), *nodes_of(tree, ast.AsyncFunctionDef)]
    for function in every:
        if function.name == code.co_name and _first(function) == code.co_firstlineno:
            yield from ((node, code.co_qualname) for node in _takes(function))
    for kind in nodes_of(tree, ast.ClassDef):
        methods = [each for each in kind.body if isinstance(each, _FUNCTIONS)]
        if any(_first(each) == code.co_firstlineno for each in methods):
            others = ((node, f"{kind.name}.{each.name}") for each in methods for node in _takes(each))
            yield from (each for each in others if _is_selfs(each[0].func))


def _first(function: _Function) -> int:
    return min([function.lineno, *(each.lineno for each in function.decorator_list)])


def _takes(function: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _TAKES:
            yield node


def _is_selfs(func: ast.expr) -> bool:
    owner = func.value if isinstance(func, ast.Attribute) else None
    return isinstance(owner, ast.Attribute) and isinstance(owner.value, ast.Name) and owner.value.id == "self"


def _actor(queue: Any) -> str:
    """The id of its actor, without running any of its code."""
    kind = type(queue)
    if (kind.__module__, kind.__name__) != ("ray.util.queue", "Queue"):
        return ""
    handle = vars(queue).get("actor")
    held = getattr(handle, "__dict__", {}).get("_ray_actor_id")
    return str(held.hex()) if held is not None else ""


__all__ = ["taken_from"]
