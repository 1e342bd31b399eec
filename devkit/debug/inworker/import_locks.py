"""Threads that wait until another one has imported a module: Python has a lock for each, whose owner it knows.

Who has begun the import runs the module's body; where that waits for a thread which imports the module, too, neither
goes on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any, NamedTuple

from .sources import is_users
from .stacks import is_ours

DEPTH = 200  # frames of a thread that are looked at
_BOOTSTRAP = "<frozen importlib._bootstrap>"
_FUTURES = os.path.join("concurrent", "futures", "")
_WAITS_IN = ("threading.py", "_base.py")

Document = dict[str, Any]


class _Import(NamedTuple):
    """A thread that waits, by whom, for which module, and the line of the program that imports it."""

    ident: int
    owner: int
    module: str
    at: FrameType


def describe(frames: Mapping[int, FrameType], names: Mapping[int, str]) -> dict[int, Document]:
    """As `locks.describe` has them, with "what" that is: by the thread that waits. Also a thread that imports and waits
    for a Future which one of these computes.
    """
    imports = [each for ident, frame in frames.items() if (each := _import(ident, frame, frames)) is not None]
    found = {each.ident: _document(each, frames, names) for each in imports}
    for each in imports:
        future, own = _awaited_future(frames[each.owner]), _programs(frames[each.owner])
        if future is not None and own is not None and _computes(frames[each.ident], future):
            what = f"a concurrent.futures.Future that thread {_name(each.ident, names)} computes"
            found.setdefault(each.owner, _row(each.owner, each.ident, own, None, what, names))
    return found


def _import(ident: int, frame: FrameType, frames: Mapping[int, FrameType]) -> _Import | None:
    code = frame.f_code
    if code.co_filename != _BOOTSTRAP or code.co_qualname != "_ModuleLock.acquire":
        return None
    lock, at = frame.f_locals.get("self"), _programs(frame)
    owner, module = getattr(lock, "owner", None), getattr(lock, "name", None)
    if at is None or type(owner) is not int or owner == ident or owner not in frames or type(module) is not str:
        return None  # of a thread that has ended, or that a fork has left behind: then it is a lock like another
    return _Import(ident, owner, module, at)


def _document(each: _Import, frames: Mapping[int, FrameType], names: Mapping[int, str]) -> Document:
    body = next((frame for frame in _outwards(frames[each.owner]) if _is_body(frame, each.module)), None)
    what = f"the import of module {each.module}, which thread {_name(each.owner, names)} has begun"
    return _row(each.ident, each.owner, each.at, body, what, names)


def _row(
    ident: int, owner: int, at: FrameType, held_at: FrameType | None, what: str, names: Mapping[int, str]
) -> Document:
    outermost = next((each for each in reversed(list(_outwards(at))) if is_users(each.f_code.co_filename)), at)
    return {
        "thread": _name(ident, names),
        "lock": what,
        "at": _place(at),
        "holder": _name(owner, names),
        "held_at": _place(held_at) if held_at is not None else None,
        "call": outermost.f_code.co_qualname,
        "kept_at": None,
        "what": what,
    }


def _is_body(frame: FrameType, module: str) -> bool:
    return frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == module


def _awaited_future(frame: FrameType) -> Any:
    """That of which a thread awaits the result just now."""
    for each in _outwards(frame):
        if os.path.basename(each.f_code.co_filename) not in _WAITS_IN:
            return None
        if each.f_code.co_name in ("result", "exception"):
            return each.f_locals.get("self")
    return None


def _computes(frame: FrameType, future: Any) -> bool:
    """Whether a thread of a pool is at the job whose result that is."""
    runs = (each for each in _outwards(frame) if each.f_code.co_name == "run" and _FUTURES in each.f_code.co_filename)
    return any(getattr(each.f_locals.get("self"), "future", None) is future for each in runs)


def _programs(frame: FrameType) -> FrameType | None:
    names = ((each, each.f_code.co_filename) for each in _outwards(frame))
    return next((each for each, name in names if is_users(name) and not is_ours(name)), None)


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    count = 0
    while frame is not None and count < DEPTH:
        yield frame
        frame, count = frame.f_back, count + 1


def _name(ident: int, names: Mapping[int, str]) -> str:
    return names.get(ident, f"thread {ident}")


def _place(frame: FrameType) -> Document:
    code = frame.f_code
    return {"file": code.co_filename, "line": frame.f_lineno or 0, "function": code.co_qualname}


__all__ = ["describe"]
