"""Where a driver's own code reads a global behind a call, and whether it changes it: by its source."""

from __future__ import annotations

import ast
import os
from collections.abc import Collection, Iterator
from types import CodeType
from typing import Any, NamedTuple

from .changed import CHANGING

# Methods by which a container loses what was in it.
_EMPTYING = frozenset({"clear", "discard", "pop", "popitem", "popleft", "remove"})
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SENDING = ("remote", "put", "options")
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Wanted(NamedTuple):
    """A global, and who else uses it."""

    module: str
    file: str  # of that module
    name: str  # "COUNTS", "Stats.hits"
    used: Collection[str]  # functions of the workers, which may run in the driver, too


def line_of(tree: ast.Module, code: CodeType, line: int, wanted: Wanted) -> int:
    """The first line that reads it behind that line of a code, or in a function that is called behind it. 0: there is
    none, or the program's file changes the global outside of the workers' functions, or empties it anywhere.
    """
    functions = [each for each in ast.walk(tree) if isinstance(each, _FUNCTIONS)]
    scope = scope_of(tree, code)
    ways = set(_ways(tree, code.co_filename, wanted))
    if scope is None or not ways or code.co_qualname.rpartition("<locals>.")[2] in wanted.used:
        return 0
    if is_changed(tree, code.co_filename, wanted):
        return 0
    lines = [each for each in _reads(scope, ways) if each > line]
    called = {each.func.id for each in inside(scope) if _is_by_name(each) and each.lineno > line}  # type: ignore[attr-defined]
    for each in functions:
        if each.name in called and each in tree.body and each.name not in wanted.used:
            lines += _reads(each, ways)
    return min(lines, default=0)


def is_changed(tree: ast.Module, file: str, wanted: Wanted) -> bool:
    """Whether a file changes the global outside of the workers' functions, or empties it anywhere."""
    ways = set(_ways(tree, file, wanted))
    functions = (each for each in ast.walk(tree) if isinstance(each, _FUNCTIONS))
    return any(_is_changed_in(each, ways, wanted.used) for each in (tree, *functions))


def _is_by_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name)


def scope_of(tree: ast.Module, code: CodeType) -> Any:
    """The syntax of a code, of a comprehension's the function that it is in; None: it is not there."""
    if code.co_name == "<module>":
        return tree
    functions = [each for each in ast.walk(tree) if isinstance(each, _FUNCTIONS)]
    if code.co_name.startswith("<"):
        line = code.co_firstlineno
        around = [each for each in functions if each.lineno <= line <= (each.end_lineno or 0)]
        return max(around, key=lambda each: each.lineno, default=tree)
    return next((each for each in functions if each.name == code.co_name and _start(each) == code.co_firstlineno), None)


def _start(function: Function) -> int:
    return min([function.lineno, *(each.lineno for each in function.decorator_list)])


def _ways(tree: ast.Module, file: str, wanted: Wanted) -> Iterator[str]:
    """How a file names the global: "COUNTS", "Stats.hits", "stats.COUNTS"."""
    if os.path.realpath(wanted.file) == os.path.realpath(file):
        yield wanted.name
        return
    for each in ast.walk(tree):
        if isinstance(each, ast.Import):
            names = (one.asname or one.name for one in each.names if one.name == wanted.module)
            yield from (f"{one}.{wanted.name}" for one in names)
        elif isinstance(each, ast.ImportFrom) and each.module == wanted.module and not each.level:
            first, dot, rest = wanted.name.partition(".")
            yield from (f"{one.asname or one.name}{dot}{rest}" for one in each.names if one.name == first)


def _reads(scope: Any, ways: Collection[str]) -> list[int]:
    """The lines of a scope that read what has one of these names, and do not just send, change or test it."""
    nodes, known = list(inside(scope)), _known(scope, ways)
    others = {id(each) for node in nodes for each in _no_reads(node)}
    return [
        node.lineno for node in nodes if isinstance(node, ast.expr) and id(node) not in others and _name(node) in known
    ]


