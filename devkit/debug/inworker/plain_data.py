"""Plain data as texts by the way to each part of it, so that two states of it can be compared, now and elsewhere.

Only what is surely the same or another counts: of objects, of what is too long, and of secrets nothing is known.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from .expressions import VALUE, short
from .redaction import redact, scrub_start

MOST = 200  # parts that are kept
DEPTH = 6
LONGEST = 1000  # characters of a part
ITEMS = 16  # of a list that is kept as one part
_PLAIN = (str, int, float, bool, type(None))
_LISTS = (list, tuple)
_SETS = (set, frozenset)

Parts = dict[str, str | None]  # "['lr']" -> "0.1"; None: there is something of which nothing is known


def parts(value: Any, name: str) -> Parts:
    """Of the value of this name. No code of the program's is run."""
    found: Parts = {}
    for way, text in _parts(value, name, "", DEPTH):
        if len(found) >= MOST:
            break
        found[way] = text
    return found


def _parts(value: Any, name: str, way: str, depth: int) -> Iterator[tuple[str, str | None]]:
    kind = type(value)
    if kind in _PLAIN:
        yield way, _text(name, value)
    elif kind in _SETS and _is_small(value):
        yield way, f"{{{', '.join(sorted(map(repr, value)))}}}" if value else "set()"
    elif kind in _LISTS and _is_small(value):
        text = repr(value)
        yield way, text if len(text) <= LONGEST and redact(name, value) is value else None
    elif kind in (*_LISTS, dict) and depth and value:
        items = list(islice(value.items() if kind is dict else enumerate(value), MOST))  # a dataset's are millions
        for key, each in items:
            if type(key) in _PLAIN:
                yield from _parts(each, str(key) if kind is dict else name, f"{way}[{key!r}]", depth - 1)
    else:
        yield way, "{}" if kind is dict and not value else None


def _is_small(values: Any) -> bool:
    """Whether it is little enough to be written out as a whole."""
    plain = len(values) <= ITEMS and all(type(each) in _PLAIN for each in values)
    return plain and sum(len(each) for each in values if type(each) is str) <= LONGEST


def _text(name: str, value: Any) -> str | None:
    if (type(value) is str and len(value) > LONGEST) or redact(name, value) is not value:
        return None
    return repr(value)


def differing(before: Mapping[str, str | None], now: Mapping[str, str | None]) -> list[tuple[str, str, str]]:
    """(way, what it was, what it is) of each part that is another, in both of them known.

    >>> differing(parts({"lr": 1, "steps": 3}, "config"), parts({"lr": 2, "steps": 3.0}, "config"))
    [("['lr']", '1', '2')]
    """
    both = ((way, before[way], now[way]) for way in before if way in now)
    return [
        (way, was, text) for way, was, text in both if was is not None and text is not None and not _same(was, text)
    ]


def _same(first: str, second: str) -> bool:
    if first == second:
        return True
    try:
        values = [ast.literal_eval(each) for each in (first, second)]
    except (ValueError, SyntaxError):  # as of infinity
        return False
    one, other = (list(each) if isinstance(each, tuple) else each for each in values)
    return bool(one == other)


def shown(text: str) -> str:
    """A part as it may be seen."""
    return short(scrub_start(text, VALUE, code=True), VALUE)


__all__ = ["Parts", "differing", "parts", "shown"]
