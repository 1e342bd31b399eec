"""Results of an `ActorPool` that come as they are ready, and do not say of which value each of them is."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from .imports import on_import
from .line_warnings import once

MOST = 2000  # values: of more it is not followed whose result comes next
_MARK = "__devkit_unordered__"
_BARE = ("int", "float", "bool", "str", "float64", "float32", "int64", "ndarray", "Tensor")


def watch() -> None:
    """Warns once of each line by which results that are bare numbers come in another order than their values."""
    on_import("ray.util.actor_pool", lambda module: _watch(module.ActorPool))


def _watch(kind: Any) -> None:
    original = kind.map_unordered
    if hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def map_unordered(self: Any, *arguments: Any, **options: Any) -> Any:
        return _followed(self, original(self, *arguments, **options))

    setattr(map_unordered, _MARK, True)
    kind.map_unordered = map_unordered


def _followed(pool: Any, results: Iterator[Any]) -> Iterator[Any]:
    order = sorted(_waiting(pool))  # the values have been submitted by now
    for place in itertools.count():
        result = list(itertools.islice(results, 1))
        if not result:
            return
        came = set(order) - _waiting(pool) if order else set()
        if place < len(order) and order[place] not in came and (kind := type(result[0]).__name__) in _BARE:
            _warn(place, kind)
            order = []  # that is known now
        yield result.pop()  # and keeps it no longer than the pool does


def _waiting(pool: Any) -> set[int]:
    """The numbers of the values whose results have not come; empty where there are too many, or it is another Ray's."""
    with suppress(Exception):
        begun, first = pool._index_to_future, pool._next_task_index
        if len(begun) + len(pool._pending_submits) <= MOST:
            return {*begun, *range(first, first + len(pool._pending_submits))}
    return set()


def _warn(place: int, kind: str) -> None:
    once(
        "map_unordered",
        f"ActorPool.map_unordered gives results as they are ready: no. {place + 1} here came before that of value "
        f"no. {place + 1}, and a bare {kind} does not tell whose it is. What takes them by the order of the values "
        "mixes them up; ActorPool.map keeps it",
        2,
    )


__all__ = ["watch"]
