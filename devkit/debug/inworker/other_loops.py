"""A lock, queue or event of asyncio that another event loop has: which it is, and where it was made.

It belongs to the loop in which somebody has first waited for it. Where it outlives that loop, as in a singleton, the
next `asyncio.run` can't wait for it, and Python says no more than its class.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from types import CodeType, FrameType, FunctionType
from typing import Any

from .expressions import tree_of
from .insides import attributes, type_name
from .lineage import places_of
from .sources import is_users
from .unwritable import assignments

_SAID = "is bound to a different event loop"
_GET_LOOP = "_get_loop"
FRAMES, NAMES = 3, 50  # of the user's, the innermost ones; of one frame, and of one object
PLACES = 2  # where it is made; more say nothing


def said(errors: Iterable[BaseException]) -> Iterator[str]:
    """One line, of the first of these that is of such a thing."""
    for error in errors:
        if type(error) is RuntimeError and str(error).endswith(_SAID):
            places = places_of(error.__traceback__)
            thing = next((each.f_locals.get("self") for each, _ in places if each.f_code.co_name == _GET_LOOP), None)
            if thing is not None:
                frames = [each for each, _ in places if is_users(each.f_code.co_filename)][:FRAMES]
                yield _sentence(thing, *_named(thing, frames))
                return


def _sentence(thing: Any, name: str, made: str) -> str:
    loop = getattr(thing, "_loop", None)
    closed = getattr(loop, "is_closed", None)
    other = "another event loop, which has closed by now" if closed is not None and closed() else "another event loop"
    who = f"{name}, an asyncio.{type_name(type(thing))}," if name else f"this asyncio.{type_name(type(thing))}"
    at = f"; it is made at {made}" if made else ""
    return f"{who} was first waited for in {other}: each asyncio.run has a loop of its own{at}"


def _named(thing: Any, frames: Iterable[FrameType]) -> tuple[str, str]:
    """How a frame's line may call it, and where it is made; ("", "") where no variable leads to it."""
    for frame in frames:
        variables = list(frame.f_locals.items())[:NAMES]
        for name, value in variables:
            if value is thing:
                return f"`{name}`", ""
        for name, value in variables:
            for inner, each in attributes(value)[:NAMES]:
                if each is thing:
                    return f"`{name}.{inner}`", " and ".join(_made(type(value), inner))
    return "", ""


def _made(kind: type, attribute: str) -> list[str]:
    """Where a class assigns this attribute of its objects."""
    codes = (each.__code__ for each in vars(kind).values() if type(each) is FunctionType)
    code: CodeType | None = next(codes, None)
    _, tree = tree_of(code.co_filename) if code is not None else ("", None)
    if code is None or tree is None:
        return []
    own = [
        (at, each)
        for at, each in assignments(tree, f"self.{attribute}", "")
        if each.rpartition(".")[0] == kind.__qualname__
    ]
    return [f"{os.path.basename(code.co_filename)}:{at} in {each}" for at, each in own] if len(own) <= PLACES else []


__all__ = ["said"]
