"""The condition of a breakpoint, evaluated in a frame of the program."""

from __future__ import annotations

import ast
import builtins
from types import FrameType

_OWN_SCOPE = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class Condition:
    """Evaluates as if the expression stood in the frame's function, private names of a class included.

    >>> import sys
    >>> limit = 3
    >>> Condition("all(n < limit for n in range(2))").holds(sys._getframe())
    True
    """

    def __init__(self, text: str, class_name: str = "") -> None:
        tree = ast.parse(text.strip() or "True", "<devkit>", "eval")
        mangle(tree, class_name)
        self._code = compile(tree, "<devkit>", "eval", dont_inherit=True)
        self._names = tuple({node.id for node in ast.walk(tree) if isinstance(node, ast.Name)})

    def holds(self, frame: FrameType) -> bool:
        """Raises what the expression raises."""
        # One namespace that has what the expression names: a comprehension in it can't see the frame's locals.
        local, outer = frame.f_locals, frame.f_globals
        scope = {
            name: local[name] if name in local else outer[name]
            for name in self._names
            if name in local or name in outer
        }
        scope["__builtins__"] = outer.get("__builtins__", builtins)
        return bool(eval(self._code, scope))


def parse_expression(text: str) -> ast.expr:
    return ast.parse(text.strip(), "<devkit>", "eval").body


def needs_helper(condition: ast.expr) -> bool:
    """Whether the condition can't stand in the function itself, since it has scopes of its own."""
    return any(isinstance(node, _OWN_SCOPE) for node in ast.walk(condition))


def mangle(tree: ast.AST, class_name: str) -> None:
    """Private names as the compiler writes them inside `class_name`."""
    prefix = f"_{class_name.lstrip('_')}"
    if prefix == "_":
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and _is_private(node.id):
            node.id = prefix + node.id
        elif isinstance(node, ast.Attribute) and _is_private(node.attr):
            node.attr = prefix + node.attr


def _is_private(name: str) -> bool:
    return name.startswith("__") and not name.endswith("__")
