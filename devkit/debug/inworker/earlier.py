"""Variables of a loop's earlier round: what the failing line has not come to set in this one is shown all the same.

for batch in batches:
    scores = score(batch)  # fails in round 3
    loss = train(scores)  # of round 2
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator
from types import CodeType

from .changed import blocks_after
from .expressions import nodes_of, tree_of
from .lineage import places_of
from .sources import is_users

NAMES = 5  # that are told
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_OTHERS = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)  # with variables of their own

Store = tuple[str, int]  # a name, and the line at which it is set


def said(error: BaseException) -> list[str]:
    """One line, of the program's innermost frame."""
    place = next((each for each in places_of(error.__traceback__) if is_users(each[0].f_code.co_filename)), None)
    if place is None:
        return []
    frame, line = place
    _, tree = tree_of(frame.f_code.co_filename)
    known = frame.f_locals
    found = [name for name in names(tree, frame.f_code, line) if name in known] if tree is not None else []
    if not found:
        return []
    more = f" and {len(found) - NAMES} more" if len(found) > NAMES else ""
    are = "are" if len(found) > 1 else "is"
    at = f"{os.path.basename(frame.f_code.co_filename)}:{line}"
    return [f"{', '.join(found[:NAMES])}{more} {are} of an earlier round of the loop: set at {at} or below it"]


def names(tree: ast.Module, code: CodeType, line: int) -> list[str]:
    """Those that nothing sets but this line or one below it, in a loop around it.

    What a handler or a `finally` sets that has run since is not among them.
    """
    scope = _scope(tree, code, line)
    if scope is None:
        return []
    loops = [each for each in _within(scope) if isinstance(each, _LOOPS) and _holds(each.body, line)]
    statement = _statement(scope, line)
    if not loops or statement is None:
        return []
    kept: tuple[ast.Global | ast.Nonlocal, ...] = (*nodes_of(tree, ast.Global), *nodes_of(tree, ast.Nonlocal))
    shared = {name for each in kept for name in each.names}
    since = {name for block in blocks_after(tree, line) for each in block for name, _ in _stores(each)}
    own = {name for name, _ in _targets(statement)}
    end = max(each.body[-1].end_lineno or 0 for each in loops)
    after = _end(statement, line)
    stores = [(name, at) for name, at in _stores(scope) if at <= end]
    before = {name for name, at in stores if at <= after} - own
    before |= {name for name, at in stores if name in own and at < statement.lineno}
    later = dict.fromkeys(name for name, at in stores if at > after or name in own)
    if "*" in before:  # whatever a module has
        return []
    return [name for name in later if name not in before | shared | since | _given(scope)]


def _given(scope: ast.AST) -> set[str]:
    if not isinstance(scope, _FUNCTIONS):
        return set()
    given = scope.args
    every = (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg)
    return {each.arg for each in every if each is not None}


def _scope(tree: ast.Module, code: CodeType, line: int) -> ast.AST | None:
    """The function, or the module, whose code that is."""
    if code.co_name == "<module>":
        return tree
    every: tuple[ast.FunctionDef | ast.AsyncFunctionDef, ...]
    every = (*nodes_of(tree, ast.FunctionDef), *nodes_of(tree, ast.AsyncFunctionDef))
    inside = (each for each in every if each.lineno <= line <= (each.end_lineno or 0))
    last = max(inside, key=lambda each: each.lineno, default=None)
    return last if last is not None and last.name == code.co_name else None


def _within(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes of a scope, without those of functions, classes and comprehensions in it."""
    for each in ast.iter_child_nodes(node):
        yield each
        if not isinstance(each, (*_FUNCTIONS, *_OTHERS, ast.ClassDef)):
            yield from _within(each)


def _stores(node: ast.AST) -> Iterator[Store]:
    for each in (node, *_within(node)):
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            yield each.id, each.lineno
        elif isinstance(each, (*_FUNCTIONS, ast.ClassDef)) and each is not node:
            yield each.name, each.lineno
        elif isinstance(each, ast.Import | ast.ImportFrom):
            yield from (((one.asname or one.name).partition(".")[0], each.lineno) for one in each.names)


def _holds(block: list[ast.stmt], line: int) -> bool:
    return block[0].lineno <= line <= (block[-1].end_lineno or 0)


def _statement(scope: ast.AST, line: int) -> ast.stmt | None:
    """The innermost one there."""
    there = [
        each for each in _within(scope) if isinstance(each, ast.stmt) and each.lineno <= line <= (each.end_lineno or 0)
    ]
    return there[-1] if there else None


def _end(statement: ast.stmt, line: int) -> int:
    """The last line of which something may have run: of a block, its head's."""
    return line if hasattr(statement, "body") else statement.end_lineno or line


def _targets(statement: ast.stmt) -> Iterable[Store]:
    """What a statement would have set, had it not failed."""
    if isinstance(statement, ast.Assign):
        return [each for target in statement.targets for each in _stores(target)]
    return [*_stores(statement.target)] if isinstance(statement, ast.AnnAssign) else []


__all__ = ["names", "said"]
