"""Files whose existence a loop's condition asks for: whether they are there, and since when.

A lock or a mark in a file outlives whoever made it, and only its age tells that nobody is left who would take it away.
"""

from __future__ import annotations

import ast
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from types import FrameType

from .expressions import known, look

_ASKS = frozenset({"exists", "lexists", "isfile", "isdir", "is_file", "is_dir"})


def said(expressions: Iterable[ast.AST], frame: FrameType) -> dict[str, str]:
    """By the text of the path: "there since 07:23:31", "not there".

    Asks the system what the loop asks it all the time; none of the program's code is run.
    """
    nodes = (node for each in expressions for node in ast.walk(each) if isinstance(node, ast.Call))
    found = ((ast.unparse(path), _path(look(path, frame))) for node in nodes for path in _asked(node))
    return {text: _age(path) for text, path in found if path}


def _asked(node: ast.Call) -> Iterator[ast.expr]:
    """`os.path.exists(path)`, `path.exists()`."""
    if ast.unparse(node.func).rpartition(".")[2] in _ASKS:
        if node.args:
            yield node.args[0]
        elif isinstance(node.func, ast.Attribute):
            yield node.func.value


def _path(value: object) -> str:
    if not known(value):
        return ""
    return str(value) if isinstance(value, PurePath) else value if type(value) is str else ""


def _age(path: str) -> str:
    try:
        changed = os.stat(path).st_mtime
    except (OSError, ValueError):
        return "not there"
    same_day = time.localtime(changed)[:3] == time.localtime()[:3]
    return "there since " + time.strftime("%H:%M:%S" if same_day else "%Y-%m-%d %H:%M:%S", time.localtime(changed))


__all__ = ["said"]
