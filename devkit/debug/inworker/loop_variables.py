"""Whether a variable is left over from a loop that has ended: `step` of a warm-up is no step of what comes after it."""

from __future__ import annotations

import ast
from types import FrameType

from .expressions import nodes_of, tree_of


def is_left_over(frame: FrameType, name: str) -> bool:
    """Whether only loops give the variable its values, of that function, and its line is in none of them.

    Read from the text; False where that says too little.
    """
    _, tree = tree_of(frame.f_code.co_filename)
    code = frame.f_code
    if tree is None or (code.co_name != "<module>" and name not in code.co_varnames[code.co_argcount :]):
        return False
    first, line = code.co_firstlineno, frame.f_lineno or 0
    last = max((number for *_, number in code.co_lines() if number), default=line)
    stores = [
        node
        for node in nodes_of(tree, ast.Name)
        if node.id == name and isinstance(node.ctx, ast.Store) and first <= node.lineno <= last
    ]
    every: tuple[ast.For | ast.AsyncFor, ...] = (*nodes_of(tree, ast.For), *nodes_of(tree, ast.AsyncFor))
    here = (loop for loop in every if first <= loop.lineno <= last)
    loops = [loop for loop in here if any(node in stores for node in ast.walk(loop.target))]
    targets = {id(node) for loop in loops for node in ast.walk(loop.target)}
    if not stores or any(id(node) not in targets for node in stores):
        return False
    return not any(loop.lineno <= line <= (loop.end_lineno or 0) for loop in loops)


__all__ = ["is_left_over"]
