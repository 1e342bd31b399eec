"""Loops that work on nothing but their function's own variables: what such a loop does next follows from these alone.

Read from the text. Whatever may bring something from outside (a call of the program's own that is not as plain, a
queue, a file, the clock, a random number, an attribute, an iterator that goes on) makes a loop none of these.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import math
from collections.abc import Iterable, Iterator
from functools import lru_cache
from types import CodeType
from typing import NamedTuple

SMALL = 1000  # a number that is given to `range`
_STATEMENTS = (
    *(ast.While, ast.For, ast.If, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Try, ast.Return),
    *(ast.Break, ast.Continue, ast.Pass, ast.Raise, ast.Assert),
)
_EXPRESSIONS = (
    *(ast.Constant, ast.Name, ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Compare, ast.IfExp, ast.Subscript, ast.Slice),
    *(ast.Tuple, ast.List, ast.Dict, ast.Set, ast.JoinedStr, ast.FormattedValue, ast.Call, ast.Attribute),
    ast.NamedExpr,
)
_ENDS = (ast.Break, ast.Continue, ast.Return, ast.Raise)
_BUILTINS = frozenset(
    {
        *("abs", "bool", "chr", "dict", "divmod", "enumerate", "float", "frozenset", "int", "isinstance", "len"),
        *("list", "max", "min", "ord", "pow", "range", "repr", "reversed", "round", "set", "sorted", "str", "sum"),
        *("tuple", "zip"),
    }
)
_SEARCHES = frozenset({"match", "fullmatch", "search", "sub", "subn", "split", "findall"})
_MATCHES = frozenset({"group", "groups", "groupdict", "span", "start", "end"}) | _SEARCHES
_MAKERS = frozenset({"split", "rsplit", "splitlines", "findall", "sorted", "list", "dict", "set"})  # of new containers
_PLAIN = (str, bytes, list, tuple, dict, set, frozenset, int, float)
_METHODS = frozenset(name for kind in _PLAIN for name in dir(kind) if not name.startswith("_")) | _MATCHES
MODULES = {
    "re": _SEARCHES | {"escape", "compile"},
    "math": frozenset(name for name in dir(math) if not name.startswith("_")),
}


class Plan(NamedTuple):
    """What has to be seen of the variables of such a loop."""

    reads: frozenset[str]  # all names that it reads, without those of builtins
    carried: frozenset[str]  # that one turn, of it or of a loop in it, has from the one before
    gone_through: frozenset[str]  # that are read by `for` and in no other way
    ranges: frozenset[str]  # numbers that say how many turns a `for` has
    conditions: frozenset[str]  # in the conditions of a `while`
    fresh: frozenset[str]  # containers that each turn makes anew
    depth: int  # of the `for` in it
    functions: frozenset[str]  # that it calls, of the program: they have to be such as follow from what they are given


@lru_cache(maxsize=500)
def plan(loop: ast.While, code: CodeType) -> Plan | None:
    """None of a loop that may depend on anything but the names it reads."""
    shared = {*code.co_cellvars, *code.co_freevars}
    nodes = list(ast.walk(loop))
    names = [node for node in nodes if isinstance(node, ast.Name)]
    if not _is_plain_function(code) or not all(map(_is_known, nodes)) or shared & {each.id for each in names}:
        return None
    again = {id(node.target) for node in nodes if isinstance(node, ast.AugAssign)}  # a counter is read, too
    written = {each.id for each in names if not isinstance(each.ctx, ast.Load)}
    others = {id(node.func) for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    others |= set(map(id, _kinds(nodes)))
    reads = [each for each in names if (isinstance(each.ctx, ast.Load) or id(each) in again) and id(each) not in others]
    functions, own = set(_called(nodes)) - _PLAIN_ONES, set(code.co_varnames)
    if any(hasattr(builtins, each) for each in functions) or own & (called(loop) | (functions - _one_by_one(nodes))):
        return None
    if not written <= own or not reads or not _are_methods(nodes):
        return None
    iterables = [node.iter for node in nodes if isinstance(node, ast.For)]
    if not all(map(_is_bounded, iterables)):
        return None
    through = {id(each) for node in iterables if (each := _gone_through(node)) is not None}
    return Plan(
        frozenset(each.id for each in reads),
        frozenset(_carried(loop)),
        frozenset(each.id for each in reads) - {each.id for each in reads if id(each) not in through},
        frozenset(each.id for node in iterables for each in _names_in_ranges(node)),
        frozenset(name for node in nodes if isinstance(node, ast.While) for name in _loads(node.test)),
        frozenset(fresh(nodes)) - _carried(loop),
        _depth(loop),
        frozenset(functions),
    )


def is_plain(nodes: list[ast.AST], code: CodeType) -> bool:
    """Whether these parts of a function do nothing but what such a loop does, whatever functions they call."""
    own = any(name in code.co_varnames for name in _called(nodes))
    return _is_plain_function(code) and all(map(_is_known, nodes)) and _are_methods(nodes) and not own


def _is_plain_function(code: CodeType) -> bool:
    others = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
    return bool(code.co_flags & inspect.CO_OPTIMIZED) and not code.co_flags & others


def _is_known(node: ast.AST) -> bool:
    if isinstance(node, ast.stmt):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        return isinstance(node, _STATEMENTS) and not any(map(_is_outside, targets))
    if isinstance(node, ast.Call):
        plain = not any(isinstance(each, ast.Starred) for each in node.args)
        return plain and all(each.arg for each in node.keywords) and _is_pure(node.func)
    return not isinstance(node, ast.expr) or isinstance(node, _EXPRESSIONS)


def _is_outside(target: ast.expr | None) -> bool:
    """Whether it is more than names that are set: what is in a container may be others', too."""
    parts = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
    return any(each is not None and not isinstance(each, ast.Name) for each in parts)


