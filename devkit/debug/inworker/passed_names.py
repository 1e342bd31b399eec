"""A driver's variable that is passed to a call, which fills or trains what it gets, and that is read afterwards.

By the driver's source: only where nothing else in it can have changed the variable, which is empty then, or untrained.
"""

from __future__ import annotations

import ast
from types import CodeType
from typing import Any, NamedTuple

from .lost_arguments import CONTAINER, MODULE, TENSOR
from .read_behind import inside, scope_of, sending

_EMPTY_CALLS = frozenset({"list", "dict", "set", "deque", "Counter", "OrderedDict"})
_EMPTY_TENSORS = frozenset({"zeros", "zeros_like", "empty", "empty_like"})
_READERS = frozenset(
    {"len", "print", "sum", "sorted", "list", "tuple", "set", "dict", "max", "min", "any", "all", "enumerate", "repr"}
    | {"str", "zip", "reversed", "float", "int"}
)
_WRITERS = frozenset({"dump", "dumps", "save", "mean", "stack", "cat", "array", "asarray", "tensor", "as_tensor"})
_LOOKS = frozenset({"items", "values", "keys", "get", "count", "index", "copy", "most_common"})
_TENSOR_LOOKS = frozenset(
    {"sum", "mean", "max", "min", "item", "tolist", "numpy", "std", "norm", "clone", "cpu", "float"}
)
_RUNS = frozenset({"generate", "forward", "predict", "act"})
_MODES = frozenset({"train", "eval", "to", "cuda", "cpu", "half", "float", "double", "bfloat16", "share_memory"})
# In a function, that it may change what it is given.
_CHANGING = frozenset(
    {"load_state_dict", "copy_", "data", "parameters", "named_parameters", "backward", "step", "load", "fit", "update"}
    | {"set_weights", "modules", "named_modules", "apply", "setattr", "__dict__", "vector_to_parameters", "optimize"}
)
_OTHER, _NEUTRAL, _READ = "", "neutral", "read"


class Passed(NamedTuple):
    """An argument as the worker has it."""

    kind: str
    position: int  # among those that are not given by name
    name: str  # of the parameter


class Found(NamedTuple):
    """The variable, and where it is read."""

    variable: str
    line: int


def read_later(tree: ast.Module, code: CodeType, line: int, called: str, passed: Passed) -> Found | None:
    """Where a variable that such a call at a line of a code gets is read behind it; None where it is not, or may be
    another by then.
    """
    scope = scope_of(tree, code)
    if scope is None:
        return None
    for call in inside(scope):
        if isinstance(call, ast.Call) and call.lineno <= line <= (call.end_lineno or 0) and _is_call_of(call, called):
            variable = _variable(call, passed)
            if variable and (found := _read(tree, scope, variable, call, passed.kind)):
                return Found(variable, found)
    return None


def _is_call_of(call: ast.Call, called: str) -> bool:
    """Whether it is `called.remote(...)`, or with options."""
    if not (isinstance(call.func, ast.Attribute) and call.func.attr == "remote"):
        return False
    name = called.rpartition(".")[2]
    return any(name in (getattr(each, "attr", ""), getattr(each, "id", "")) for each in ast.walk(call.func.value))


def _variable(call: ast.Call, passed: Passed) -> str:
    if any(isinstance(each, ast.Starred) for each in call.args) or any(each.arg is None for each in call.keywords):
        return ""
    given = [each.value for each in call.keywords if each.arg == passed.name]
    given += call.args[passed.position : passed.position + 1] if passed.position >= 0 else []
    return given[0].id if len(given) == 1 and isinstance(given[0], ast.Name) else ""


def _read(tree: ast.Module, scope: Any, variable: str, call: ast.Call, kind: str) -> int:
    """The first line behind a call that reads the variable; 0 where something else may change it."""
    nodes = list(inside(scope))
    parents = {id(part): each for each in nodes for part in ast.iter_child_nodes(each)}
    uses = [each for each in nodes if isinstance(each, ast.Name) and each.id == variable]
    everywhere = [each for each in ast.walk(tree if scope is tree else scope) if getattr(each, "id", "") == variable]
    stores = [each for each in uses if not isinstance(each.ctx, ast.Load)]
    is_shared = any(variable in each.names for each in ast.walk(tree) if isinstance(each, ast.Global | ast.Nonlocal))
    if len(everywhere) != len(uses) or len(stores) != 1 or is_shared or not _is_made(parents[id(stores[0])], kind):
        return 0
    sent = {id(part) for each in nodes for part in sending(each)}
    lines = []
    for each in uses:
        use = _NEUTRAL if each is stores[0] or id(each) in sent else _use(tree, each, parents, kind)
        if use == _OTHER:
            return 0
        if use == _READ and each.lineno > (call.end_lineno or call.lineno):
            lines.append(each.lineno)
    return min(lines, default=0) if stores[0].lineno < call.lineno else 0