def _known(scope: Any, ways: Collection[str]) -> set[str]:
    """Those that mean the global in a scope: a function may have a variable of that name."""
    if isinstance(scope, ast.Module):
        return set(ways)
    nodes = list(inside(scope))
    own = {each.id for each in nodes if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Load)}
    own -= {name for each in nodes if isinstance(each, ast.Global) for name in each.names}
    given = scope.args
    own |= {
        each.arg for each in (*given.args, *given.posonlyargs, *given.kwonlyargs, given.vararg, given.kwarg) if each
    }
    return {each for each in ways if each.partition(".")[0] not in own}


def inside(scope: Any) -> Iterator[ast.AST]:
    """The nodes of a scope but for those of functions and classes in it."""
    waiting: list[ast.AST] = list(scope.body)
    while waiting:
        each = waiting.pop()
        if not isinstance(each, (*_FUNCTIONS, ast.ClassDef, ast.Lambda)):
            yield each
            waiting += ast.iter_child_nodes(each)


def _name(node: ast.AST, *, any_use: bool = False) -> str:
    """`a.b` as text where it is read."""
    if isinstance(node, ast.Name) and (any_use or isinstance(node.ctx, ast.Load)):
        return node.id
    if isinstance(node, ast.Attribute) and (any_use or isinstance(node.ctx, ast.Load)):
        first = _name(node.value)
        return f"{first}.{node.attr}" if first else ""
    return ""


def _no_reads(node: ast.AST) -> Iterator[ast.AST]:
    """Of a node, the parts whose values are not used: what is sent, changed or only tested."""
    yield from sending(node)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGING:
        yield node.func.value
    elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
        yield node.value
    elif isinstance(node, ast.If | ast.While | ast.IfExp | ast.Assert):
        yield node.test
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif isinstance(node, ast.BoolOp):
        yield from node.values
    elif isinstance(node, ast.AugAssign):
        yield from ast.walk(node.target)


def sending(node: ast.AST) -> Iterator[ast.AST]:
    """What is sent to workers by a call."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _SENDING:
        yield from (part for each in (*node.args, *node.keywords) for part in ast.walk(each))


def _is_changed_in(scope: Any, ways: Collection[str], used: Collection[str]) -> bool:
    """Whether a scope fills the global, and is none of the workers'; or empties or sets it anew, whosever it is."""
    known = _known(scope, ways)
    is_workers = getattr(scope, "name", None) in {each.rpartition(".")[2] for each in used}
    changes = [each for node in inside(scope) for each in _changes(node, known)]
    made = _SET if isinstance(scope, ast.Module) and changes.count(_SET) == 1 else ""
    return any(each != made and not (each == _FILLED and is_workers) for each in changes)


_FILLED, _EMPTIED, _SET = "filled", "emptied", "set"


def _changes(node: ast.AST, known: Collection[str]) -> Iterator[str]:
    if isinstance(node, ast.AugAssign) and _target(node.target) in known:
        yield _FILLED
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _name(node.func.value) in known:
        if node.func.attr in CHANGING:
            yield _EMPTIED if node.func.attr in _EMPTYING else _FILLED
    elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load) and _name(node.value) in known:
        yield _EMPTIED if isinstance(node.ctx, ast.Del) else _FILLED
    elif isinstance(node, ast.Assign | ast.AnnAssign | ast.For | ast.With | ast.NamedExpr | ast.Delete):
        yield from (_SET for each in _targets(node) if _name(each, any_use=True) in known)


def _targets(node: Any) -> Iterator[ast.AST]:
    """What a statement sets or deletes."""
    if isinstance(node, ast.With):
        every = [each.optional_vars for each in node.items if each.optional_vars is not None]
    else:
        every = node.targets if hasattr(node, "targets") else [node.target]
    for each in every:
        names = (one for one in ast.walk(each) if isinstance(one, ast.Name | ast.Attribute))
        yield from (one for one in names if not isinstance(one.ctx, ast.Load))


def _target(node: ast.expr) -> str:
    return _name(node.value) if isinstance(node, ast.Subscript) else _name(node, any_use=True)


__all__ = ["Wanted", "inside", "is_changed", "line_of", "scope_of", "sending"]
