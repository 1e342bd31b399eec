"""Workers of a `multiprocessing.Pool` that have ended: the pool starts others in their place, and what they were at
never comes back, so who waits for it waits for ever. Nothing of Python's tells of it.
"""

from __future__ import annotations

import functools
import signal
from typing import Any, NamedTuple

from .imports import on_import

MOST = 50  # workers that are kept


class _Ended(NamedTuple):
    """A worker that has ended."""

    workers: list[Any]  # the pool's own list of those that it has, by which it is known
    pid: int
    code: int


_MARK = "__devkit_watches__"
_ended: list[_Ended] = []  # the oldest first


def watch() -> None:
    """From now on, of all pools of this process."""
    on_import("multiprocessing.pool", lambda module: _watch(module.Pool))


def _watch(pools: Any) -> None:
    replaces = getattr(pools, "_join_exited_workers", None)
    if replaces is None or hasattr(replaces, _MARK):
        return

    @functools.wraps(replaces)
    def join_exited(workers: list[Any]) -> Any:
        before = list(workers)
        cleaned = replaces(workers)
        for each in before:
            if each not in workers:  # the pool has found it ended, and no longer has it
                _note(workers, each)
        return cleaned

    setattr(join_exited, _MARK, True)
    pools._join_exited_workers = staticmethod(join_exited)


def _note(workers: list[Any], worker: Any) -> None:
    _ended.append(_Ended(workers, int(worker.pid), int(worker.exitcode)))
    del _ended[:-MOST]


def result(it: Any) -> str:
    """What a result of a pool is, how much of it is missing, and which workers have ended that may have had that."""
    left = getattr(it, "_number_left", None)
    chunks = f"{left} of {_chunks(it)} chunks of a multiprocessing.Pool's map" if left else ""
    what = chunks or "a result of a multiprocessing.Pool"
    lost = _lost(getattr(it, "_pool", None))
    return f"{what}; {lost}" if lost else what


def _chunks(it: Any) -> int:
    size = int(it._chunksize)
    return -(-len(it._value) // size)


def _lost(pool: Any) -> str:
    """Those of this pool that have ended. One that is closed, too, lets no worker go before every result has come."""
    if pool is None or getattr(pool, "_maxtasksperchild", None):
        return ""
    found = [each for each in _ended if each.workers is pool._pool]
    if not found:
        return ""
    more = f", and {len(found) - 1} before it" if len(found) > 1 else ""
    who = f"a worker of the pool, pid {found[-1].pid}, {_how(found[-1].code)}{more}"
    return f"{who}, and what it was at, if anything, is lost"


def _how(code: int) -> str:
    """
    >>> _how(1), _how(-9)
    ('ended with exit code 1', 'was ended by SIGKILL')
    """
    try:
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    except ValueError:
        return f"was ended by signal {-code}"


__all__ = ["result", "watch"]
