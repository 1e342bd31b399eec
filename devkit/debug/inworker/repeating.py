"""Loops without end whose variables come back to the same values, while a thread computes in them.

Where a loop works on nothing but its function's own plain variables (`self_contained`), the same values bring the same
turns. Two looks by themselves may meet one call and the next: so the frame of a loop that looks like that is kept for a
few seconds, and a later look knows it again.
"""

from __future__ import annotations

import ast
import itertools
import re
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from types import FrameType, FunctionType, ModuleType
from typing import Any, NamedTuple

from . import self_contained, threads, whole
from .expressions import short, told
from .pure_functions import is_pure
from .self_contained import Plan

SIGHTS = 12  # looks within a tenth of a second at which it is there
STATES = 8  # different ones
SIZE, TEXT, DEPTH = 1000, 10_000, 3  # of a container, of a text, of containers within each other
ROUNDS = 20_000  # of all `for` within one turn: far less than a look at the job takes
KEPT = 10.0  # seconds
MOST = 4  # frames
LOOP, NAMES, VALUES = 120, 3, 4
_PLAIN = (str, bytes, int, float, bool, type(None))
_CONTAINERS = (list, tuple, set, frozenset, dict, deque)
_UNCHANGING = (tuple, frozenset)
_FLAGS = (bool, type(None))

Document = dict[str, Any]
_held: dict[tuple[int, int], _Held] = {}
_numbers = itertools.count(1)


class Sight(NamedTuple):
    """The variables of a loop at one look."""

    at: int  # the instruction
    state: str  # a text of those that decide how it goes on
    values: tuple[tuple[str, str], ...]
    moves: str  # a text of those that are no flags
    alone: bool  # nothing that it reads can be another's
    runs: bool = False  # it is the innermost one of its thread: nothing that it calls may wait


@dataclass
class Seen:
    """The sights of one frame in one loop; None: it was seen in what may be progress."""

    frame: FrameType
    loop: ast.While
    sights: list[Sight | None] = field(default_factory=list)

    @property
    def states(self) -> dict[str, Sight]:
        return {each.state: each for each in self.sights if each}

    @property
    def comes_back(self) -> bool:
        """Whether it has only few states, and comes to them again."""
        known = [each for each in self.sights if each]
        if len(known) < SIGHTS or len(known) < len(self.sights) or len(self.states) > STATES:
            return False
        if len({each.moves for each in known}) == 1:
            back = any(now.at < before.at for before, now in pairwise(known))
            return all(each.alone and (back or each.runs) for each in known)
        changes = [now.moves for before, now in pairwise(known) if now.moves != before.moves]
        return len(changes) > len(set(changes))  # A, B, A, B


@dataclass
class _Held:
    frame: FrameType
    token: str
    states: dict[str, Sight]
    last: float


def look(frame: FrameType, loop: ast.While | None, found: dict[tuple[int, int], Seen], *, runs: bool) -> None:
    """Adds a sight of the frame, in the outermost loop of its function, if that is one of these.

    `runs`: it is the innermost one of its thread.
    """
    known = self_contained.plan(loop, frame.f_code) if loop is not None else None
    if loop is None or known is None:
        return
    seen = found.setdefault((id(frame), loop.lineno), Seen(frame, loop))
    if len(seen.states) > STATES or None in seen.sights:
        return
    try:
        sight = _sight(frame, loop, known)
        seen.sights.append(sight._replace(runs=runs) if sight else None)
    except (RuntimeError, RecursionError):  # changed by another thread meanwhile
        seen.sights.append(None)


def _sight(frame: FrameType, loop: ast.While, known: Plan) -> Sight | None:
    at, variables, world = frame.f_lasti, dict(frame.f_locals), frame.f_globals
    own = set(frame.f_code.co_varnames)
    if any(name in world for name in self_contained.called(loop)):
        return None
    if not all(_is_function(name, variables, own, world) for name in known.functions):
        return None
    texts: dict[str, str] = {}
    largest, alone = 1, True
    for name in known.reads:
        if name in own and name not in variables:
            texts[name] = ""  # not set yet
            continue
        value = variables[name] if name in own else world.get(name, world)
        size = _size(value, DEPTH)
        part = None if size is None else _text(value, DEPTH, known, name)
        if size is None or part is None or not (name in own or _stays(value, name in known.conditions)):
            return None
        changes = not _is_unchanging(value)
        if changes and name in known.fresh and name in own:
            changes = False
        elif changes and name not in known.gone_through:
            return None
        alone = alone and not changes and (name in own or isinstance(value, ModuleType | re.Pattern))
        texts[name], largest = part, max(largest, size)
        if name in known.ranges and type(value) is int:
            largest = max(largest, abs(value))
    if largest**known.depth > ROUNDS:
        return None
    deciding = sorted(texts.keys() & (known.carried | known.gone_through | known.fresh))
    carried = [name for name in deciding if name in known.carried and name in variables]
    moving = [name for name in carried if type(variables[name]) not in _FLAGS]
    values = tuple((name, said) for name in carried if (said := _said(name, variables[name])))
    state, moves = (repr([(name, texts[name]) for name in names]) for names in (deciding, moving))
    return Sight(at, state, values, moves, alone)


