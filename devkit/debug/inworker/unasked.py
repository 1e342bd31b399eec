"""Errors that nobody has asked for: of asyncio's tasks in the background, and of the futures of a pool.

Such an error leaves no task of Ray's. What fails is what waits for, or misses, what was to be made.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

from .insides import as_items, as_mapping, attributes
from .lineage import places_of
from .sources import is_users
from .values import error_line

FRAMES = 5  # of the user's, the innermost ones
ITEMS, PARTS = 50, 1000  # that are looked at: of one container, and altogether
DEPTH = 2  # from a variable
MOST = 3  # that are told of
TASK, FUTURE = "task of asyncio", "future"


def said(errors: Iterable[BaseException], but: Iterable[BaseException] = ()) -> list[str]:
    """One line for each error, with how many have failed at the same place; none for `but`, of which others tell.

    Those of the kind and place of `errors` are no other matter, but more of the same.
    """
    chain, elsewhere = list(errors), list(but)
    frames = [frame for each in chain for frame, _ in places_of(each.__traceback__)]
    users = [each for each in dict.fromkeys(frames) if is_users(each.f_code.co_filename)][:FRAMES]
    counted: dict[tuple[str, str], list[BaseException]] = {}
    for error, what in [*_of_tasks(), *_of_futures(users)]:
        if not any(error is each for each in (*chain, *elsewhere)):
            counted.setdefault((what, place(error)), []).append(error)
    return [_line(what, at, found, are_same(found, chain)) for (what, at), found in counted.items()][:MOST]


def _line(what: str, where: str, found: list[BaseException], alike: bool) -> str:
    many, at = len(found), f" at {where}" if where else ""
    if alike:
        return f"{f'{many} other {_many(what)}' if many > 1 else f'another {what}'} failed likewise{at}"
    who = f"{many} {_many(what)} have" if many > 1 else f"a {what} has"
    return f"{who} failed by {error_line(found[0])}{at}, and nobody had asked for that"


def are_same(found: Iterable[BaseException], chain: Iterable[BaseException]) -> bool:
    """Whether all of these are of one kind, and from one place, with one of the others."""
    known = {(type(each), at) for each in chain if (at := place(each))}
    return all((type(each), place(each)) in known for each in found)


def _many(what: str) -> str:
    """
    >>> _many(TASK), _many(FUTURE)
    ('tasks of asyncio', 'futures')
    """
    first, of, rest = what.partition(" of ")
    return f"{first}s{of}{rest}"


def place(error: BaseException) -> str:
    """The user's innermost line, and its function."""
    own = [each for each in places_of(error.__traceback__) if is_users(each[0].f_code.co_filename)]
    if not own:
        return ""
    frame, line = own[0]
    return f"{os.path.basename(frame.f_code.co_filename)}:{line} in {frame.f_code.co_qualname}"


def _of_tasks() -> Iterator[tuple[BaseException, str]]:
    """Of asyncio's tasks that are still there. It notes of each whether its exception was taken."""
    tasks: Any = sys.modules.get("asyncio.tasks")
    known: Any = getattr(tasks, "_scheduled_tasks", None) or getattr(tasks, "_all_tasks", None) or ()
    for task in list(known):
        error = getattr(task, "_exception", None)
        if isinstance(error, BaseException) and getattr(task, "_log_traceback", False):
            yield error, TASK


def _of_futures(frames: Iterable[FrameType]) -> Iterator[tuple[BaseException, str]]:
    """Of `concurrent.futures` that these frames' variables have."""
    module: Any = sys.modules.get("concurrent.futures._base")
    if module is None:
        return
    seen: set[int] = set()
    for frame in frames:
        for value in list(frame.f_locals.values()):
            for each in _within(value, DEPTH, seen):
                error = getattr(each, "_exception", None) if isinstance(each, module.Future) else None
                if isinstance(error, BaseException) and not _is_taken(error):
                    yield error, FUTURE


def _is_taken(error: BaseException) -> bool:
    """Whether somebody called `result()`: that raises it again, and it has gone through this line then."""
    return any(frame.f_code.co_name in ("result", "__get_result") and "concurrent" in frame.f_code.co_filename
               for frame, _ in places_of(error.__traceback__))  # fmt: skip


def _within(value: Any, depth: int, seen: set[int]) -> Iterator[Any]:
    if id(value) in seen or len(seen) >= PARTS or isinstance(value, int | float | str | bytes | type):
        return
    seen.add(id(value))
    yield value
    if not depth:
        return
    mapping = as_mapping(value)
    items = list(dict.values(mapping))[:ITEMS] if mapping is not None else as_items(value, ITEMS)
    inner = items if items is not None else [each for _, each in attributes(value)[:ITEMS]]
    for each in inner:
        yield from _within(each, depth - 1, seen)


__all__ = ["are_same", "place", "said"]
