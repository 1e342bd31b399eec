"""Exceptions that a `finally` drops: where one ends by `return`, `break` or `continue`, what was raised is gone.

What is seen then is what fails later, for want of what was to be made. Only the text of the program tells of it.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType

from .expressions import nodes_of, tree_of, tries_of
from .lineage import places_of
from .sources import is_users

FRAMES = 5  # of the user's, the innermost ones
STEPS = 3  # from a function of a frame to one that it calls, and so on
MOST = 3  # that are told of
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


@dataclass(frozen=True)
class Leaving:
    """A `finally` that drops what was raised."""

    function: str
    line: int
    word: str  # return, break, continue


def said(errors: Iterable[BaseException]) -> list[str]:
    """One line for each such `finally` of what the failing frames call, in the files that they are of."""
    codes = [frame.f_code for error in errors for frame, _ in places_of(error.__traceback__)]
    users = [code for code in dict.fromkeys(codes) if is_users(code.co_filename)][:FRAMES]
    lines = []
    for file in dict.fromkeys(code.co_filename for code in users):
        _, tree = tree_of(file)
        names = {name for code in users for name in (code.co_name, *_names(code))}
        for each in leavings(tree, names) if tree else ():
            where = f"{os.path.basename(file)}:{each.line}"
            lines.append(f"{each.function} has a `{each.word}` in a `finally`, at {where}, which drops what is raised")
    return lines[:MOST]


def leavings(tree: ast.Module, names: set[str]) -> list[Leaving]:
    """Those in functions of these names, and in what they call in the same file.

    >>> text = "def load():\\n  try:\\n    read()\\n  finally:\\n    return 1\\ndef run():\\n  load()\\n"
    >>> leavings(ast.parse(text), {"run"})
    [Leaving(function='load', line=5, word='return')]
    >>> leavings(ast.parse(text), {"read"})
    []
    """
    functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = [
        *nodes_of(tree, ast.FunctionDef),
        *nodes_of(tree, ast.AsyncFunctionDef),
    ]
    dropping = [(each, found) for each in functions if (found := list(_dropping(each)))] if _finally(tree) else []
    if not dropping:  # nearly always: who calls what need not be known
        return []
    reached = set(names)
    for _ in range(STEPS):
        called = (name for each in functions if each.name in reached for name in _called(each))
        reached |= set(called)
    return [
        Leaving(each.name, node.lineno, _word(node))
        for each, found in dropping
        if each.name in reached
        for node in found
    ]


def _finally(tree: ast.Module) -> bool:
    return any(node.finalbody for node in tries_of(tree))


def _called(function: ast.AST) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    yield from (name for each in code.co_consts if isinstance(each, CodeType) for name in _names(each))


def _dropping(function: ast.AST) -> Iterator[ast.stmt]:
    for node in _own(function):
        if isinstance(node, ast.Try | ast.TryStar):
            yield from _leaving(node.finalbody, in_loop=False)


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """What is in a function, and not in one within it."""
    for each in ast.iter_child_nodes(node):
        if not isinstance(each, _FUNCTIONS):
            yield each
            yield from _own(each)


def _leaving(block: Sequence[ast.AST], *, in_loop: bool) -> Iterator[ast.stmt]:
    """What leaves the block: `break` and `continue` of a loop within it do not."""
    for node in block:
        if isinstance(node, ast.Return) or (isinstance(node, ast.Break | ast.Continue) and not in_loop):
            yield node
        elif not isinstance(node, _FUNCTIONS):
            yield from _leaving(list(ast.iter_child_nodes(node)), in_loop=in_loop or isinstance(node, _LOOPS))


def _word(node: ast.stmt) -> str:
    return type(node).__name__.lower()


__all__ = ["Leaving", "leavings", "said"]