def _is_made(node: ast.AST, kind: str) -> bool:
    """Whether a statement makes a variable of what is surely empty; of a model, by any call."""
    value = getattr(node, "value", None) if isinstance(node, ast.Assign | ast.AnnAssign) else None
    if isinstance(node, ast.Assign) and len(node.targets) != 1:
        return False
    if isinstance(value, ast.Call):
        name = getattr(value.func, "attr", getattr(value.func, "id", ""))
        if kind == MODULE:
            return True
        if kind == TENSOR:
            return name in _EMPTY_TENSORS
        return (name in _EMPTY_CALLS and not value.args and not value.keywords) or name == "defaultdict"
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):  # `[0] * 8`
        value = value.left
    if kind != CONTAINER or not isinstance(value, ast.List | ast.Dict):
        return False
    items = value.values if isinstance(value, ast.Dict) else value.elts
    return all(isinstance(each, ast.Constant) and not each.value for each in items)


def _use(tree: ast.Module, node: ast.Name, parents: dict[int, ast.AST], kind: str) -> str:
    parent = parents.get(id(node))
    if kind == MODULE:
        return _use_of_model(tree, node, parent, parents)
    if isinstance(parent, ast.Call) and node in parent.args:
        name = getattr(parent.func, "attr", getattr(parent.func, "id", ""))
        is_known = name in (_READERS if isinstance(parent.func, ast.Name) else _WRITERS)
        return _READ if is_known else _OTHER
    if isinstance(parent, ast.Attribute):
        return _READ if parent.attr in (_LOOKS if kind == CONTAINER else _TENSOR_LOOKS) else _OTHER
    if isinstance(parent, ast.Subscript):
        return _READ if isinstance(parent.ctx, ast.Load) and node is parent.value else _OTHER
    if isinstance(parent, ast.For | ast.comprehension):
        return _READ if node is parent.iter else _OTHER
    if isinstance(parent, ast.If | ast.While | ast.BoolOp | ast.UnaryOp | ast.Assert):
        return _NEUTRAL
    return _READ if isinstance(parent, ast.FormattedValue | ast.Return) else _OTHER


def _use_of_model(tree: ast.Module, node: ast.Name, parent: ast.AST | None, parents: dict[int, ast.AST]) -> str:
    if isinstance(parent, ast.Attribute):
        outer = parents.get(id(parent))
        if not (isinstance(outer, ast.Call) and outer.func is parent):
            return _OTHER
        if parent.attr == "state_dict":
            saving = parents.get(id(outer))
            return _READ if isinstance(saving, ast.Call) and getattr(saving.func, "attr", "") == "save" else _OTHER
        return _READ if parent.attr in _RUNS else _NEUTRAL if parent.attr in _MODES else _OTHER
    if not isinstance(parent, ast.Call):
        return _NEUTRAL if isinstance(parent, ast.FormattedValue) else _OTHER
    if parent.func is node:
        return _READ
    if isinstance(parent.func, ast.Attribute):
        return _READ if parent.func.attr == "save" else _OTHER
    name = getattr(parent.func, "id", "")
    return _NEUTRAL if name == "print" else _READ if name and _only_uses(tree, name) else _OTHER


def _only_uses(tree: ast.Module, name: str) -> bool:
    """Whether a function of this file only runs a model, as far as can be seen."""
    waiting = [name]
    seen: set[str] = set()
    functions = {each.name: each for each in tree.body if isinstance(each, ast.FunctionDef)}
    while waiting:
        function = functions.get(waiting.pop())
        if function is None or len(seen) > 10:  # another's: or too much to look at
            return False
        seen.add(function.name)
        for each in ast.walk(function):
            if getattr(each, "attr", getattr(each, "id", "")) in _CHANGING:
                return False
            if isinstance(each, ast.Attribute) and each.attr.endswith("_") and not each.attr.endswith("__"):
                return False
            if isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id in functions:
                waiting += [each.func.id] if each.func.id not in seen else []
    return bool(seen)


__all__ = ["Found", "Passed", "read_later"]
