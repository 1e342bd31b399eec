"""Workers of a `multiprocessing.Pool` that have ended: the pool starts others in their place, and what they were at
never comes back, so who waits for it waits for ever. Nothing of Python's tells of it.
"""

from __future__ import annotations

import functools
import signal
from typing import Any

from .imports import on_import

MOST = 50  # workers that are kept

_MARK = "__devkit_watches__"
_ended: list[tuple[int, int]] = []  # (pid, exit code) of workers of this process's pools, the oldest first


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
                _note(each)
        return cleaned

    setattr(join_exited, _MARK, True)
    pools._join_exited_workers = staticmethod(join_exited)


def _note(worker: Any) -> None:
    _ended.append((int(worker.pid), int(worker.exitcode)))
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
    """Those that have ended without the pool's wish."""
    if pool is None or getattr(pool, "_maxtasksperchild", None):
        return ""
    if not _ended:
        return ""
    pid, code = _ended[-1]
    more = f", and {len(_ended) - 1} before it" if len(_ended) > 1 else ""
    return f"a worker of the pool, pid {pid}, {_how(code)}{more}, and what it was at is lost"


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
