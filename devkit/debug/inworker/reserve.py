"""File descriptors that are kept for the moment when the program has none left: its crash must still be written.

Reading a source line, loading a module and writing a file each need some, and one of the program's own may have been
the last. Then, too, what is open is what there is to say.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

OURS = "devkit's"  # its own, among what is open
KEPT = 8  # the folders above a snapshot, the file, and a module that is loaded meanwhile
NEARLY = 0.95  # of the descriptors that a process may have
MANY = 20  # files of one folder are named by that
OFTEN = 3  # a file that is open so many times is named
_KINDS = {stat.S_IFREG: "file", stat.S_IFIFO: "pipe", stat.S_IFDIR: "folder", stat.S_IFCHR: "device"}
_EXHAUSTED = (errno.EMFILE, errno.ENFILE)

_held: list[int] = []
_mine: tuple[int, int] | None = None  # the device and the number of the file that all of them are of
_lock = threading.Lock()


def _reset() -> None:
    """A forked child has none of its parent's threads, and the lock may be held by one of them."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_reset)


def hold() -> None:
    """As many as can be had, of a file that nobody else has; none where the system knows no such files."""
    global _mine
    with _lock, suppress(OSError, AttributeError):
        while len(_held) < KEPT:
            own = _held[0] if _held else None
            _held.append(os.memfd_create("devkit", os.MFD_CLOEXEC) if own is None else os.dup(own))
        _mine = _file_of(_held[0])


def _file_of(number: int) -> tuple[int, int]:
    info = os.fstat(number)
    return info.st_dev, info.st_ino


@contextmanager
def lent() -> Iterator[int]:
    """So many. Whatever is done here may use them; afterwards they are kept again, as far as any are left then."""
    with _lock:
        known, _held[:] = list(_held), []
    freed = sum(map(_close, known))
    try:
        yield freed
    finally:
        if known:
            hold()


def _close(number: int) -> bool:
    """Not what has the number now, where the program has closed what it never opened, as a daemon does."""
    with suppress(OSError):
        if _file_of(number) == _mine:
            os.close(number)
            return True
    return False


def is_exhausted(error: BaseException) -> bool:
    """
    >>> is_exhausted(OSError(24, "Too many open files")), is_exhausted(OSError(2, "No such file"))
    (True, False)
    """
    return isinstance(error, OSError) and error.errno in _EXHAUSTED


def is_nearly_exhausted(lent_now: int = 0) -> bool:
    """Whether the program has next to none left: what fails then may say something else, if an error was swallowed."""
    import resource

    return len(os.listdir("/proc/self/fd")) + lent_now >= NEARLY * resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def what_is_open(lent_now: int = 0) -> dict[str, Any]:
    """Of this process, now: {"open", "limit", "kinds": {"Unix socket": 190}, "often": {"/data/train.bin": 40},
    "folders": {"/tmp": 480}}.

    `lent_now` of those that are kept are not open at this moment.
    """
    import resource

    numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    kinds, files = Counter[str](), Counter[str]()
    for each in numbers:
        with suppress(OSError):  # the one of the listing itself
            kind = _kind(each)
            kinds[kind] += 1
            if kind == "file":
                files[os.readlink(f"/proc/self/fd/{each}")] += 1
    kinds[OURS] += lent_now
    often = {name: count for name, count in files.most_common(3) if count >= OFTEN}
    folders = Counter(os.path.dirname(name) for name in files.elements())
    many = {
        name: count
        for name, count in folders.most_common(1)
        if count >= MANY and name not in map(os.path.dirname, often)
    }
    kinds = +kinds
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return {"open": kinds.total(), "limit": limit, "kinds": dict(kinds.most_common()), "often": often, "folders": many}


def _kind(number: int) -> str:
    mode = os.fstat(number).st_mode
    if stat.S_ISSOCK(mode):
        return f"{_family(number)}socket"
    if name := _KINDS.get(stat.S_IFMT(mode)):
        return name
    return os.readlink(f"/proc/self/fd/{number}").removeprefix("anon_inode:").strip("[]")  # eventpoll, eventfd


def _family(number: int) -> str:
    import socket

    seen = socket.socket(fileno=number)
    seen.detach()  # it is the program's, and stays open
    return {socket.AF_UNIX: "Unix ", socket.AF_INET: "TCP ", socket.AF_INET6: "TCP "}.get(seen.family, "")
