"""Which stops are meant: `all`, ids, ranks in slice notation, a role, or a role with ranks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from devkit.debug.inworker.records import StopRecord
from devkit.debug.naming import Who, count, label, nearest
from devkit.debug.protocols import Hub
from devkit.errors import UsageError

ALL = "all"
RANKS_HINT = 'ranks are written like "1", "0,2" or "2:6"'
SLICE = re.compile(r"^(\d*):(\d*)(?::(\d*))?$")
WITH_RANKS = re.compile(r"^(?P<role>[^\[\],]+)\[(?P<ranks>[^\[\]]*)\]$")
RANKS_ONLY = re.compile(r"^[\d:,\s]+$")


def counted(stops: Sequence[StopRecord]) -> str:
    """How many are stopped, in a word that fits them: ranks, processes, or threads of one process."""
    ranks = {(stop.role, stop.rank) for stop in stops if stop.rank is not None}
    processes = {stop.worker_id for stop in stops}
    if len(ranks) == len(stops):
        return count(len(stops), "rank")
    return count(len(stops), "process" if len(processes) == len(stops) else "thread")


WHOLE_ID = re.compile(r"^[0-9a-f]{4,}(?:-\d+)+$")


def ask_what_became_of(hub: Hub, stops: Sequence[StopRecord], words: Iterable[str]) -> None:
    """For the whole id of a stop that is over: the hub refuses it, and says why it is over."""
    known = {stop.id for stop in stops}
    for word in words:
        if WHOLE_ID.match(word) and word not in known:
            hub.call("continue", ids=[word])


def rank_matcher(text: str) -> Callable[[int], bool]:
    """Whether a rank is among those that `text` lists.

    >>> wanted = rank_matcher("0,2:4,8:")
    >>> [rank for rank in range(10) if wanted(rank)]
    [0, 2, 3, 8, 9]
    """
    parts = [_part(item.strip()) for item in text.split(",")]
    return lambda rank: any(part(rank) for part in parts)


def _part(item: str) -> Callable[[int], bool]:
    if item.isdecimal():
        return lambda rank: rank == int(item)
    found = SLICE.match(item)
    if found is None or found[3] == "0":
        raise UsageError(f"{item!r} is not a rank", hint=RANKS_HINT)
    start, stop, step = int(found[1] or 0), found[2], int(found[3] or 1)
    return lambda rank: rank >= start and (rank - start) % step == 0 and (not stop or rank < int(stop))


def select(stops: Sequence[StopRecord], target: str) -> list[StopRecord]:
    """The stops that `target` means. Raises UsageError when it means none of them."""
    target = target.strip() or ALL
    found = _find(stops, target)
    if not found:
        raise UsageError(f"no stopped rank matches {target!r}", hint=_what_there_is(stops))
    return found


def _find(stops: Sequence[StopRecord], target: str) -> list[StopRecord]:
    if target == ALL:
        return list(stops)
    words = [word.strip() for word in target.split(",") if word.strip()]
    if all(any(stop.id == word for stop in stops) for word in words):
        return [stop for stop in stops if stop.id in words]
    if RANKS_ONLY.match(target):
        return _of_ranks(stops, target)
    with_ranks = WITH_RANKS.match(target)
    if with_ranks:
        return _of_ranks([stop for stop in stops if with_ranks["role"] in (stop.role, stop.actor)], with_ranks["ranks"])
    named = [stop for stop in stops if target in (stop.role, stop.actor)]
    return named or _of_ids(stops, words)


def _of_ranks(stops: Sequence[StopRecord], ranks: str) -> list[StopRecord]:
    wanted = rank_matcher(ranks)
    return [stop for stop in stops if stop.rank is not None and wanted(stop.rank)]


def _of_ids(stops: Sequence[StopRecord], words: Sequence[str]) -> list[StopRecord]:
    ids = [stop.id for stop in stops]
    if not all(any(known.startswith(word) for known in ids) for word in words):
        return []
    wanted = {find_id(word, ids, "stop") for word in words}
    return [stop for stop in stops if stop.id in wanted]


def find_id(wanted: str, known: Sequence[str], noun: str) -> str:
    """The one id that `wanted` is, or begins. Raises UsageError, with the nearest ids, when there is no such one.

    >>> find_id("a1", ["a1b2", "c3d4"], "crash")
    'a1b2'
    """
    if wanted in known:
        return wanted
    matching = [candidate for candidate in known if candidate.startswith(wanted)] if wanted else []
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise UsageError(f"more than one {noun} starts with {wanted!r}", hint=f"choose: {', '.join(matching[:5])}")
    hint = f"nearest: {', '.join(nearest(wanted, known))}" if known else f"there is no {noun}"
    raise UsageError(f"no {noun} has the id {wanted!r}", hint=hint)


def _what_there_is(stops: Sequence[StopRecord]) -> str:
    if not stops:
        return "nothing is stopped; pause ranks with devkit break FILE:LINE"
    named = [f"{stop.id} ({label(Who(stop.role, stop.rank, stop.id))})" for stop in stops[:4]]
    return f"stopped: {', '.join(named)}{', ...' if len(stops) > 4 else ''}; devkit ps shows all"