def _is_pure(func: ast.expr) -> bool:
    if isinstance(func, ast.Name):
        return True  # which function that is has to be seen
    if not isinstance(func, ast.Attribute):
        return False
    if isinstance(func.value, ast.Name) and func.value.id in MODULES:
        return func.attr in MODULES[func.value.id]
    return func.attr in _METHODS


def _is_error(name: str) -> bool:
    kind = getattr(builtins, name, None)
    return isinstance(kind, type) and issubclass(kind, Exception)


_PLAIN_ONES = _BUILTINS | frozenset(filter(_is_error, dir(builtins)))


def _kinds(nodes: Iterable[ast.AST]) -> Iterator[ast.Name]:
    """Names that stand for classes: of an `except`, of `isinstance`."""
    for node in nodes:
        if isinstance(node, ast.ExceptHandler) and node.type is not None:
            yield from (each for each in ast.walk(node.type) if isinstance(each, ast.Name) and _is_error(each.id))
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Name) and _is_error(node.exc.id):
            yield node.exc
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            inner = (each for arg in node.args[1:] for each in ast.walk(arg))
            yield from (each for each in inner if isinstance(each, ast.Name) and each.id in _BUILTINS)


def _are_methods(nodes: Iterable[ast.AST]) -> bool:
    """Whether attributes are called, or are a module's."""
    every = list(nodes)
    methods = {id(node.func) for node in every if isinstance(node, ast.Call)}
    attributes = (node for node in every if isinstance(node, ast.Attribute) and id(node) not in methods)
    return all(isinstance(each.value, ast.Name) and each.value.id == "math" for each in attributes)


def is_builtin(name: str) -> bool:
    """Whether it stands for a function of Python's, or a class of errors, if it is no variable."""
    return name in _PLAIN_ONES


def _called(nodes: Iterable[ast.AST]) -> Iterator[str]:
    calls = (node.func for node in nodes if isinstance(node, ast.Call))
    return (each.id for each in calls if isinstance(each, ast.Name))


