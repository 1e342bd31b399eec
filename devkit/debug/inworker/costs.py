"""What it costs a process to be looked at: seconds and bytes that are ours, and no work of the program."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_MOVED = ("rchar:", "wchar:", "read_bytes:", "write_bytes:")  # the last two also when a file is mapped into memory
_seconds = 0.0
_bytes = 0
_begun: dict[int, tuple[float, int]] = {}  # by thread that looks: what it had computed and moved before
_children: set[int] = set()
_asked: dict[int, tuple[float, int]] = {}  # forked children


@contextmanager
def counted() -> Iterator[None]:
    """What the calling thread computes, reads and writes meanwhile is ours."""
    global _seconds, _bytes
    mine = threading.get_ident()
    _begun[mine] = time.thread_time(), _of_thread()
    try:
        yield
    finally:
        more = _since(mine)
        del _begun[mine]
        _seconds, _bytes = _seconds + more[0], _bytes + more[1]


def seconds() -> float:
    """Until now, by those that are done and by the calling thread.

    >>> before = seconds()
    >>> with counted():
    ...     _ = sum(range(1_000_000))
    ...     meanwhile = seconds()
    >>> before < meanwhile <= seconds()
    True
    """
    return _seconds + _since(threading.get_ident())[0]


def moved() -> int:
    """Bytes, as `seconds`."""
    return _bytes + _since(threading.get_ident())[1]


def _since(thread: int) -> tuple[float, int]:
    """Of the calling thread."""
    begun = _begun.get(thread)
    return (0.0, 0) if begun is None else (time.thread_time() - begun[0], _of_thread() - begun[1])


def _of_thread() -> int:
    return bytes_in("/proc/thread-self/io")


def bytes_in(path: str) -> int:
    """That a process or a thread has read and written, by the kernel's table of that; 0: there is none."""
    try:
        with open(path) as file:
            return sum(int(line.split()[1]) for line in file if line.startswith(_MOVED))
    except (OSError, ValueError):
        return 0


def add_bytes(count: int) -> None:
    """What a program that looks for us has read and written, before the kernel adds it to this process."""
    global _bytes
    _bytes += count


def note_asked(pid: int, computed: float, read: int) -> None:
    """What it has cost a forked child until now to be asked, as it says."""
    _asked[pid] = computed, read


def of_asked(pid: int) -> tuple[float, int]:
    """Seconds, and bytes."""
    return _asked.get(pid, (0.0, 0))


def add_child(pid: int) -> None:
    """A process that this one has started for us."""
    _children.add(pid)


def remove_child(pid: int) -> None:
    _children.discard(pid)


def is_our_child(pid: int) -> bool:
    return pid in _children


def _born() -> None:
    """In a forked child: what its parent has spent is not its own."""
    global _seconds, _bytes
    _seconds, _bytes = 0.0, 0
    for known in (_begun, _children, _asked):
        known.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_born)
