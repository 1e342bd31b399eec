"""The condition of a breakpoint, evaluated in a frame of the program."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

_OWN_SCOPE = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_COMPREHENSIONS = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})
_LOOKS_AROUND = {"locals", "vars", "dir", "globals", "eval", "exec", "super", "__class__"}  # at more than it names


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
        self._looks_around = not _LOOKS_AROUND.isdisjoint(self._names)

    def holds(self, frame: FrameType) -> bool:
        """Raises what the expression raises."""
        if self._looks_around:
            from .scopes import Scope

            names = Scope(frame)
            try:
                return bool(eval(self._code, names, names))
            finally:
                names.let_go()
        # One namespace that has what the expression names: a comprehension in it can't see the frame's locals.
        local: Mapping[str, Any] = frame.f_locals
        outer = frame.f_globals
        if frame.f_code.co_name in _COMPREHENSIONS:
            local = with_outer_names(frame)
        scope = {
            name: local[name] if name in local else outer[name]
            for name in self._names
            if name in local or name in outer
        }
        scope["__builtins__"] = outer.get("__builtins__", builtins)
        return bool(eval(self._code, scope))


def with_outer_names(frame: FrameType) -> Mapping[str, Any]:
    """The variables of a comprehension and of the function that it is in, whether it uses them itself or not."""
    names: dict[str, Any] = {}
    for each in _makers(frame):
        names = {**each.f_locals, **names}
    return names


def _makers(frame: FrameType | None) -> Iterator[FrameType]:
    """A comprehension's frame, and those of what is around it: these wait for it."""
    while frame is not None:
        yield frame
        if frame.f_code.co_name not in _COMPREHENSIONS:
            return
        outer = frame.f_back
        while outer is not None and not any(each is frame.f_code for each in outer.f_code.co_consts):
            outer = outer.f_back
        frame = outer


def parse_expression(text: str) -> ast.expr:
    return ast.parse(text.strip(), "<devkit>", "eval").body


def needs_helper(condition: ast.expr) -> bool:
    """Whether the condition can't stand in the function itself: it has scopes of its own, or looks at its."""
    return any(
        isinstance(node, _OWN_SCOPE) or (isinstance(node, ast.Name) and node.id in _LOOKS_AROUND)
        for node in ast.walk(condition)
    )


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
