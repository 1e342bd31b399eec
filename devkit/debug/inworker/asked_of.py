"""Of which actors a loop asks results again and again, and what of these would have to change for another answer.

By the text: a method reads an attribute of its object, and only other methods add to that.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from types import CodeType, FrameType, FunctionType
from typing import Any

from .expressions import look, nodes_of, tree_of
from .sources import is_users

MOST = 3  # calls of a loop
METHODS, ATTRIBUTES = 30, 4  # of a class; that one method reads
WRAPPED = 5  # functions around each other
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_ADDS = frozenset(
    {"append", "appendleft", "extend", "add", "update", "insert", "put", "put_nowait", "setdefault", "set"}
)

Document = dict[str, Any]
_known: dict[type, Document] = {}


def calls(loop: ast.AST, frame: FrameType) -> list[Document]:
    """[{"actor", "method", "line", "answer"}] of the calls of actors in a loop, if each of them can be told.

    "answer" is the variable that the result is given to, or empty.
    """
    found: list[Document] = []
    given = {id(call): name for name, value in _given(loop) for call in ast.walk(value)}
    for node in ast.walk(loop):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "remote":
            method = node.func.value
            owner = look(method.value, frame) if isinstance(method, ast.Attribute) else None
            held = getattr(owner, "__dict__", {}).get("_ray_actor_id")
            if not isinstance(method, ast.Attribute) or held is None:
                return []
            call = {"actor": str(held.hex()), "method": method.attr, "line": node.lineno}
            found.append({**call, "answer": given.get(id(node), "")})
    return sorted(found, key=lambda each: int(each["line"]))[:MOST]


def _given(loop: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(loop):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(node, ast.Assign | ast.NamedExpr) and len(targets) == 1 and isinstance(targets[0], ast.Name):
            yield targets[0].id, node.value


def growing(actor: Any) -> Document:
    """{"file", "methods": {method: {"reads": [attributes], "in": [{"line", "function"}]}}} of an actor's class.

    "reads" are attributes that a method reads and does not add to; "in" are the places where other methods do.
    """
    kind = type(actor)
    if kind not in _known:
        _known[kind] = _of_class(kind)
    return _known[kind]


def _of_class(kind: type) -> Document:
    codes = [code for base in kind.__mro__ for each in vars(base).values() if (code := _code(each)) is not None]
    lines = {(code.co_filename, code.co_firstlineno) for code in codes}
    for file in dict.fromkeys(code.co_filename for code in codes):
        _, tree = tree_of(file)
        for each in nodes_of(tree, ast.ClassDef) if tree is not None else ():
            if each.name == kind.__name__ and {(file, line) for line in _lines(each)} & lines:
                return {"file": file, "methods": _of_methods(each)}
    return {"file": "", "methods": {}}


def _code(function: Any) -> CodeType | None:
    """Of a function of the program, which Ray has wrapped."""
    count = 0
    while hasattr(function, "__wrapped__") and count < WRAPPED:
        function, count = function.__wrapped__, count + 1
    code = function.__code__ if type(function) is FunctionType else None
    return code if code is not None and is_users(code.co_filename) else None


def _of_methods(kind: ast.ClassDef) -> Document:
    methods = [each for each in kind.body if isinstance(each, _FUNCTIONS)][:METHODS]
    adds = {each.name: dict(_adds(each)) for each in methods}
    found = {each.name: _of_method(each, adds, kind.name) for each in methods}
    return {name: known for name, known in found.items() if known["in"]}


def _lines(kind: ast.ClassDef) -> set[int]:
    own = [each for each in kind.body if isinstance(each, _FUNCTIONS)]
    return {min([each.lineno, *(one.lineno for one in each.decorator_list)]) for each in own}


def _of_method(method: ast.FunctionDef | ast.AsyncFunctionDef, adds: dict[str, dict[str, int]], kind: str) -> Document:
    reads = [name for name in _reads(method) if name not in adds[method.name]][:ATTRIBUTES]
    others = {name: own for name, own in adds.items() if name not in ("__init__", method.name)}
    grows = [name for name in reads if any(name in own for own in others.values())]
    places = [
        {"line": line, "function": f"{kind}.{name}"}
        for name, own in others.items()
        for attribute, line in own.items()
        if attribute in grows
    ]
    return {"reads": grows, "in": places}


def _reads(method: ast.AST) -> list[str]:
    nodes = (node for node in ast.walk(method) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load))
    return list(dict.fromkeys(node.attr for node in nodes if _is_self(node.value)))


def _adds(method: ast.AST) -> Iterator[tuple[str, int]]:
    """(attribute, line) of what a method sets, or adds to."""
    for node in ast.walk(method):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _ADDS:
            yield from _of_self([node.func.value])
        elif isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from _of_self(each for target in targets for each in _parts(target))


def _parts(target: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        for each in target.elts:
            yield from _parts(each)
    else:
        yield target


def _of_self(targets: Iterable[ast.expr]) -> Iterator[tuple[str, int]]:
    for each in targets:
        inner = each.value if isinstance(each, ast.Subscript) else each
        if isinstance(inner, ast.Attribute) and _is_self(inner.value):
            yield inner.attr, inner.lineno


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


__all__ = ["calls", "growing"]
