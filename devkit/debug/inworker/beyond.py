"""Indices that lead nowhere: ids beyond an embedding's rows, targets beyond the classes, beyond a tensor or an array.

Read from the frames as they are, on the host alone: of a device, nothing can be read after such an error.
"""

from __future__ import annotations

import ast
import operator
import os
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import Any

from .expressions import is_at, items_at, known, look, nodes_of, own_text, tree_of
from .lineage import Place
from .sources import is_users

MOST = 1 << 24  # elements that are looked at
MODULES = 5000  # of a model that are looked through
_FUNCTIONAL = os.path.join("torch", "nn", "functional.py")
_MODULES = os.path.join("torch", "nn", "modules", "")
_LOOKUPS, _LOSSES = ("embedding", "embedding_bag"), ("cross_entropy", "nll_loss")
_ARRAYS = tuple(os.path.join(os.sep, each, "") for each in ("torch", "numpy"))
_OUT = re.compile(r"\bindex (-?\d+) is out of bounds for (?:dimension|axis) (\d+) with size (\d+)")
_TAKE = frozenset(
    {"gather", "take", "take_along_axis", "take_along_dim", "put", "put_along_axis", "scatter", "scatter_add"}
    | {"scatter_reduce", "index_add", "index_copy", "index_fill", "index_put", "index_reduce", "index_select"}
)  # functions that are given indices
_ONE_HOT = "Class values must be "
_SIZED = (list, tuple, str, bytes, range, deque)
_ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
}  # fmt: skip


def said(error: BaseException, places: Iterable[Place]) -> Iterator[str]:
    """One line for each of what is known of an index that was too large or too small."""
    there = list(places)
    if type(error) not in (IndexError, RuntimeError) or not there:
        return
    yield from _functional(there)
    own = next((each for each in there if not _is_an_array_librarys(each[0].f_code.co_filename)), None)
    if own is None or not is_users(own[0].f_code.co_filename):
        return  # a library's own list says little
    if found := _OUT.search(str(error)[:500]):
        index, dimension, size = map(int, found.groups())
        yield from _arrays(own, index, dimension, size, is_from_the_end=type(error) is IndexError)
    elif type(error) is RuntimeError and _ONE_HOT in str(error)[:500]:
        yield from _one_hot(own)
    elif type(error) is IndexError and own is there[0]:
        yield from _lists(own)


def _is_an_array_librarys(file: str) -> bool:
    return not is_users(file) and any(part in file for part in _ARRAYS)


# ---- what torch's own functions were given


def _functional(places: list[Place]) -> Iterator[str]:
    for at, (frame, _) in enumerate(places):
        name, values = frame.f_code.co_name, frame.f_locals
        if not frame.f_code.co_filename.endswith(_FUNCTIONAL) or name not in _LOOKUPS + _LOSSES:
            continue
        given, weight = values.get("input"), values.get("weight")
        if name in _LOOKUPS:
            ids, size, none = _ids(given), _size(weight, 0), "have no row"
            what = f"the embedding{_called(places[at + 1 :], weight)} has {size} rows, and its ids"
        else:
            ids, size, none = _ids(values.get("target"), values.get("ignore_index")), _classes(given), "have none"
            what = f"the input has {size} classes, and its targets"
        if ids is not None and size and (count := ids.outside(0, size)):
            yield f"{what} {ids.span}: {count} of {ids.count} {none}"
        return


def _classes(given: Any) -> int:
    return _size(given, 1) or _size(given, 0)


def _size(value: Any, dimension: int) -> int:
    """Of a tensor or an array; 0 of anything else, and of what has no such dimension."""
    shape: tuple[Any, ...] = tuple(value.shape) if isinstance(value, _kinds()) else ()
    return int(shape[dimension]) if len(shape) > dimension else 0


def _kinds() -> tuple[Any, ...]:
    named = (("torch", "Tensor"), ("numpy", "ndarray"))
    found = (getattr(sys.modules.get(module), name, None) for module, name in named)
    return tuple(each for each in found if isinstance(each, type))


