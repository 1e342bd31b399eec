"""Which array of a failing line is read-only, whose memory it is, and what would help: copy it.

What comes out of Ray is a view of what Ray keeps. Read from the frames as they are; none of the program's code is run.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterable, Iterator
from types import CodeType, FrameType
from typing import Any

from .expressions import look, nodes_of, own_text, tree_of
from .lineage import Place
from .sources import is_users

# numpy's, and of what is compiled with Cython
_SAID = re.compile(r"(array|array to be \S+|destination|base) is read-only$|^cannot set WRITEABLE flag")
_RAYS = "such as ray.get gives, and tasks and actors get as arguments"
DEPTH = 8  # views of views
PLACES = 2  # where an attribute is assigned; more say nothing
_COPY = "`np.array(x)` or `x.copy()` makes one that can be written"
_FRESH = frozenset(
    {"arange", "array", "empty", "empty_like", "eye", "full", "full_like", "linspace", "ones", "ones_like", "zeros"}
    | {"zeros_like"}
)
_NEW = (ast.BinOp, ast.UnaryOp, ast.Constant, ast.List, ast.ListComp, ast.Dict, ast.Compare)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def said(error: BaseException, places: Iterable[Place]) -> Iterator[str]:
    """`self.mean` is a read-only view of an object of Ray's, ...; nothing of another error, or where none is seen."""
    array = getattr(sys.modules.get("numpy"), "ndarray", None)
    if array is None or type(error) is not ValueError or not _SAID.search(str(error)[:500]):
        return
    inner: list[tuple[str, Any]] = []  # of the library's own line
    for frame, line in places:
        found = list(_read_only(array, frame, line))
        if not is_users(frame.f_code.co_filename):
            inner = inner or [(f"{name} at {_short(frame.f_code.co_filename)}:{line}", each) for name, each in found]
            continue
        roots = {id(_owner(array, each)[0]) for _, each in inner}
        known = [each for each in found if not inner or id(_owner(array, each[1])[0]) in roots]
        for name, each in known or inner[:1]:
            yield f"{name} is {_what(array, each)}{_assigned(name, frame.f_code) if known else ''}; {_COPY}"
        return


# ---- whose it is


def _owner(array: Any, value: Any) -> tuple[Any, bool]:
    """What owns the memory in the end, and whether a view on the way there can be written."""
    is_writable = False
    for _ in range(DEPTH):
        base = array.base.__get__(value) if isinstance(value, array) else value.obj
        if base is None:
            break
        value = base
        if isinstance(value, array):
            is_writable = is_writable or bool(array.flags.__get__(value).writeable)
        elif type(value) is not memoryview:
            break
    return value, is_writable


def _what(array: Any, value: Any) -> str:
    owner, is_writable = _owner(array, value)
    kind = type(owner)
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    if name.startswith("ray."):
        return f"a read-only view of an object of Ray's, {_RAYS}"
    if is_writable:
        return "a read-only view of an array that can be written itself, as np.broadcast_to and np.diagonal give them"
    if isinstance(owner, array):
        return "an array that was made read-only, as setflags(write=False) does"
    if name.startswith("pyarrow."):
        return "a read-only view of Arrow's memory, as a batch of a Dataset or a to_numpy() without a copy may be"
    if name == "mmap.mmap":
        return "of a file that is mapped to be read only, as mode='r' does"
    if kind is bytes:
        return "a read-only view of bytes, as np.frombuffer gives it"
    return f"a read-only view of memory of {name}"


# ---- which it is


def _read_only(array: Any, frame: FrameType, line: int) -> Iterator[tuple[str, Any]]:
    """(name, array) of what a line was to write to, else of all that it names."""
    _, tree = tree_of(frame.f_code.co_filename)
    statements = _statements(tree, line) if tree is not None else []
    if any(isinstance(each, ast.Raise) for each in statements):  # an error of the program's own making
        return
    looks = (_targets, _outs, _owners, _named)
    for nodes in (look_at(each) for each in statements for look_at in looks):
        found: dict[str, Any] = {}
        for node in nodes:
            name, value = _array_of(array, node, frame)
            if name and not array.flags.__get__(value).writeable:
                found[name] = value
        if found:
            yield from found.items()
            return


def _statements(tree: ast.Module, line: int) -> list[ast.stmt]:
    """The innermost one there, of a block its head alone; several where they are on one line."""
    there = [each for each in nodes_of(tree, ast.stmt) if each.lineno <= line <= (each.end_lineno or each.lineno)]
    last = max((each.lineno for each in there), default=0)
    return [each for each in there if each.lineno == last]


