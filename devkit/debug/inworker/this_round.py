"""What a loop's round comes to, seen from the line at which it is: which conditions keep it going, and what is stale.

Read from the text of the loop; nothing of the program is run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import lru_cache
from types import FrameType
from typing import NamedTuple

from .expressions import holds

KEPT = 50  # loops
_LOOPS = (ast.While, ast.For, ast.AsyncFor)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_Loop = ast.While | ast.For | ast.AsyncFor


class Condition(NamedTuple):
    """An `if`, and which outcome of it would lead on."""

    node: ast.If
    wanted: bool


class _Step(NamedTuple):
    """A statement on the way from a loop's body to another one inside of it."""

    block: list[ast.stmt]
    at: int
    under: Condition | None  # of which the block is a branch
    inner: bool  # it is the body of a loop inside of that loop


_Way = tuple[_Step, ...]


class _Reach(NamedTuple):
    """How a statement lies to the line at which a round is."""

    comes: bool  # False: this round goes by it, whatever its own conditions are
    by: tuple[Condition, ...]  # what decides that; of one that it comes to, what decides whether it is run


def kept_by(loop: _Loop, frame: FrameType) -> list[Condition]:
    """The conditions each of which would have to be otherwise for a `break` or a `return` of the loop to be come to.

    Of several around one of these, those of which it is not known that they are as wanted.
    """
    here = _way_to(loop, frame.f_lineno or 0)
    found: dict[int, Condition] = {}
    for node, way in _statements(loop):
        if isinstance(node, ast.Return) or (isinstance(node, ast.Break) and not any(step.inner for step in way)):
            for each in _open(_reach(way, here).by, frame):
                found.setdefault(id(each.node), each)
    return list(found.values())


def is_run(loop: _Loop, node: ast.AST, line: int) -> bool:
    """Whether each round that comes to a line runs an expression of the loop, before or behind it."""
    way = _places(loop).get(id(node))
    reach = _reach(way, _way_to(loop, line)) if way is not None else _Reach(True, ())
    return reach.comes and not reach.by


@lru_cache(maxsize=KEPT)
def stale(loop: _Loop, line: int) -> frozenset[str]:
    """The variables that only such statements of the loop assign to as a round that comes to a line goes by, and that
    no condition asks for to which that round comes.
    """
    here = _way_to(loop, line)
    written: dict[str, bool] = {}
    asked = _names([loop.test]) if isinstance(loop, ast.While) else set()
    for node, way in _statements(loop):
        comes = _reach(way, here).comes
        if comes and isinstance(node, ast.If | ast.While):
            asked |= _names([node.test])
        for name in (each.id for each in _own(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)):
            written[name] = written.get(name, False) or comes
    return frozenset(name for name, comes in written.items() if not comes and name not in asked)


def _names(nodes: Iterable[ast.AST]) -> set[str]:
    return {each.id for node in nodes for each in ast.walk(node) if isinstance(each, ast.Name)}


def _open(conditions: tuple[Condition, ...], frame: FrameType) -> Iterator[Condition]:
    """Those that may not be as wanted; inside of one of which that is known no other is looked at."""
    for each in conditions:
        known = holds(each.node.test, frame)
        if known != each.wanted:
            yield each
        if known is not None and known != each.wanted:
            return


def _reach(way: _Way, here: _Way) -> _Reach:
    for depth, (one, mine) in enumerate(zip(way, here, strict=False)):
        if one.block is not mine.block:  # two branches of one statement
            under = one.under
            if under is not None and mine.under is not None and under.node is mine.under.node:
                return _Reach(False, (under,))
            return _Reach(True, _conditions(way[depth:]))
        if one.at > mine.at and (over := _goes_on(here[depth + 1 :])) is not None:
            return _Reach(False, tuple(Condition(each.node, not each.wanted) for each in over))
        if one.at != mine.at:
            return _Reach(True, _conditions(way[depth + 1 :]))
    return _Reach(True, _conditions(way[len(here) :]))


def _goes_on(inner: _Way) -> tuple[Condition, ...] | None:
    """By which condition a round begins anew behind its line, before it comes to what is further down; None: it does
    not.
    """
    for number, step in enumerate(inner):
        if step.inner:
            return None
        if any(isinstance(each, ast.Continue) for each in step.block[step.at + 1 :]):
            return _conditions(inner[: number + 1])[-1:]
    return None


def _conditions(way: _Way) -> tuple[Condition, ...]:
    return tuple(step.under for step in way if step.under is not None)


@lru_cache(maxsize=KEPT)
def _statements(loop: _Loop) -> tuple[tuple[ast.stmt, _Way], ...]:
    return tuple(_ways(loop.body))


@lru_cache(maxsize=KEPT)
def _places(loop: _Loop) -> dict[int, _Way]:
    """The way to the statement that each part of a loop belongs to."""
    return {id(part): way for node, way in _statements(loop) for part in _own(node)}


def _way_to(loop: _Loop, line: int) -> _Way:
    """Of the innermost statement at a line; empty at the loop's own condition."""
    found: _Way = ()
    for node, way in _statements(loop):
        if node.lineno <= line <= (node.end_lineno or 0):
            found = way
    return found


def _ways(
    block: list[ast.stmt], before: _Way = (), under: Condition | None = None, inner: bool = False
) -> Iterator[tuple[ast.stmt, _Way]]:
    """Each statement of a block, and of those inside of it, behind the one that it is in."""
    for at, node in enumerate(block):
        way = (*before, _Step(block, at, under, inner))
        yield node, way
        for body, condition in _blocks(node):
            yield from _ways(body, way, condition, isinstance(node, _LOOPS) and body is node.body)


def _blocks(node: ast.stmt) -> Iterator[tuple[list[ast.stmt], Condition | None]]:
    if isinstance(node, _SCOPES):
        return
    if isinstance(node, ast.If):
        yield node.body, Condition(node, True)
        yield node.orelse, Condition(node, False)
        return
    for part in ("body", "orelse", "finalbody"):
        if body := getattr(node, part, None):
            yield body, None
    for each in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        yield each.body, None


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """What belongs to a statement itself, not to those inside of it."""
    yield node
    for each in ast.iter_child_nodes(node):
        if not isinstance(each, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from _own(each)


__all__ = ["Condition", "is_run", "kept_by", "stale"]
