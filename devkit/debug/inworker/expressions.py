"""What names and attributes in a program's text stand for in one of its frames, without running any of its code."""

from __future__ import annotations

import ast
import linecache
import operator
import os
import re
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import islice
from types import FrameType, FunctionType, ModuleType
from typing import Any, TypeVar

LONGEST = 500_000  # characters of a file that is read for this
VALUE = 80  # characters of a value
ITEMS = 8  # of a container of plain data that is shown whole
KEYS, KEY = 2, 24  # of a dictionary that is not, and characters of one
FEW = 16  # numbers of an array that are looked at
MOST_KEPT = 50  # files
MOST_GROUPS, ODD = 10_000, 3  # of containers in a dictionary: that are counted, and that are named
_PLAIN = (str, int, float, bool, type(None))
_CONTAINERS = (list, tuple, dict, set, deque)
_COMPARES: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip
_ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.NotEq)
_SIZES = (ast.Name, ast.Attribute, ast.Constant, ast.Subscript, ast.BinOp, ast.operator, ast.expr_context)
_INLINED = (ast.ListComp, ast.SetComp, ast.DictComp)  # from Python 3.12 on; a generator has a frame of its own
INLINES = sys.version_info >= (3, 12)
_NONE = object()
_COLON = re.compile(r"[\s)]*:")
_LONG = ("#", '"""', "'''", "\\")
_INNER = re.compile(r"(?<=[(\[{]) | (?=[)\]}])|,(?= [)\]}])")  # of a long expression that takes several lines
_Node = TypeVar("_Node", bound=ast.AST)

_trees: dict[str, tuple[int, ast.Module | None]] = {}


def tree_of(filename: str) -> tuple[int, ast.Module | None]:
    """The syntax of a file, and its size, by which one that has changed is told; None of what can't be read."""
    is_there = filename in linecache.cache or filename.startswith("<") or os.path.isfile(filename)
    lines = linecache.getlines(filename) if is_there else []  # one of `python /dev/stdin` would be waited for
    size = sum(map(len, lines))
    kept = _trees.get(filename)
    if kept is None or kept[0] != size:
        try:
            tree = ast.parse("".join(lines)) if 0 < size <= LONGEST else None
        except (SyntaxError, ValueError, RecursionError, SystemError):  # the last one by a defect of Python 3.11
            tree = None
        if len(_trees) >= MOST_KEPT:
            _trees.clear()
        kept = _trees[filename] = (size, tree)
    return kept


def own_text(node: ast.AST, filename: str) -> str:
    """An expression or a statement as it stands in its file; of a block its head.

    One of several lines is put into one, as Python writes it where there is a comment or a long text in it.
    """
    last = _end_of_head(node)
    is_block = last is not node
    line, column = getattr(node, "lineno", 0), getattr(node, "col_offset", 0)
    end, end_column = getattr(last, "end_lineno", 0), getattr(last, "end_col_offset", 0)
    lines = [each.rstrip("\r\n").encode() for each in linecache.getlines(filename)[line - 1 : end]] if line else []
    if len(lines) != end - line + 1 or (not is_block and isinstance(node, ast.stmt) and hasattr(node, "body")):
        return ast.unparse(node)  # the file has changed, or it is a `try`, which has no head
    colon = _COLON.match(lines[-1][end_column:].decode("utf-8", "replace")) if is_block else None
    lines[-1] = lines[-1][:end_column]  # the columns are those of bytes
    lines[0] = lines[0][column:]
    text = " ".join(each.decode("utf-8", "replace").strip() for each in lines)
    if (is_block and colon is None) or (len(lines) > 1 and any(each in text for each in _LONG)):
        return ast.unparse(node)
    return (_INNER.sub("", text) if len(lines) > 1 else text) + (colon[0] if colon else "")


def _end_of_head(node: ast.AST) -> Any:
    """What a block's head ends with; anything else is its own end."""
    if isinstance(node, ast.With | ast.AsyncWith):
        return node.items[-1].optional_vars or node.items[-1].context_expr
    for name in ("iter", "test", "subject"):
        if isinstance(node, ast.stmt) and not isinstance(node, ast.Assert) and hasattr(node, name):
            return getattr(node, name)
    return node


def nodes_of(tree: ast.Module, *kinds: type[_Node]) -> tuple[_Node, ...]:
    """All of these kinds, in the order of `ast.walk`. A file is walked through once, and not at each look at it."""
    return _nodes_of(tree, kinds)


def tries_of(tree: ast.Module) -> tuple[ast.Try | ast.TryStar, ...]:
    """All `try` statements of it."""
    return (*nodes_of(tree, ast.Try), *nodes_of(tree, ast.TryStar))