def _is_function(name: str, variables: Mapping[str, Any], own: set[str], world: Mapping[str, Any]) -> bool:
    if name in own:
        return name not in variables or is_pure(variables[name])
    return is_pure(world.get(name))


def _stays(value: Any, decides: bool) -> bool:
    """Whether a global is no flag or count that somebody else may set."""
    return type(value) not in (*_FLAGS, *((int,) if decides else ()))


def _said(name: str, value: Any) -> str:
    from .redaction import REDACTED, redact

    return REDACTED if redact(name, value) is not value else told(value) or ""


def _is_unchanging(value: Any) -> bool:
    if type(value) in _UNCHANGING:
        return all(map(_is_unchanging, value))
    return type(value) not in _CONTAINERS


def _size(value: Any, depth: int) -> int | None:
    """The largest number of items or characters in it; None of what is too large to be seen."""
    if type(value) in (str, bytes):
        return len(value) if len(value) <= TEXT else None
    if type(value) not in _CONTAINERS:
        return 1
    if not depth or len(value) > SIZE:
        return None
    items = [each for pair in value.items() for each in pair] if type(value) is dict else list(value)
    sizes = [_size(each, depth - 1) for each in items]
    return None if None in sizes else max([len(value), *(each for each in sizes if each)])


def _text(value: Any, depth: int, known: Plan, name: str = "") -> str | None:
    """One that differs where the value does; None where a part of it can't be seen."""
    kind = type(value)
    if kind is ModuleType:
        return name if value.__name__ == name and name in self_contained.MODULES else None
    if kind is FunctionType:
        return f"function {id(value)}" if is_pure(value) else None
    if kind is re.Pattern:
        return f"pattern {whole.text(value.pattern)} {value.flags}"
    if kind is re.Match:
        return f"match {_text(value.re, 1, known)} {whole.text(value.string)} {value.regs}"
    if kind in _CONTAINERS:
        if not depth:
            return None
        items = [each for pair in value.items() for each in pair] if kind is dict else list(value)
        inner = [_text(each, depth - 1, known) for each in items]
        return None if None in inner else f"{kind.__name__} {inner}"
    return whole.text(value) if kind in _PLAIN else None


def documents(found: Mapping[tuple[int, int], Seen]) -> list[Document]:
    """[{"at", "loop", "values", "whole", "states"}] of those that come back: `whole` is a number of the frame, `states`
    the values that each variable has had by now.
    """
    now = time.monotonic()
    _release(now)
    told_of = []
    for key, seen in found.items():
        held = _held.get(key)
        if held is not None:
            if held.frame is not seen.frame or None in seen.sights:
                del _held[key]
                continue
            held.states.update(seen.states)
        if not seen.comes_back or (held is None and len(_held) >= MOST):
            continue
        if held is None:
            held = _held[key] = _Held(seen.frame, f"frame {next(_numbers)}", seen.states, now)
            if len(_held) == 1 and not _is_released_later():
                _held.clear()
                break
        held.last = now
        if len(held.states) <= STATES:
            told_of.append(_document(seen, held))
    return told_of


def _is_released_later() -> bool:
    try:
        threads.start(_release_later, "devkit-repeating")
    except RuntimeError:  # no more threads
        return False
    return True


def _release_later() -> None:
    while _held:
        time.sleep(KEPT / 2)
        _release(time.monotonic())


def _release(now: float) -> None:
    for key, held in list(_held.items()):
        if now - held.last > KEPT:
            _held.pop(key, None)


def _document(seen: Seen, held: _Held) -> Document:
    code, values = seen.frame.f_code, [each.values for each in held.states.values()]
    names = list(dict.fromkeys(name for each in values for name, _ in each))
    states = {name: list(dict.fromkeys(dict(each)[name] for each in values if name in dict(each))) for name in names}
    order = sorted(states, key=lambda name: set(states[name]) <= {"True", "False", "None"})
    return {
        "at": {"file": code.co_filename, "line": seen.loop.lineno, "function": code.co_qualname},
        "loop": short(f"while {ast.unparse(seen.loop.test)}", LOOP),
        "values": {},
        "whole": held.token,
        "states": {name: states[name][:VALUES] for name in order[:NAMES]},
    }


__all__ = ["Seen", "documents", "look"]
