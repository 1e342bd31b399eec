"""What is put into a function for its breakpoints: pure, from one syntax tree to another.

In front of the statement that a breakpoint names stands, with that statement's own place in the file:

    try:
        if CONDITION: __devkit_hit__((ID,))
    except:
        if __devkit_failed__((ID,)): raise

which costs a function what its condition costs, and everybody else nothing. `__devkit_here__((ID, ID))` evaluates the
conditions itself: of several breakpoints of one place, so that a call of it is one stop, and those that can't stand in
the function without changing its variables. Inside of a statement `__devkit_here__((ID,)) or` stands before an
expression. Around each call stand those of `quiet.py`.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Sequence
from typing import Any, TypeVar

from .conditions import parse_expression
from .places import Path, Site
from .quiet import ENTER, LEAVE, THREAD

HIT, HERE, FAILED = "__devkit_hit__", "__devkit_here__", "__devkit_failed__"

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_Node = TypeVar("_Node", bound=ast.AST)

Insert = tuple[Path, ast.stmt]


def statement(site: Site, ids: Sequence[str], condition: str | None) -> ast.stmt:
    """What stands before a statement; `condition` is None where `HERE` evaluates the conditions."""
    if condition is None:
        return _placed(ast.Expr(_told(HERE, ids)), site)
    hit: ast.stmt = ast.Expr(_told(HIT, ids))
    if condition:
        hit = ast.If(test=parse_expression(condition), body=[hit], orelse=[])
    failed = ast.Subscript(
        ast.Tuple([_call(FAILED, ids), _calls(LEAVE, _calls(THREAD))], ast.Load()), ast.Constant(0), ast.Load()
    )
    handler = ast.ExceptHandler(type=None, name=None, body=[ast.If(test=failed, body=[ast.Raise()], orelse=[])])
    return _placed(ast.Try(body=[hit], handlers=[handler], orelse=[], finalbody=[]), site)


def before(expression: ast.expr, site: Site, ids: Sequence[str]) -> ast.expr:
    """An expression with a breakpoint before it; its value is the same."""
    told = _placed(_told(HERE, ids), site)
    whole = _placed(ast.BoolOp(ast.Or(), []), site)
    whole.values = [told, expression]
    return whole


def _told(function: str, ids: Sequence[str]) -> ast.expr:
    return _calls(LEAVE, _call(function, ids))


def _call(function: str, ids: Sequence[str]) -> ast.expr:
    names: Any = tuple(ids)  # typeshed knows no constants of this kind
    return _calls(function, ast.Constant(names), _calls(ENTER, _calls(THREAD)))


def _calls(function: str, *arguments: ast.expr) -> ast.expr:
    return ast.Call(func=ast.Name(id=function, ctx=ast.Load()), args=list(arguments), keywords=[])


def _placed(node: _Node, site: Site) -> _Node:
    """At the place of what it stands before, and without width."""
    for each in ast.walk(node):
        each.lineno = each.end_lineno = site.line  # type: ignore[attr-defined]
        each.col_offset = each.end_col_offset = site.column  # type: ignore[attr-defined]
    return node


def replaced(tree: ast.Module, sites: Sequence[tuple[Site, Sequence[str]]]) -> ast.Module:
    """With a breakpoint before each of these expressions; it shares with the original what doesn't change."""
    for site, ids in sorted(sites, key=lambda each: -len(each[0].path)):  # inner ones first: the ways to them stay
        found = _replaced(tree, site.path, site, ids)
        assert isinstance(found, ast.Module)
        tree = found
    return tree


def _replaced(node: ast.AST, path: Path, site: Site, ids: Sequence[str]) -> ast.AST:
    if not path:
        assert isinstance(node, ast.expr)
        return before(node, site, ids)
    (field, index), result = path[0], copy.copy(node)
    child = getattr(node, field)
    if index is None:
        setattr(result, field, _replaced(child, path[1:], site, ids))
    else:
        setattr(result, field, [*child[:index], _replaced(child[index], path[1:], site, ids), *child[index + 1 :]])
    return result


def rebuilt(node: ast.Module, inserts: Sequence[Insert], kept: Sequence[Path] | None) -> ast.Module:
    """A copy of the module with the statements inserted; it shares with the original what doesn't change.

    `kept` are the paths without which nothing of a module or a class needs to be compiled; None: all of it.
    """
    tree = _rebuilt(node, list(inserts), kept)
    assert isinstance(tree, ast.Module)
    return tree


def _rebuilt(node: ast.AST, inserts: list[Insert], kept: Sequence[Path] | None) -> ast.AST:
    result = copy.copy(node)
    prunes = kept is not None and isinstance(node, ast.Module | ast.ClassDef)
    fields = {path[0][0] for path, _ in inserts} | ({"body"} if prunes else set())
    for field in fields:
        children: list[ast.AST] = []
        for index, child in enumerate(getattr(node, field)):
            tails = [(path[1:], new) for path, new in inserts if path[0] == (field, index)]
            below = [path[1:] for path in kept or () if path[:1] == ((field, index),) and path[1:]]
            if prunes and not below:
                children += _imports(child) if isinstance(node, ast.Module) else []
                continue
            inside = below if prunes and isinstance(child, ast.ClassDef) else None
            children += [new for path, new in tails if not path]
            deeper = [(path, new) for path, new in tails if path]
            children.append(_rebuilt(child, deeper, inside) if deeper or inside else child)
        setattr(result, field, children or [ast.Pass(lineno=1, col_offset=0, end_lineno=1, end_col_offset=0)])
    return result


def _imports(node: ast.AST) -> list[ast.AST]:
    """The imports of a module, also those in its `if` and `try`: they decide how a call of `name.f()` is compiled."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [node]
    if not isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case) or isinstance(node, _SCOPES):
        return []
    return [found for child in ast.iter_child_nodes(node) for found in _imports(child)]