@lru_cache(maxsize=8 * MOST_KEPT)
def _nodes_of(tree: ast.Module, kinds: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(node for node in ast.walk(tree) if isinstance(node, kinds))


def values(expressions: Iterable[ast.AST], frame: FrameType, most: int) -> Iterator[tuple[str, str]]:
    """(text, value) of the names, attributes and items that are looked at; of what is called, of its owner only."""
    nodes = [node for each in expressions for node in ast.walk(each)]
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    others = _others_variables(nodes, frame)
    seen: set[str] = set()
    for node in nodes:
        if not isinstance(node, ast.Name | ast.Attribute | ast.Subscript) or id(node) in called or len(seen) >= most:
            continue
        if others and any(isinstance(each, ast.Name) and each.id in others for each in ast.walk(node)):
            continue
        name = ast.unparse(node)
        value = None if name in seen else _said(node, frame)
        if value is not None:
            seen.add(name)
            yield name, value


def _others_variables(nodes: Iterable[ast.AST], frame: FrameType) -> frozenset[str]:
    """The variables of comprehensions that are over, or not begun: what a frame has by their names is another's.

    A frame is in one while it is at something inside of it; at the whole of it, one with a frame of its own runs.
    """
    loops = [node for node in nodes if isinstance(node, (*_INLINED, ast.GeneratorExp))]
    if not loops or frame.f_lasti < 0:
        return frozenset()
    line, end, column, end_column = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), (None,) * 4)
    if line is None or end is None or column is None or end_column is None:
        return frozenset()
    at = ((line, column), (end, end_column))
    over: set[str] = set()
    own: set[str] = set()
    for loop in loops:
        whole = ((loop.lineno, loop.col_offset), (loop.end_lineno or 0, loop.end_col_offset or 0))
        inside = whole[0] <= at[0] and at[1] <= whole[1] and at != whole
        targets = [name for each in loop.generators for name in ast.walk(each.target)]
        (own if inside else over).update(name.id for name in targets if isinstance(name, ast.Name))
    return frozenset(over - own)


def counts(test: ast.expr) -> bool:
    """Whether a loop's condition compares numbers or sizes: then it is for something that comes to an end.

    >>> def said(text): return counts(ast.parse(text, mode="eval").body)
    >>> said("len(kept) < self.size"), said("step != total - 1"), said("at < len(text) and text[at] != '}'")
    (True, True, True)
    >>> said("self.running"), said("time.time() < end"), said("a < b and not c")
    (False, False, False)
    """
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
    return all(map(_compares_sizes, parts))


def _compares_sizes(test: ast.expr) -> bool:
    if not isinstance(test, ast.Compare) or len(test.ops) > 1 or not isinstance(test.ops[0], _ORDERS):
        return False
    return all(map(_is_size, (test.left, test.comparators[0])))


def _is_size(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        is_len = isinstance(node.func, ast.Name) and node.func.id == "len" and len(node.args) == 1
        return is_len and _is_size(node.args[0])
    return all(isinstance(each, _SIZES) for each in ast.walk(node))


def holds(test: ast.expr, frame: FrameType) -> bool | None:
    """Whether a condition holds now, of numbers, flags and sizes; None of what only the program's code can tell."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        known = holds(test.operand, frame)
        return None if known is None else not known
    if isinstance(test, ast.BoolOp):
        parts = [holds(each, frame) for each in test.values]
        decides = isinstance(test.op, ast.Or)
        return decides if decides in parts else None if None in parts else not decides
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and type(test.ops[0]) in _COMPARES:
        left, right = (_number(each, frame) for each in (test.left, test.comparators[0]))
        return None if left is None or right is None else bool(_COMPARES[type(test.ops[0])](left, right))
    value = _number(test, frame)
    return None if value is None else bool(value)


def _number(node: ast.expr, frame: FrameType) -> float | None:
    """A number, a flag, or how many there are of something, where that is `len` or a condition by itself."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len" and len(node.args) == 1:
        value = look(node.args[0], frame)
        return len(value) if type(value) in _CONTAINERS else None
    value = look(node, frame)
    return value if type(value) in (int, float, bool) else None


def short(text: str, most: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 3]}..."


def _said(node: ast.expr, frame: FrameType) -> str | None:
    from .redaction import REDACTED, redact

    value = look(node, frame)
    if value is _NONE:
        return None
    name = node.attr if isinstance(node, ast.Attribute) else ast.unparse(node)
    if redact(name, value) is not value:
        return REDACTED
    return told(value)