def _one_by_one(nodes: Iterable[ast.AST]) -> set[str]:
    """Variables that a `for` sets to the items of another one, and nothing else sets."""
    every = list(nodes)
    targets = [node.target for node in every if isinstance(node, ast.For) and isinstance(node.iter, ast.Name)]
    names = [each for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]
    stores = [node for node in every if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    return {each.id for each in names} - {each.id for each in stores if id(each) not in set(map(id, names))}


def called(loop: ast.While) -> frozenset[str]:
    """The builtins that it calls: none of them may be a global of the program."""
    return frozenset(name for name in _called(ast.walk(loop)) if is_builtin(name))


def _is_bounded(node: ast.expr) -> bool:
    """Whether a `for` goes through something whose size follows from that of the variables."""
    for each in ast.walk(node):
        if isinstance(each, ast.BinOp) and not isinstance(each.op, ast.Add | ast.Sub):
            return False
        if isinstance(each, ast.Constant) and type(each.value) is int and abs(each.value) > SMALL:
            return False
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr in ("ljust", "rjust"):
            return False
    return True


def _gone_through(node: ast.expr) -> ast.Name | None:
    """The variable whose items a `for` goes through: `rules`, `enumerate(rules)`, `rules.items()`."""
    while isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute):
            if node.func.attr not in ("items", "keys", "values"):
                return None
            node = node.func.value
        elif node.args and isinstance(node.func, ast.Name) and node.func.id in ("enumerate", "reversed", "sorted"):
            node = node.args[0]
        else:
            return None
    return node if isinstance(node, ast.Name) else None


def _names_in_ranges(node: ast.expr) -> Iterator[ast.Name]:
    for each in ast.walk(node):
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id == "range":
            yield from (name for arg in each.args for name in ast.walk(arg) if isinstance(name, ast.Name))


def fresh(nodes: Iterable[ast.AST]) -> set[str]:
    """Variables that are set to nothing but new containers."""
    every = list(nodes)
    stores = [each for each in every if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)]
    assigned = [node for node in every if isinstance(node, ast.Assign) and _makes(node.value)]
    makes = {id(node.targets[0]) for node in assigned if len(node.targets) == 1}
    return {each.id for each in stores} - {each.id for each in stores if id(each) not in makes}


def _makes(value: ast.expr) -> bool:
    func = value.func if isinstance(value, ast.Call) else None
    name = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
    return name in _MAKERS or isinstance(value, ast.List | ast.Dict | ast.Set)


def _depth(node: ast.AST) -> int:
    """How many `for` are within each other."""
    return isinstance(node, ast.For) + max(map(_depth, ast.iter_child_nodes(node)), default=0)


def _loads(node: ast.AST | None) -> set[str]:
    nodes = ast.walk(node) if node is not None else ()
    return {each.id for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)}


def _stores(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}


def _carried(loop: ast.While) -> set[str]:
    """Variables that a turn reads before it has set them, and that a turn sets: of this loop and of those in it."""
    found: set[str] = set()
    for node in ast.walk(loop):
        if isinstance(node, ast.While | ast.For):
            known = _stores(node.target) if isinstance(node, ast.For) else set()
            first = _loads(node.test) if isinstance(node, ast.While) else set()
            needs, _ = _flow(node.body, known)
            found |= (first | needs) & _stores(node)
    return found


def _flow(body: Iterable[ast.stmt], known: set[str]) -> tuple[set[str], set[str]]:
    """(what these read of before them, what is surely set after them)."""
    known, needs = set(known), set()
    for node in body:
        if isinstance(node, ast.If):
            needs |= _loads(node.test) - known
            parts = [(_flow(part, known), part) for part in (node.body, node.orelse)]
            needs |= {name for (inner, _), _ in parts for name in inner}
            stays = [after for (_, after), part in parts if not (part and isinstance(part[-1], _ENDS))]
            known = set.intersection(*stays) if stays else known
        elif isinstance(node, ast.While | ast.For):
            head = node.test if isinstance(node, ast.While) else node.iter
            own = _stores(node.target) if isinstance(node, ast.For) else set()
            needs |= (_loads(head) | _flow(node.body, known | own)[0] | _flow(node.orelse, known)[0]) - known
        elif isinstance(node, ast.Try):
            blocks = (node.body, *(each.body for each in node.handlers), node.orelse, node.finalbody)
            needs |= {name for block in blocks for name in _flow(block, known)[0]}
        else:
            again = {node.target.id} if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) else set()
            needs |= (_loads(node) | again) - known
            known |= _stores(node)
    return needs, known


__all__ = ["MODULES", "SMALL", "Plan", "called", "fresh", "is_builtin", "is_plain", "plan"]
