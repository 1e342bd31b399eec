"""Functions of the program whose result follows from what they are given: read from their text, and not run.

Such as the rules of a normaliser: they work on their arguments and their own variables with methods of texts, regular
expressions and the like, and read globals that stay: texts, numbers, patterns, other such functions.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeGuard

from . import self_contained
from .expressions import nodes_of, tree_of

MOST_KEPT = 500
_STAYS = (str, bytes, float, int, complex, re.Pattern)
_CONTAINERS = (tuple, list, frozenset)
ITEMS, DEPTH = 1000, 3  # of a container of constants, and of those within each other
_NEW = (ast.Constant, ast.BinOp, ast.JoinedStr, ast.Call, ast.List, ast.Dict, ast.Set)
_CHANGES = frozenset(  # methods that change what they are called on
    name
    for kind in (list, dict, set)
    for name in dir(kind)
    if not name.startswith("_") and not hasattr(tuple, name) and not hasattr(frozenset, name)
) - {"get", "items", "keys", "values"}

_known: dict[tuple[CodeType, int], bool] = {}


def is_pure(value: Any) -> bool:
    """Whether it is such a function."""
    if type(value) is not FunctionType:
        return False
    key = (value.__code__, id(value.__globals__))
    if key not in _known:
        if len(_known) >= MOST_KEPT:
            _known.clear()
        _known[key] = True  # as far as it calls itself
        _known[key] = _reads_as_pure(value)
    return _known[key]


def _reads_as_pure(function: FunctionType) -> bool:
    code = function.__code__
    given = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    definition = _definition(code)
    if definition is None or code.co_freevars or code.co_cellvars or not all(map(_is_given, given)):
        return False
    nodes = [node for each in definition.body for node in ast.walk(each)]
    if not self_contained.is_plain(nodes, code) or any(_changes_what_is_given(nodes)) or not _adds_to_new(nodes, code):
        return False
    own, world = set(code.co_varnames), function.__globals__
    through = _gone_through(nodes)
    return all(_stays(node, world, through) for node in nodes if isinstance(node, ast.Name) and node.id not in own)


def _definition(code: CodeType) -> ast.FunctionDef | None:
    _, tree = tree_of(code.co_filename)
    found = nodes_of(tree, ast.FunctionDef) if tree is not None else ()
    same = (each for each in found if each.lineno == code.co_firstlineno and each.name == code.co_name)
    return next(same, None)  # a decorated one begins with its decorator


def _is_given(value: Any) -> bool:
    return value is None or type(value) in (*_STAYS, bool)


def _gone_through(nodes: Iterable[ast.AST]) -> set[int]:
    """Names that are read by `for` alone."""
    return {id(node.iter) for node in nodes if isinstance(node, ast.For) and isinstance(node.iter, ast.Name)}


def _changes_what_is_given(nodes: list[ast.AST]) -> Iterator[bool]:
    """A method that changes a container, unless that is a variable which holds none but new ones."""
    fresh = self_contained.fresh(nodes)
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGES:
            yield not (isinstance(node.func.value, ast.Name) and node.func.value.id in fresh)


def _adds_to_new(nodes: list[ast.AST], code: CodeType) -> bool:
    """Whether `+=` is of what the function has made itself: a list that was given is another one's."""
    added = {each.target.id for each in nodes if isinstance(each, ast.AugAssign) and _is_name(each.target)}
    new = [node.targets for node in nodes if isinstance(node, ast.Assign) and isinstance(node.value, _NEW)]
    plain = {id(each) for targets in new for each in targets}
    again = {id(node.target) for node in nodes if isinstance(node, ast.AugAssign)}
    stores = [each for each in nodes if _is_name(each) and isinstance(each.ctx, ast.Store)]
    given = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return not added & {*given, *(each.id for each in stores if id(each) not in plain | again)}


def _is_name(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name)


def _stays(node: ast.Name, world: Mapping[str, Any], through: set[int]) -> bool:
    """Whether a global is a builtin, or nothing that somebody else may set meanwhile."""
    if node.id not in world:
        return self_contained.is_builtin(node.id)
    value = world[node.id]
    if type(value) is ModuleType:
        return value.__name__ == node.id and node.id in self_contained.MODULES
    return is_pure(value) or _is_constant(value, DEPTH, lists=id(node) in through)


def _is_constant(value: Any, depth: int, *, lists: bool) -> bool:
    if type(value) in _CONTAINERS and depth and len(value) <= ITEMS and (lists or type(value) is not list):
        return all(is_pure(each) or _is_constant(each, depth - 1, lists=lists) for each in value)
    return type(value) in _STAYS


__all__ = ["is_pure"]
