"""An asyncio.Future that nothing can complete any more: what was to do that has lost it.

As where two calls keep theirs in a dictionary under the same key, and the second takes the first one's place.
"""

from __future__ import annotations

import gc
import sys
import time
import weakref
from types import CoroutineType, FrameType, GeneratorType
from typing import Any

from . import finding
from .stacks import is_ours

SECONDS = 2.0  # so long it has been awaited before all objects are looked through, which takes a tenth of a second
AGAIN = 20.0  # seconds until that is done once more of a future that something holds
MOST = 3  # futures in this time

_seen: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()  # when each is looked for
_lost: weakref.WeakSet[Any] = weakref.WeakSet()
_looks: list[float] = []


def said(future: Any) -> str:
    """What a coroutine waits for."""
    if is_forgotten(future):
        return (
            "an asyncio.Future that is never done (nothing of Python's holds it but who awaits it, as where another "
            "one has taken its place under its key)"
        )
    return "an asyncio.Future that is not done"


def is_forgotten(future: Any, now: float | None = None) -> bool:
    """Whether nothing of Python's holds it but who awaits it: so far as is known, and not at the first look."""
    now = time.monotonic() if now is None else now
    if future in _lost:
        return True
    if future not in _seen:
        _seen[future] = now + SECONDS
        return False
    if now < _seen[future] or not finding.sees_all():
        return False
    _looks[:] = [each for each in _looks if now - each < AGAIN]
    if len(_looks) >= MOST:
        return False
    _looks.append(now)
    _seen[future] = now + AGAIN
    if not _is_local(future) and not _is_held(future):
        _lost.add(future)
    return future in _lost


def _is_held(future: Any) -> bool:
    """Not counted: who awaits it, what they await it by, and those who look at it here."""
    count, holders = (
        sys.getrefcount(future),
        gc.get_referrers(future),
    )  # no closure may have it here, as it would be one
    known: list[Any] = [future]
    for each in holders:
        if isinstance(each, CoroutineType | GeneratorType) and _awaits(each, future):
            frame = getattr(each, "cr_frame", None) or getattr(each, "gi_frame", None)
            known += [each, frame, getattr(frame, "f_locals", None)]  # up to Python 3.12, that is kept
    ids = set(map(id, known))
    others = [each for each in holders if id(each) not in ids]
    if any(map(_may_complete, others, [future] * len(others))):
        return True
    # One more is of who has it just in hand, as in `waiting.pop(key).set_result(compute())`, or of a library in C.
    return count > 1 + _references(holders, id(future)) + _variables(sys._getframe(), id(future))


def _references(holders: list[Any], wanted: int) -> int:
    return sum(list(map(id, gc.get_referents(each))).count(wanted) for each in holders)


def _variables(frame: FrameType | None, wanted: int) -> int:
    """Of the functions that are under way in this thread."""
    count = 0
    while frame is not None:
        count += list(map(id, frame.f_locals.values())).count(wanted)
        frame = frame.f_back
    return count


def _is_local(future: Any) -> bool:
    """Whether a function that is under way has it as a variable, of which the garbage collector does not know."""
    for frame in sys._current_frames().values():
        at: FrameType | None = frame
        while at is not None:
            if not is_ours(at.f_code.co_filename) and id(future) in map(id, at.f_locals.values()):
                return True
            at = at.f_back
    return False


def _may_complete(holder: Any, future: Any) -> bool:
    if isinstance(holder, FrameType):
        return not is_ours(holder.f_code.co_filename)
    kind = type(holder)
    if kind.__module__.rpartition(".")[0] == __package__ or kind.__name__ == "FutureIter":
        return False
    return getattr(holder, "_fut_waiter", None) is not future


def _awaits(work: Any, future: Any) -> bool:
    """Whether a coroutine is suspended at this future, by whatever it awaits in between."""
    for _ in range(100):
        work = getattr(work, "cr_await", None) or getattr(work, "gi_yieldfrom", None)
        if work is None or work is future or type(work).__name__ == "FutureIter":
            return work is not None
    return False


__all__ = ["is_forgotten", "said"]
