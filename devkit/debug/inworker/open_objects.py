"""Where a program that ran out of file descriptors keeps what is open: sockets and files that its variables lead to.

Read without running the program's own code; only objects of Python's own types are asked for their number.
"""

from __future__ import annotations

import io
import socket
from collections import Counter
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

from .insides import as_items, as_mapping, attributes
from .sources import is_users

MOST = 20_000  # values that are looked at
DEPTH = 5
MANY = 3  # open ones in one place that are told
LINES = 3
_CLOSED = frozenset({"closed", "_closed", "is_closed"})  # names by which an object says that it is
_FILES = (io.FileIO, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.TextIOWrapper)
_SKIPPED = (str, bytes, bytearray, int, float, complex, bool, type(None), type)


def said(frames: Iterable[FrameType]) -> list[str]:
    """["52 open at self.sessions[...].agent, each of an object that has closed = True"]; the most first."""
    found, closed = Counter[str](), Counter[str]()
    for place, owner in _open(frames):
        found[place] += 1
        closed[place] += owner
    return [_line(place, number, closed[place]) for place, number in found.most_common(LINES) if number >= MANY]


def _line(place: str, number: int, closed: int) -> str:
    of = "" if not closed else ", each of an object" if closed == number else f", {closed} of them of objects"
    return f"{number} open at {place}" + (f"{of} that {'has' if closed == number else 'have'} closed = True" * bool(of))


def _open(frames: Iterable[FrameType]) -> Iterator[tuple[str, bool]]:
    """(where, whether the object that keeps it says that it is closed) of each open one, breadth first."""
    known: set[int] = set()
    waiting = [
        (name, value, False, 0)
        for frame in frames
        if is_users(frame.f_code.co_filename)
        for name, value in list(frame.f_locals.items())
    ]
    at = 0
    while at < len(waiting) and at < MOST:
        place, value, closed, depth = waiting[at]
        at += 1
        if issubclass(type(value), _SKIPPED) or id(value) in known:
            continue
        known.add(id(value))
        if (is_open := _is_open(value)) is not None:
            if is_open:
                yield place, closed
        elif depth < DEPTH:
            waiting += [(inner, each, own, depth + 1) for inner, each, own in _parts(place, value)]


def _is_open(value: Any) -> bool | None:
    """None: it is nothing that is open or closed; a file of the program's own class could only say so itself."""
    kind = type(value)
    try:
        if issubclass(kind, socket.socket):
            return int(socket.socket.fileno(value)) >= 0
        return kind.fileno(value) >= 0 if kind in _FILES else None
    except (OSError, ValueError):
        return False


def _parts(place: str, value: Any) -> Iterator[tuple[str, Any, bool]]:
    """What is in it, and whether it says that it is closed."""
    if (mapping := as_mapping(value)) is not None:
        yield from ((f"{place}[...]", each, False) for each in list(dict.values(mapping)))
    elif (items := as_items(value, MOST)) is not None:
        yield from ((f"{place}[...]", each, False) for each in items)
    else:
        own = attributes(value)
        closed = any(name in _CLOSED and each is True for name, each in own)
        yield from ((f"{place}.{name}", each, closed) for name, each in own)


__all__ = ["said"]
