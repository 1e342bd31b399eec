"""All of what a condition looks at, by which a change is told for certain; nothing where a part of it can't be seen.

What is shown of a value is cut: of a long text its beginning, of a list how many are in it. That two of these are equal
does not say that nothing has changed. Nothing of the program is run, and nothing is fetched from a device.
"""

from __future__ import annotations

import ast
import hashlib
import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

from .expressions import look

MOST = 1000  # items of a container
DEPTH = 3
_KEY = os.urandom(16)  # what is told of a secret is of no use to others
_PLAIN = (str, bytes, int, float, bool, type(None))
_SEQUENCES = (list, tuple, set, frozenset, deque)
_SIZED = (*_SEQUENCES, dict, str, bytes, bytearray, range)
_JOINING = (ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.Compare, ast.Tuple)
_EVENTS = frozenset({("threading", "Event"), ("asyncio.locks", "Event")})


def digest(expressions: Iterable[ast.expr], frame: FrameType) -> str:
    """The same as long as nothing that these look at changes; empty where not all of that can be seen.

    Numbers, flags, texts, containers of such, sizes. A property, a call, or an object of the program's own can't be.
    """
    try:
        parts = [_part(each, frame) for each in expressions]
    except (RuntimeError, RecursionError):  # changed by another thread meanwhile
        return ""
    if None in parts or not parts:
        return ""
    return hashlib.blake2s(repr(parts).encode(errors="replace"), key=_KEY, digest_size=8).hexdigest()


def text(value: Any, depth: int = DEPTH) -> str | None:
    """One that differs where the value does: of plain data, and of containers of that; None of anything else.

    >>> text([1, "a"]) == text([1, "a"]), text([1, "a"]) == text([1, "b"]), text(object()), text([object()])
    (True, False, None, None)
    >>> text("a" * 1000) == text("a" * 1001)
    False
    """
    kind = type(value)
    if kind in _PLAIN:
        if kind in (str, bytes):
            return f"{kind.__name__} {len(value)} {hash(value)}"
        return f"int {value.bit_length()} {hash(value)}" if kind is int else repr(value)
    if kind is dict or kind in _SEQUENCES:
        if not depth or len(value) > MOST:
            return None
        items = [item for pair in value.items() for item in pair] if kind is dict else list(value)
        inner = [text(each, depth - 1) for each in items]
        return None if None in inner else f"{kind.__name__} {inner}"
    return _number(value)


def _number(value: Any) -> str | None:
    """Of numpy's numbers, and of a tensor with a single one."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.number | numpy.bool_):
        return repr(value.item())
    if torch is not None and type(value) is torch.Tensor and value.device.type == "cpu":
        return repr(value.item()) if value.layout is torch.strided and value.numel() == 1 else None
    return None


def _part(node: ast.AST, frame: FrameType) -> str | None:
    if isinstance(node, _JOINING):
        inner = [_part(each, frame) for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr)]
        return None if None in inner else repr(inner)
    if isinstance(node, ast.Call):
        return _of_call(node, frame)
    if isinstance(node, ast.Name | ast.Attribute | ast.Subscript | ast.Constant):
        known = text(look(node, frame))
        if known is None and isinstance(node, ast.Subscript):  # a letter of a text
            inner = [_part(each, frame) for each in (node.value, node.slice)]
            return None if None in inner else repr(inner)
        return known
    return None


def _of_call(node: ast.Call, frame: FrameType) -> str | None:
    """`len(rows)`, `self.stop.is_set()`."""
    if isinstance(node.func, ast.Name) and node.func.id == "len" and len(node.args) == 1:
        value = look(node.args[0], frame)
        return str(len(value)) if type(value) in _SIZED else None
    if isinstance(node.func, ast.Attribute) and node.func.attr == "is_set" and not node.args:
        value = look(node.func.value, frame)
        known = (type(value).__module__, type(value).__name__) in _EVENTS
        return str(next(_flags(value), None)) if known else None
    return None


def _flags(event: Any) -> Iterator[bool]:
    return (bool(value) for name, value in vars(event).items() if name in ("_flag", "_value"))


__all__ = ["digest", "text"]