def told(value: Any) -> str | None:
    """Plain data as it is, of containers how much is in them and the first of it, of a dictionary the first keys, as it
    may be asked for others; arrays by their shape; None for what says nothing.

    >>> told(3), told([1, 2]), told({}), told([[1]] * 9), told(sys), told(told)
    ('3', '[1, 2]', '{}', 'list of 9: [[1], [1], ...]', None, None)
    >>> told(deque([1, 2])), told(deque(range(9)))
    ('deque([1, 2])', 'deque of 9: [0, 1, ..., 8]')
    >>> from pathlib import PurePosixPath
    >>> told(PurePosixPath("/tmp/run"))
    "PurePosixPath('/tmp/run')"
    >>> told({str(number): {} for number in range(9)}), told({1: None, 2: [3]}), told({(1, 2): []})
    ("dict of 9 with keys '0', '1', ...: 0 items in each", 'dict of 2 with keys 1, 2', 'dict of 1')
    >>> told({10: [1, 2], 11: [3], 12: [4, 5]})
    'dict of 3 with keys 10, 11, ...: 2 items in each, but 1 in 11'
    >>> told({"a": [1] * 9, "b": []})
    "dict of 2 with keys 'a', 'b': 0 to 9 items in each"
    """
    from .shortly import short as shortly

    if type(value) in _PLAIN:
        return short(repr(_open(value)), VALUE)
    if type(value) in _CONTAINERS:
        size = f"{type(value).__name__} of {len(value)}"
        try:
            return _plainly(value) or f"{size}{_keys(value)}{_begins(value)}"
        except RuntimeError:  # another thread has changed it meanwhile
            return size
    if isinstance(value, ModuleType | FunctionType | type):
        return None
    if type(value).__module__.partition(".")[0] == "pathlib":
        return f"{type(value).__name__}({short(repr(_open(str(value))), VALUE)})"
    try:
        line = _array(value) or shortly(value) or ""
    except Exception:  # noqa: BLE001 - an object of somebody's own make that looks like one of those
        return None
    return line if " " in line else None  # its class alone says nothing that the program does not


def _open(value: Any) -> Any:
    """Plain data; of a text the beginning, without what is secret in it."""
    from .redaction import scrub_start

    return scrub_start(value, VALUE + 1) if type(value) is str else value  # one more: a longer one ends with dots


def _plainly(value: Any) -> str | None:
    """A small container of plain data, as it is, if nothing in it is secret and it is short."""
    from .redaction import hidden_items, hidden_pairs, scrub

    if len(value) > ITEMS:
        return None
    items = [*value, *value.values()] if type(value) is dict else list(value)
    if any(type(each) not in _PLAIN or (type(each) is str and len(each) > VALUE) for each in items):
        return None
    hidden = hidden_pairs(list(value.items())) if type(value) is dict else hidden_items(items, len(items))
    text = repr(value)
    return text if not hidden and len(text) <= VALUE and scrub(text) == text else None


def _begins(value: Any) -> str:
    from .first_items import first_items

    text = first_items(value, len(value)) if type(value) is not dict else ""
    return f": {text}" if text else ""


def _keys(value: Any) -> str:
    """The first ones of a dictionary."""
    first = list(islice(value, KEYS)) if type(value) is dict else []
    if not first or any(type(each) not in _PLAIN for each in first):
        return ""
    more = ", ..." if len(value) > KEYS else ""
    keys = ", ".join(short(repr(_open(each)), KEY) for each in first)
    return f" with key{'s' * (len(value) > 1)} {keys}{more}{_sizes(value)}"


def _sizes(groups: dict[Any, Any]) -> str:
    """How many there are in each of several containers, and in which one there are fewer or more than usual."""
    # Other threads may change it: a copy is made in one step, a list of pairs is not.
    every = list(groups.copy().items()) if 1 < len(groups) <= MOST_GROUPS else []
    if not every or any(type(each) not in _CONTAINERS for _, each in every):
        return ""
    known = [(key, len(each)) for key, each in every]
    sizes = Counter(size for _, size in known)
    [(usual, count), *_] = sizes.most_common(1)
    odd = [(key, size) for key, size in known if size != usual]
    if not odd:
        return f": {usual} item{'s' * (usual != 1)} in each"
    if count <= 1 or len(odd) > ODD or any(type(key) not in _PLAIN for key, _ in odd):
        return f": {min(sizes)} to {max(sizes)} items in each"
    others = ", ".join(f"{size} in {short(repr(_open(key)), KEY)}" for key, size in odd)
    return f": {usual} item{'s' * (usual != 1)} in each, but {others}"