def _expressions(statement: ast.stmt) -> Iterator[ast.AST]:
    for each in ast.iter_child_nodes(statement):
        if not isinstance(each, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from ast.walk(each)


def _targets(statement: ast.stmt) -> list[ast.AST]:
    """What is written into: a name by `+=`, never by `=`."""
    if isinstance(statement, ast.AugAssign):
        return [statement.target]
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    items = [each for target in targets for each in ast.walk(target) if isinstance(each, ast.Subscript)]
    return [each for each in items if isinstance(each.ctx, ast.Store)]  # and not `at` of `x[at[0]] = 1`


def _outs(statement: ast.stmt) -> list[ast.AST]:
    calls = (each for each in _expressions(statement) if isinstance(each, ast.Call))
    return [each.value for call in calls for each in call.keywords if each.arg == "out"]


def _owners(statement: ast.stmt) -> list[ast.AST]:
    """Of methods that are called: `x` of `x.sort()`."""
    calls = (each.func for each in _expressions(statement) if isinstance(each, ast.Call))
    return [each.value for each in calls if isinstance(each, ast.Attribute)]


def _named(statement: ast.stmt) -> list[ast.AST]:
    return [each for each in _expressions(statement) if isinstance(each, ast.Name | ast.Attribute | ast.Subscript)]


def _array_of(array: Any, node: ast.AST, frame: FrameType) -> tuple[str, Any]:
    """The array that an expression is, or a part of: `x` of `x.flat[0]`; ("", None) where there is none."""
    while isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
        value = look(node, frame)
        if isinstance(value, array):
            return f"`{own_text(node, frame.f_code.co_filename)}`", value
        if isinstance(node, ast.Name):
            break
        node = node.value
    return "", None


# ---- where it comes from


def _assigned(name: str, code: CodeType) -> str:
    """Where an attribute of `self` is assigned, but for what makes an array anew."""
    _, tree = tree_of(code.co_filename)
    parts = name.strip("`").split("[")[0].split(".")
    if tree is None or parts[0] != "self" or len(parts) != 2:
        return ""
    wanted, owner = ".".join(parts), code.co_qualname.rpartition(".")[0]
    lines = [(at, each) for at, each in assignments(tree, wanted, "") if each.rpartition(".")[0] == owner]
    base = os.path.basename(code.co_filename)
    places = " and ".join(f"{base}:{at} in {each}" for at, each in lines)
    return f" ({wanted} is assigned at {places})" if 0 < len(lines) <= PLACES else ""


def assignments(node: ast.AST, wanted: str, function: str) -> Iterator[tuple[int, str]]:
    """(line, function) of each place within the `function` that assigns an attribute, but for a new array or None."""
    for each in ast.iter_child_nodes(node):
        inner = f"{function}.{each.name}".lstrip(".") if isinstance(each, _FUNCTIONS) else function
        if isinstance(each, ast.Assign | ast.AnnAssign) and each.value is not None:
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            given = (pair for target in targets for pair in _pairs(target, each.value))
            if any(ast.unparse(one) == wanted and not _makes(value) for one, value in given):
                yield each.lineno, inner
        yield from assignments(each, wanted, inner)


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.Attribute, ast.expr]]:
    """Each attribute that is assigned, and what it is given: of `self.a, self.b = f()` that is the whole."""
    if isinstance(target, ast.Attribute):
        yield target, value
    elif isinstance(target, ast.Tuple | ast.List):
        values = value.elts if isinstance(value, ast.Tuple | ast.List) else []
        is_one_by_one = len(values) == len(target.elts)
        is_one_by_one = is_one_by_one and not any(isinstance(one, ast.Starred) for one in (*values, *target.elts))
        for at, each in enumerate(target.elts):
            yield from _pairs(each, values[at] if is_one_by_one else value)


def _makes(value: ast.expr) -> bool:
    """Whether it is a new array, or none: `np.zeros(8)`, `a - b`, `None`."""
    called = value.func if isinstance(value, ast.Call) else None
    owner = called.value if isinstance(called, ast.Attribute) else None
    is_numpys = isinstance(owner, ast.Name) and owner.id in ("np", "numpy")
    return isinstance(value, _NEW) or (is_numpys and called.attr in _FRESH)  # type: ignore[union-attr]


def _short(file: str) -> str:
    return file.replace(os.sep, "/").rpartition("-packages/")[2]


__all__ = ["assignments", "said"]