@dataclass(frozen=True)
class Ids:
    """Whole numbers of a tensor or an array, in one dimension of numpy's."""

    values: Any

    @property
    def count(self) -> int:
        return int(self.values.size)

    @property
    def span(self) -> str:
        least, most = int(self.values.min()), int(self.values.max())
        return f"go from {least} to {most}" if least != most else f"are {'all ' * (self.count > 1)}{least}"

    def outside(self, least: int, end: int) -> int:
        """How many are not in [least, end)."""
        return int(((self.values < least) | (self.values >= end)).sum())

    def has(self, value: int) -> bool:
        return bool((self.values == value).any())


def _ids(value: Any, ignored: Any = None) -> Ids | None:
    """None of what is no array of whole numbers, empty, large or on a device. `ignored`: is no id, as of padding."""
    from .arrays import plain_tensor

    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if numpy is None:
        return None
    if torch is not None and isinstance(value, torch.Tensor):
        with torch.no_grad(), torch._C.DisableTorchFunction():
            plain, _ = plain_tensor(torch, value)
            value = plain.numpy() if plain is not None and plain.device.type == "cpu" and _is_whole(plain) else None
    if not isinstance(value, numpy.ndarray) or value.dtype.kind not in "iu" or not 0 < value.size <= MOST:
        return None
    flat = numpy.ndarray.view(value, numpy.ndarray).reshape(-1)
    flat = flat[flat != ignored] if type(ignored) is int else flat
    return Ids(flat) if flat.size else None


def _is_whole(tensor: Any) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex()


def _called(places: Iterable[Place], weight: Any) -> str:
    """The name of the module that has this weight, in the nearest line outside of torch's modules that leads to it."""
    for frame, line in places:
        if _MODULES in frame.f_code.co_filename:
            continue
        for name, value in _named(frame, line):
            if (way := _way_to(value, weight)) is not None:
                return f" `{name}{way}`"
        if is_users(frame.f_code.co_filename):
            break
    return ""


def _way_to(module: Any, weight: Any) -> str | None:
    """`.wpe`, `[0]`: from a torch module to the one below it that has the weight; rather an embedding than a head."""
    waiting, looked, other = deque([(module, "")]), 0, None
    while waiting and looked < MODULES:
        each, way = waiting.popleft()
        own = getattr(each, "__dict__", None)
        parameters, inner = (own.get(name) for name in ("_parameters", "_modules")) if isinstance(own, dict) else (0, 0)
        if not isinstance(parameters, dict) or not isinstance(inner, dict):
            continue
        looked += 1
        if any(kept is weight for kept in parameters.values()):
            if "mbedding" in type(each).__name__:
                return way
            other = way if other is None else other
        waiting += ((one, f"{way}[{name}]" if name.isdigit() else f"{way}.{name}") for name, one in inner.items())
    return other


# ---- a tensor or an array of the program's line


def _arrays(place: Place, index: int, dimension: int, size: int, is_from_the_end: bool) -> Iterator[str]:
    """`is_from_the_end`: whether negative indices count from there, as those of `gather` do not."""
    first = -size if is_from_the_end else 0
    found: dict[int, str] = {}
    for name, value, base in (*_by_items(place, dimension, size), *_by_calls(place, dimension, size)):
        ids = _ids(value)
        if ids is not None and ids.has(index) and (count := ids.outside(first, size)):
            where = f"dimension {dimension}{f' of `{base}`' if base else ''}, which has {size}"
            found[id(value)] = f"the indices in `{name}` {ids.span}: {count} of {ids.count} are outside {where}"
    single = list(_by_number(place, index, dimension, size))
    if len(found) + bool(single) == 1:  # of several, which it was is not known
        yield from found.values() or single[:1]


Index = tuple[str, Any, str]  # the name and the value of what may be one, and the name of what it is an index of


def _by_items(place: Place, dimension: int, size: int) -> Iterator[Index]:
    """Of `x[at]`, where `x` has that size, or is not known."""
    for node in items_at(*place):
        if (base := _base(node.value, place[0], dimension, size)) is not None:
            yield from ((name, value, base) for name, value in _looked(ast.walk(node.slice), place[0]))


def _by_number(place: Place, index: int, dimension: int, size: int) -> Iterator[str]:
    """Of `x[3]`, and of `x[0, at + 1]`."""
    for node in items_at(*place):
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        file = place[0].f_code.co_filename
        texts = [own_text(each, file) for each in parts if _number(each, place[0]) == index]
        if texts and _size(look(node.value, place[0]), dimension) == size:
            yield f"`{own_text(node.value, file)}` has {size} in dimension {dimension}, and `{texts[0]}` is {index}"


