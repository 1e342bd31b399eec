"""Tasks of asyncio and futures of pools that have failed, and that the failing code has at hand: as `self.background`.

Whoever was to be served by one fails by its absence, and says nothing of why it is gone. That somebody has asked one
for its error, as a callback does, makes no difference. Nothing of the program's is called.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any, NamedTuple

from .awaited import is_pythons
from .insides import as_items, as_mapping, attributes
from .lineage import places_of
from .sources import is_users
from .unasked import are_same, place
from .values import error_line

FRAMES = 5  # of the user's, the innermost ones
NAMES, ITEMS = 100, 50  # that are looked at: of one frame or object, and of one container
RELATED = 50  # exceptions behind the one that was raised
MOST = 3  # that are told of


class Failed(NamedTuple):
    """One of them."""

    name: str  # "`self.background`"
    what: str  # "a task of asyncio"
    error: BaseException


def found(errors: Iterable[BaseException]) -> list[Failed]:
    """Those in the variables, and in the attributes of `self`, of the user's innermost frames: each error once.

    Of what the crash itself came from, and of what says the same, there is no news.
    """
    chain = list(errors)
    known = list(_related(chain))
    same = {error_line(each) for each in known}
    told: dict[int, Failed] = {}
    for frame in _users_frames(chain):
        for each in _in(frame):
            is_news = not any(each.error is other for other in known) and error_line(each.error) not in same
            if is_news and place(each.error):
                told.setdefault(id(each.error), each)
    return list(told.values())


def said(failed: Iterable[Failed], errors: Iterable[BaseException] = ()) -> list[str]:
    """One line for each place, with how many have failed there; `errors`: the crash, of which some may be the like."""
    groups: dict[str, list[Failed]] = {}
    for each in failed:
        groups.setdefault(place(each.error), []).append(each)
    known = list(_related(errors))
    return [_line(at, group, are_same([each.error for each in group], known)) for at, group in groups.items()][:MOST]


def _line(at: str, group: list[Failed], alike: bool) -> str:
    first, more = group[0], len(group) - 1
    if alike:
        many = f"{first.name} and {more} more have" if more else f"{first.name}, {first.what}, has"
        return f"{many} failed likewise at {at}"
    others = f" (and {more} more at that line)" if more else ""
    return f"{first.name}, {first.what}, has failed by {error_line(first.error)} at {at}{others}"


def _related(errors: Iterable[BaseException]) -> Iterator[BaseException]:
    """Them and all behind them, `from None` or not."""
    waiting, seen = list(errors), set[int]()
    while waiting and len(seen) < RELATED:
        each = waiting.pop(0)
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            behind = (each.__cause__, each.__context__, *(getattr(each, "exceptions", None) or ()))
            waiting += [other for other in behind if isinstance(other, BaseException)]


def _users_frames(errors: Iterable[BaseException]) -> list[FrameType]:
    frames = [frame for each in errors for frame, _ in places_of(each.__traceback__)]
    return [each for each in dict.fromkeys(frames) if is_users(each.f_code.co_filename)][:FRAMES]


def _in(frame: FrameType) -> Iterator[Failed]:
    values = list(frame.f_locals.items())[:NAMES]
    if "self" in frame.f_locals:
        values += [(f"self.{name}", each) for name, each in attributes(frame.f_locals["self"])[:NAMES]]
    for name, value in values:
        if (failed := _failed(f"`{name}`", value)) is not None:
            yield failed
        else:  # of the futures that a list has, `unasked` tells
            inner = (_failed(f"one of `{name}`", each) for each in _items(value))
            yield from (each for each in inner if each is not None and each.what == TASK)


def _items(value: Any) -> list[Any]:
    mapping = as_mapping(value)
    return (list(dict.values(mapping))[:ITEMS] if type(mapping) is dict else as_items(value, ITEMS)) or []


TASK, FUTURE = "a task of asyncio", "a future of a pool"


def _failed(name: str, value: Any) -> Failed | None:
    """Of exactly these classes: another's attributes may run code."""
    pools: Any = sys.modules.get("concurrent.futures._base")
    if is_pythons(value):
        what = TASK
    elif pools is not None and type(value) is pools.Future:
        what = FUTURE
    else:
        return None
    error = value._exception
    return Failed(name, what, error) if isinstance(error, BaseException) else None


__all__ = ["Failed", "found", "said"]
