"""What a coroutine of the program may come to, and where its task is made: by the text of its file, nothing is run."""

from __future__ import annotations

import ast
from types import CodeType
from typing import Any

from .expressions import nodes_of, tree_of

MOST = 200  # functions that are told
_MAKES = frozenset({"create_task", "ensure_future"})

Document = dict[str, Any]


def of(code: CodeType | None) -> Document | None:
    """{"file", "names"}: the functions of its file that it names, those that these name, and so on; itself too. By
    their last names, so that there may be too many. None where that is not known.
    """
    _, tree = tree_of(code.co_filename) if code is not None else (0, None)
    if code is None or tree is None:
        return None
    functions: dict[str, list[ast.AST]] = {}
    for each in nodes_of(tree, ast.FunctionDef):
        functions.setdefault(each.name, []).append(each)
    for other in nodes_of(tree, ast.AsyncFunctionDef):
        functions.setdefault(other.name, []).append(other)
    found, left = set[str](), [code.co_name]
    while left:
        name = left.pop()
        if name not in found and name in functions:
            found.add(name)
            left += [named for each in functions[name] for node in ast.walk(each) if (named := _named(node))]
    return {"file": code.co_filename, "names": sorted(found)} if 0 < len(found) <= MOST else None


def _named(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def made_at(code: CodeType) -> Document | None:
    """The only line of its file that makes a task of it: `asyncio.create_task(self.run())`."""
    _, tree = tree_of(code.co_filename)
    calls = nodes_of(tree, ast.Call) if tree is not None else ()
    made = [each.lineno for each in calls if _named(each.func) in _MAKES and each.args and _calls(each.args[0], code)]
    return {"file": code.co_filename, "line": made[0], "function": ""} if len(made) == 1 else None


def _calls(node: ast.AST, code: CodeType) -> bool:
    return isinstance(node, ast.Call) and _named(node.func) == code.co_name


__all__ = ["made_at", "of"]