def _by_calls(place: Place, dimension: int, size: int) -> Iterator[Index]:
    """Of `x.gather(1, at)` and of `np.take(x, at)`."""
    _, tree = tree_of(place[0].f_code.co_filename)
    for call in nodes_of(tree, ast.Call) if tree else ():
        function, given = call.func, [*call.args, *(each.value for each in call.keywords)]
        if (
            not isinstance(function, ast.Attribute)
            or function.attr.rstrip("_") not in _TAKE
            or not is_at(call, place[1])
        ):
            continue
        is_of_module = isinstance(_name(function.value, place[0]), ModuleType)
        owner = given.pop(0) if is_of_module and given else function.value
        if (base := _base(owner, place[0], dimension, size)) is not None:
            nodes = (node for each in given for node in ast.walk(each))
            yield from ((name, value, base) for name, value in _looked(nodes, place[0]))


def _name(node: ast.expr, frame: FrameType) -> Any:
    return look(node, frame) if isinstance(node, ast.Name) else None


def _base(node: ast.expr, frame: FrameType, dimension: int, size: int) -> str | None:
    """The name of what has that size; empty: it is not known; None: it is something else."""
    value = look(node, frame)
    if not known(value):
        return ""
    return own_text(node, frame.f_code.co_filename) if _size(value, dimension) == size else None


def _named(frame: FrameType, line: int) -> Iterator[tuple[str, Any]]:
    """What the line's names, attributes and items stand for, each once."""
    _, tree = tree_of(frame.f_code.co_filename)
    nodes = nodes_of(tree, ast.Name, ast.Attribute, ast.Subscript) if tree else ()
    yield from _looked((node for node in nodes if is_at(node, line)), frame)


def _looked(nodes: Iterable[ast.AST], frame: FrameType) -> Iterator[tuple[str, Any]]:
    seen: set[str] = set()
    for node in (each for each in nodes if isinstance(each, ast.Name | ast.Attribute | ast.Subscript)):
        if (name := own_text(node, frame.f_code.co_filename)) not in seen:
            seen.add(name)
            value = look(node, frame)
            if known(value):
                yield name, value


def _one_hot(place: Place) -> Iterator[str]:
    _, tree = tree_of(place[0].f_code.co_filename)
    calls = [each for each in nodes_of(tree, ast.Call) if is_at(each, place[1])] if tree else []
    for call in calls:
        if not call.args or ast.unparse(call.func).rpartition(".")[2] != "one_hot":
            continue
        given = call.args[1:2] or [each.value for each in call.keywords if each.arg == "num_classes"]
        size = _number(given[0], place[0]) if given else None
        ids = _ids(look(call.args[0], place[0]))
        if ids is not None and size is not None and (count := ids.outside(0, size)):
            name = own_text(call.args[0], place[0].f_code.co_filename)
            yield f"the classes in `{name}` {ids.span}: {count} of {ids.count} are outside the {size} of num_classes"


# ---- a list of the program's line


def _lists(place: Place) -> Iterator[str]:
    for node in items_at(*place):
        owner, index = look(node.value, place[0]), _number(node.slice, place[0])
        if type(owner) in _SIZED and index is not None and not -len(owner) <= index < len(owner):
            what = f"{'character' if type(owner) is str else 'item'}{'s' * (len(owner) > 1)}"
            has = f"has {len(owner)} {what}" if len(owner) else "is empty"
            text = own_text(node.slice, place[0].f_code.co_filename)
            asked = f", and `{text}` is {index}" if text != str(index) else ""
            yield f"`{own_text(node.value, place[0].f_code.co_filename)}` {has}{asked}"


def _number(node: ast.expr, frame: FrameType) -> int | None:
    """A whole number: a name's, or a sum of them."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _number(node.operand, frame)
        return None if inner is None else -inner
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        left, right = _number(node.left, frame), _number(node.right, frame)
        return None if left is None or right is None else _ARITHMETIC[type(node.op)](left, right)
    value = look(node, frame)
    return value if type(value) is int else None


__all__ = ["said"]