def _array(value: Any) -> str | None:
    """A tensor or an array of numpy: its shape and type; one with a single number, that."""
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    array = getattr(sys.modules.get("numpy"), "ndarray", None)
    if tensor is not None and type(value) is tensor:
        device = value.device.type
        one = device == "cpu" and value.layout is sys.modules["torch"].strided and value.numel() == 1
        kind = str(value.dtype).removeprefix("torch.")
        where = "" if device == "cpu" else f" on {value.device}"
        few = _alike(value) if device == "cpu" and value.layout is sys.modules["torch"].strided else ""
        return f"tensor {value.item():.6g}" if one else f"tensor {list(value.shape)} {kind}{where}{few}"
    if array is not None and type(value) is array:
        return f"array {list(value.shape)} {value.dtype}{_alike(value)}"
    return None


def _alike(value: Any) -> str:
    """Of a small array all of whose numbers are equal, that one."""
    if len(value.shape) != 1 or not 1 < value.shape[0] <= FEW:
        return ""
    numbers = value.tolist()
    plain = all(type(each) in (int, float, bool) for each in numbers)
    return f", each {numbers[0]:.6g}" if plain and len({str(each) for each in numbers}) == 1 else ""


def items_at(frame: FrameType, line: int) -> Iterator[ast.Subscript]:
    """The items, as `rows[at]`, that a line of a frame's file asks for, but for those by a variable of a comprehension.

    From Python 3.12 on such a variable is gone by then, and another one of the frame may have its name.
    """
    _, tree = tree_of(frame.f_code.co_filename)
    there = [node for node in nodes_of(tree, ast.Subscript) if is_at(node, line)] if tree else []
    loops = [node for node in nodes_of(tree, *_INLINED) if is_at(node, line)] if there and tree else []
    is_its_own = frame.f_code.co_name.startswith("<") and frame.f_code.co_name != "<module>"
    for node in there:
        if is_its_own or not any(_varies(node, loop) for loop in loops):
            yield node


def comprehensions_at(frame: FrameType, line: int) -> list[Any]:
    """The comprehensions and generators of a line of a frame's file."""
    _, tree = tree_of(frame.f_code.co_filename)
    return [node for node in nodes_of(tree, *_INLINED, ast.GeneratorExp) if is_at(node, line)] if tree else []


def given_back(frame: FrameType, line: int) -> frozenset[str]:
    """The variables of comprehensions at the line at which an error left a frame: from Python 3.12 on, they have again
    what variables of the same names had outside of them.
    """
    if not INLINES or (frame.f_code.co_name.startswith("<") and frame.f_code.co_name != "<module>"):
        return frozenset()
    _, tree = tree_of(frame.f_code.co_filename)
    loops: list[Any] = [node for node in nodes_of(tree, *_INLINED) if is_at(node, line)] if tree else []
    targets = (each.target for loop in loops for each in loop.generators)
    return frozenset(name.id for each in targets for name in ast.walk(each) if isinstance(name, ast.Name))


def is_at(node: ast.expr, line: int) -> bool:
    """Whether a line is one of an expression's."""
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _varies(node: ast.Subscript, loop: Any) -> bool:
    """Whether an item is one of a comprehension, and by its variables."""
    targets = [name.id for each in loop.generators for name in ast.walk(each.target) if isinstance(name, ast.Name)]
    named = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
    return not named.isdisjoint(targets) and any(each is node for each in ast.walk(loop))


def look(node: ast.expr, frame: FrameType) -> Any:
    """The value of a name, of an attribute of an object itself or of its class, of an item; `_NONE` where none is."""
    if isinstance(node, ast.Name):
        return next((names[node.id] for names in (frame.f_locals, frame.f_globals) if node.id in names), _NONE)
    if isinstance(node, ast.Attribute):
        return _attribute(look(node.value, frame), node.attr)
    if isinstance(node, ast.Subscript):
        return _item(look(node.value, frame), look(node.slice, frame))
    return node.value if isinstance(node, ast.Constant) else _NONE


def known(value: Any) -> bool:
    """Whether `look` has found something."""
    return value is not _NONE


def _attribute(owner: Any, name: str) -> Any:
    if owner is _NONE or isinstance(owner, type | ModuleType):
        return _NONE
    own = getattr(owner, "__dict__", None)
    if isinstance(own, dict) and name in own:
        return own[name]
    kept = next((each.__dict__[name] for each in type(owner).__mro__ if name in each.__dict__), _NONE)
    return kept if type(kept) in _PLAIN else _NONE  # a constant of its class; not what computes


def _item(owner: Any, key: Any) -> Any:
    if type(owner) is dict and type(key) in _PLAIN:
        return owner.get(key, _NONE)
    if type(owner) in (list, tuple) and type(key) is int and -len(owner) <= key < len(owner):
        return owner[key]
    return _NONE


__all__ = [
    *("comprehensions_at", "counts", "given_back", "holds", "is_at", "items_at", "look", "nodes_of", "own_text"),
    *("short", "told", "tree_of", "tries_of", "values"),
]
