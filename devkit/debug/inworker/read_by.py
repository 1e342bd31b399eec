"""What methods and properties in a condition read of their own object: `self.quota.left() <= 0` shows nothing itself.

From the names in their code, one level deep; nothing of it is run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from itertools import islice
from types import CodeType, FrameType, FunctionType
from typing import Any

from .expressions import known, look, told
from .redaction import REDACTED, redact
from .sources import is_users

MOST = 8  # values of one condition


def said(expressions: Iterable[ast.AST], frame: FrameType) -> dict[str, str]:
    """{"self.quota.used": "7"} of the attributes that the methods of the program's own classes read, in its order."""
    nodes = [node for each in expressions for node in ast.walk(each) if isinstance(node, ast.Attribute)]
    return dict(islice((found for node in nodes for found in _of(node, frame)), MOST))


def _of(node: ast.Attribute, frame: FrameType) -> Iterator[tuple[str, str]]:
    owner = look(node.value, frame)
    kept = getattr(owner, "__dict__", None) if known(owner) else None
    if type(kept) is not dict or node.attr in kept or (code := _code(owner, node.attr)) is None:
        return
    for name in code.co_names:
        if name in kept and (text := _told(name, kept[name])) is not None:
            yield f"{ast.unparse(node.value)}.{name}", text


def _code(owner: Any, name: str) -> CodeType | None:
    """Of a method or a property of a class of the program's own."""
    found = next((each.__dict__[name] for each in type(owner).__mro__ if name in each.__dict__), None)
    function = found.fget if isinstance(found, property) else found
    code = function.__code__ if type(function) is FunctionType else None
    return code if code is not None and is_users(code.co_filename) else None


def _told(name: str, value: Any) -> str | None:
    return REDACTED if redact(name, value) is not value else told(value)


__all__ = ["said"]
