"""Of which actors a loop asks results again and again, and what of these would have to change for another answer.

By the text: a method reads an attribute of its object, and only other methods add to that.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from types import CodeType, FrameType, FunctionType
from typing import Any

from . import this_round
from .expressions import look, nodes_of, short, tree_of, values
from .sources import is_users

MOST = 3  # calls of a loop, and values of their arguments
TEXT = 120  # characters of a condition
METHODS, ATTRIBUTES = 30, 4  # of a class; that one method reads
WRAPPED = 5  # functions around each other
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_ADDS = frozenset(
    {"append", "appendleft", "extend", "add", "update", "insert", "put", "put_nowait", "setdefault", "set"}
)
_TAKES = frozenset({"pop", "popleft", "popitem", "remove", "discard", "clear", "get", "get_nowait"})

Document = dict[str, Any]
_known: dict[type, Document] = {}


def calls(loop: ast.While, frame: FrameType) -> list[Document]:
    """[{"actor", "method", "line", "answer", "test", "values"}] of the calls whose answers keep a loop going.

    By its text: those in its own condition and in what this round has found at the `if`s that would lead out of it.
    None where one of them can't be told. "answer" is the variable that the result is given to, or empty; "test" an
    `if` that asks for it itself, ends the loop and has not held, and "values" those of the call's arguments.
    """
    found: list[Document] = []
    given = {id(call): name for name, value in _given(loop) for call in ast.walk(value)}
    kept = this_round.kept_by(loop, frame)
    behind = _behind(loop, [*_test_of(loop), *(each.node.test for each in kept)], frame.f_lineno or 0)
    each_of = {name.id for node in ast.walk(loop) if isinstance(node, ast.For | ast.AsyncFor) for name in _names(node)}
    for node in behind:
        if not each_of.isdisjoint(name.id for name in ast.walk(node.func) if isinstance(name, ast.Name)):
            return []  # the one that it was at last need not be the one
        method = node.func.value if isinstance(node.func, ast.Attribute) else None
        owner = look(method.value, frame) if isinstance(method, ast.Attribute) else None
        held = getattr(owner, "__dict__", {}).get("_ray_actor_id")
        if not isinstance(method, ast.Attribute) or held is None:
            return []
        call = {"actor": str(held.hex()), "method": method.attr, "line": node.lineno}
        found.append({**call, "answer": given.get(id(node), ""), **_said(node, kept, frame)})
    return sorted(found, key=lambda each: int(each["line"]))[:MOST]


def _said(call: ast.Call, kept: Sequence[this_round.Condition], frame: FrameType) -> Document:
    """The `if` of a loop that asks for a result itself; none where another one may keep it from being looked at."""
    own = [each.node.test for each in kept if each.wanted]
    if len(kept) != 1 or not own or not any(node is call for node in ast.walk(own[0])):
        return {}
    arguments = [*call.args, *(each.value for each in call.keywords)]
    return {"test": short(ast.unparse(own[0]), TEXT), "values": dict(values(arguments, frame, MOST))}


def _names(loop: ast.For | ast.AsyncFor) -> Iterator[ast.Name]:
    return (each for each in ast.walk(loop.target) if isinstance(each, ast.Name))


def _test_of(loop: ast.While) -> list[ast.expr]:
    return [] if isinstance(loop.test, ast.Constant) else [loop.test]


def _behind(loop: ast.While, tests: Iterable[ast.expr], line: int) -> list[ast.Call]:
    """The calls of actors in some conditions, and in what the variables in these are made of in each round."""
    waiting, seen = list[ast.AST](tests), dict[int, ast.AST]()
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen[id(each)] = each
        parts = (node for node in ast.walk(each) if isinstance(node, ast.Name | ast.Attribute))
        names = {ast.unparse(node) for node in parts} - {"self"}
        waiting += [value for name, value in _made_of(loop) if name in names and this_round.is_run(loop, value, line)]
    nodes = {id(node): node for each in seen.values() for node in ast.walk(each) if isinstance(node, ast.Call)}
    return [node for node in nodes.values() if isinstance(node.func, ast.Attribute) and node.func.attr == "remote"]


def _made_of(loop: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """(what is changed, by what): `a = value`, `a += value`, `for a in value`, `a.append(value)`, `a[key] = value`."""
    for node in ast.walk(loop):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _ADDS:
            yield from ((ast.unparse(node.func.value), argument) for argument in node.args)
        elif isinstance(node, ast.For | ast.AsyncFor):
            yield from ((name, node.iter) for name in _changed([node.target]))
        elif isinstance(node, ast.Assign):
            yield from ((name, node.value) for name in _changed(node.targets))
        elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            value = node.value
            yield from ((name, value) for name in _changed([node.target]))


def _changed(targets: Iterable[ast.expr]) -> Iterator[str]:
    for each in (part for target in targets for part in _parts(target)):
        yield ast.unparse(each.value if isinstance(each, ast.Subscript | ast.Starred) else each)


def _given(loop: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(loop):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(node, ast.Assign | ast.NamedExpr) and len(targets) == 1 and isinstance(targets[0], ast.Name):
            yield targets[0].id, node.value


def growing(actor: Any) -> Document:
    """{"file", "methods": {method: {"reads": [attributes], "in": [{"line", "function"}], "takes"}}} of an actor.

    "reads" are attributes that a method reads and does not add to; "in" are the places where other methods do, or take
    from them: "takes" says that some do, since for another answer there may have to be less.
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
    takes = {each.name: dict(_takes(each)) for each in methods}
    found = {each.name: _of_method(each, adds, takes, kind.name) for each in methods}
    return {name: known for name, known in found.items() if known["in"]}


def _lines(kind: ast.ClassDef) -> set[int]:
    own = [each for each in kind.body if isinstance(each, _FUNCTIONS)]
    return {min([each.lineno, *(one.lineno for one in each.decorator_list)]) for each in own}


def _of_method(
    method: ast.FunctionDef | ast.AsyncFunctionDef,
    adds: dict[str, dict[str, int]],
    takes: dict[str, dict[str, int]],
    kind: str,
) -> Document:
    reads = [name for name in _reads(method) if name not in adds[method.name]][:ATTRIBUTES]
    others = [name for name in adds if name not in ("__init__", method.name)]
    grows = [name for name in reads if any(name in adds[other] or name in takes[other] for other in others)]
    places = [
        {"line": line, "function": f"{kind}.{other}"}
        for other in others
        for attribute, line in {**takes[other], **adds[other]}.items()
        if attribute in grows
    ]
    taken = any(name in takes[other] for name in grows for other in others)
    return {"reads": grows, "in": places, **({"takes": True} if taken else {})}


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


def _takes(method: ast.AST) -> Iterator[tuple[str, int]]:
    """(attribute, line) of what a method takes something from."""
    for node in ast.walk(method):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _TAKES:
            is_get = node.func.attr in ("get", "get_nowait") and bool(node.args)  # a dictionary's
            yield from () if is_get else _of_self([node.func.value])
        elif isinstance(node, ast.Delete):
            yield from _of_self(each for each in node.targets if isinstance(each, ast.Subscript))


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
