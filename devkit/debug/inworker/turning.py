"""Loops that count up to something and come round without getting on, while a thread computes in them.

One look at a thread does not tell a loop that turns from one long turn: so all threads are looked at some thirty times
within a tenth of a second. A frame that is further up in the same loop than before has come round, and so has a
generator that was left in between, by a `yield` of its own. Nothing of the program is run.
"""

from __future__ import annotations

import ast
import inspect
import sys
import time
from collections.abc import Iterator, Mapping
from itertools import pairwise
from types import CodeType, FrameType
from typing import Any, NamedTuple

from . import repeating
from .expressions import counts, nodes_of, short, tree_of, values
from .sources import is_users
from .stacks import is_ours
from .whole import digest

LOOKS, PAUSE = 30, 0.003  # seconds
FIRST, IDLE = 4, 0.002  # looks, and seconds: nobody computes where that much was not used until then
DEPTH = 60  # frames
MOST = 5  # loops
TEXT, VALUES = 120, 3
MOST_KEPT = 2000  # lines

Document = dict[str, Any]
_loops: dict[tuple[CodeType, int], tuple[ast.While | None, ast.While | None]] = {}


class _Sight(NamedTuple):
    """A frame in such a loop, at one look."""

    look: int
    line: int
    values: tuple[tuple[str, str], ...]
    whole: str  # a digest of all that the loop's condition looks at; empty: not all of that can be seen


class _Seen:
    """All sights of one frame in one loop; the frame is kept, or another one could get its address."""

    def __init__(self, frame: FrameType, loop: ast.While) -> None:
        self.frame, self.loop = frame, loop
        self.sights: list[_Sight] = []

    @property
    def is_still(self) -> bool:
        return all(each.whole and each.whole == self.sights[0].whole for each in self.sights)

    @property
    def has_come_round(self) -> bool:
        pairs = list(pairwise(self.sights))
        begun = [line for each in self.sights if (line := _begins(self.loop, each.line))]
        up = any(now < before for before, now in pairwise(begun))
        # Its body does nothing: a condition that compares numbers is no long turn.
        at_head = {each.line for each in self.sights} == {self.loop.lineno}
        spins = len(self.sights) > LOOKS // 2 and at_head and not _is_one_line(self.loop)
        yields = _own_yields(self.frame.f_code, self.loop)
        gaps = (each for each in pairs if each[1].look > each[0].look + 1)
        left = any(now.line not in yields and now.line <= before.line for before, now in gaps)
        return up or spins or (bool(yields) and left)


def _is_one_line(loop: ast.While) -> bool:
    """Whether what is at its head may be its body."""
    body = loop.body[0]
    return body.lineno == loop.lineno and not isinstance(body, ast.Pass)


def _begins(loop: ast.While, line: int) -> int:
    """Where the statement of a line begins: one of several lines is gone through up and down. 0 of a `with`, to which
    its end comes back.
    """
    around = (node for node in ast.walk(loop) if isinstance(node, ast.stmt))
    found = [node for node in around if node.lineno <= line <= (node.end_lineno or 0)]
    inner = max(found, key=lambda node: node.lineno, default=loop)
    return 0 if isinstance(inner, ast.With | ast.AsyncWith) else inner.lineno


def _own_yields(code: CodeType, loop: ast.While) -> set[int]:
    """The lines of a generator's own `yield`s in a loop; none where others may leave it in the middle of a turn."""
    nodes = list(ast.walk(loop))
    if not code.co_flags & inspect.CO_GENERATOR or any(isinstance(node, ast.YieldFrom) for node in nodes):
        return set()
    spans = ((node.lineno, node.end_lineno or 0) for node in nodes if isinstance(node, ast.Yield))
    return {line for first, last in spans for line in range(first, last + 1)}


def describe(names: Mapping[int, str], ours: str) -> list[Document]:
    """[{"at", "loop", "values", "whole"}] of the loops that came round meanwhile and changed nothing that they count;
    with "states" also of those whose variables came back to the same values (`repeating`).

    Of no thread whose name begins with `ours`. It takes a tenth of a second where a thread computes.
    """
    found: dict[tuple[int, int], _Seen] = {}
    again: dict[tuple[int, int], repeating.Seen] = {}
    begun = time.process_time()
    for look in range(LOOKS):
        if look == FIRST and time.process_time() - begun < IDLE:
            break
        frames = sys._current_frames().items()
        for top in (each for ident, each in frames if not names.get(ident, "").startswith(ours)):
            for frame, loop, outermost in _in_loops(top):
                repeating.look(frame, outermost, again, runs=frame is top)
                if loop is None:
                    continue
                seen = found.setdefault((id(frame), loop.lineno), _Seen(frame, loop))
                known = tuple(values([loop.test], frame, VALUES))
                seen.sights.append(_Sight(look, frame.f_lineno or 0, known, digest([loop.test], frame)))
        del frames
        time.sleep(PAUSE)
    still = [_document(each) for each in found.values() if each.is_still and each.has_come_round][:MOST]
    return [*still, *repeating.documents(again)]


def _in_loops(frame: FrameType | None) -> Iterator[tuple[FrameType, ast.While | None, ast.While | None]]:
    """The frames of a stack that are in loops: with the innermost one, if that counts, and the outermost one."""
    count = 0
    while frame is not None and count < DEPTH:
        name = frame.f_code.co_filename
        if is_users(name) and not is_ours(name) and any(loops := _loops_at(frame)):
            yield frame, *loops
        frame, count = frame.f_back, count + 1


def _loops_at(frame: FrameType) -> tuple[ast.While | None, ast.While | None]:
    """Of the loops around the line of a frame, in its function: the innermost one if it is a `while` that counts, and
    the outermost one if it is any `while`.
    """
    key = (frame.f_code, frame.f_lineno or 0)
    if key not in _loops:
        if len(_loops) >= MOST_KEPT:
            _loops.clear()
        _, tree = tree_of(frame.f_code.co_filename)
        _loops[key] = _around(tree, frame.f_code.co_firstlineno, key[1]) if tree is not None else (None, None)
    return _loops[key]


def _around(tree: ast.Module, first: int, line: int) -> tuple[ast.While | None, ast.While | None]:
    loops = nodes_of(tree, ast.While, ast.For, ast.AsyncFor)
    around = [node for node in loops if first <= node.lineno <= line <= (node.end_lineno or 0)]
    inner = max(around, key=lambda node: node.lineno, default=None)
    outer = min(around, key=lambda node: node.lineno, default=None)
    counting = inner if isinstance(inner, ast.While) and counts(inner.test) else None
    return counting, outer if isinstance(outer, ast.While) else None


def _document(seen: _Seen) -> Document:
    code, last = seen.frame.f_code, seen.sights[-1]
    return {
        "at": {"file": code.co_filename, "line": last.line, "function": code.co_qualname},
        "loop": short(f"while {ast.unparse(seen.loop.test)}", TEXT),
        "values": dict(last.values),
        "whole": last.whole,
    }


__all__ = ["describe"]
