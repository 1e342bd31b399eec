"""Actors that did not answer in time, or whose queue is full: where each of them was when the error had come."""

from __future__ import annotations

import linecache
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from .core import asking
from .lineage import references, tasks_of
from .ownership import ACTOR, NO_ACTOR, TASK
from .redaction import scrub
from .sources import is_users

TIMED_OUT = "GetTimeoutError"
_FULL = "PendingCallsLimitExceeded"
_NAMED = re.compile(r"\bActor\([\w.]{1,200}, ([0-9a-f]{32})\)")
_AT_REST = "in no call of the program"
MOST_ACTORS = 4
MOST_PLACES = 3  # of one actor: a line for each thread or coroutine would be too many

Document = dict[str, Any]


def late(error: BaseException) -> tuple[str, ...]:
    """The tasks whose results an error has waited for in vain: others of the same `ray.get` may have come in time."""
    refs = {ref: None for ref in references(error) if hasattr(ref, "task_id")}
    with asking() as is_open, suppress(Exception):  # a reference of another Ray's: nothing is known then
        wait: Any = getattr(sys.modules.get("ray"), "wait", None)
        if is_open and wait is not None and refs:
            _, left = wait(list(refs), num_returns=len(refs), timeout=0, fetch_local=False)
            return tasks_of(left)
    return ()


def actors_of_tasks(tasks: Sequence[str]) -> list[str]:
    """The actors in whose calls these are, by what a task's id has of them; Ray's other tasks have none.

    >>> actors_of_tasks(["0" * 16 + "3375d36a50cd3f90f6e1c76501000000", "1" * 16 + "f" * 24 + "01000000"])
    ['3375d36a50cd3f90f6e1c76501000000']
    """
    found = [task[ACTOR:TASK] for task in tasks]
    return list(dict.fromkeys(each for each in found if each and not each.startswith(NO_ACTOR)))[:MOST_ACTORS]


def actors_of(document: Document) -> list[str]:
    """The actors that a crash is about, if it is one of these: those that it waited for, or which has no room left."""
    if document.get("awaits"):
        return list(map(str, document["awaits"]))
    said = document["exception"]
    named = _NAMED.search(str(said["message"])) if said["type"] == _FULL else None
    return [named[1]] if named else []


def where(actors: Sequence[str]) -> Document:
    """Of the process of one of these actors: {"places": ["file.py:3 in Pool.get: code"]}, of those of its threads and
    coroutines that are in the program's code, innermost frames; of another process nothing.
    """
    from .stacks import all_threads
    from .waits import actor

    if actor()["actor_id"] not in actors:
        return {}
    innermost = (next((each for each in thread["frames"] if is_users(each["file"])), None) for thread in all_threads())
    return {"places": list(dict.fromkeys(_told(each) for each in innermost if each is not None))}


def _told(frame: Document) -> str:
    code = scrub(linecache.getline(frame["file"], frame["line"]).strip())
    place = f"{os.path.basename(frame['file'])}:{frame['line']} in {frame['function']}"
    return f"{place}: {code}" if code else place


def said(document: Document, answers: Sequence[tuple[Document, Document]]) -> list[str]:
    """A line for each actor that was asked.

    Args:
        answers: the identity of a worker, and `where` of it or {"error"}.

    >>> crash, who = {"exception": {"type": "GetTimeoutError", "message": ""}}, {"role": "Pool", "pid": 7}
    >>> said(crash, [(who, {"places": ["pool.py:9 in Pool.get: self.full.wait()"]})])
    ['Pool pid 7, which did not answer in time, was then at pool.py:9 in Pool.get: self.full.wait()']
    >>> said(crash, [(who, {"places": []}), (who, {}), (who, {"error": "no answer within 2 s"})])
    ['Pool pid 7, which did not answer in time, was then in no call of the program']
    """
    how = "whose queue is full" if document["exception"]["type"] == _FULL else "which did not answer in time"
    return list(_lines(how, answers))


def _lines(how: str, answers: Sequence[tuple[Document, Document]]) -> Iterator[str]:
    for who, answer in answers:
        if "places" in answer:
            places = list(map(str, answer["places"]))
            more = f" and {len(places) - MOST_PLACES} more" if len(places) > MOST_PLACES else ""
            at = "; ".join(places[:MOST_PLACES])
            yield f"{who['role']} pid {who['pid']}, {how}, was then {f'at {at}{more}' if at else _AT_REST}"


__all__ = ["TIMED_OUT", "actors_of", "actors_of_tasks", "late", "said", "where"]
