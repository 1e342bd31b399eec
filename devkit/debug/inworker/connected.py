"""What a process has that others may wait for: ends of pipes, TCP addresses, locks of files.

Linux only; elsewhere nothing is known.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from . import kernel_view

Document = dict[str, Any]

MOST = 200  # of each kind
_OPEN = ("01", "08", "0A")  # states of a connection: established, closed by the other end only, listening
_MODES = ("r", "w", "rw")
_NO_FILES = ("/dev/", "/proc/", "/memfd:")


def of_process(pid: int | str = "self") -> Document:
    """{"pipes": {inode: "r", "w" or "rw"}, "sockets": its TCP addresses, "locks": files that are locked through it}.

    >>> reader, writer = os.pipe()
    >>> of_process()["pipes"][str(os.fstat(reader).st_ino)]  # both ends are here
    'rw'
    """
    pipes: dict[str, str] = {}
    inodes: set[str] = set()
    locks: list[str] = []
    for number in descriptors(pid):
        name = link(pid, number)
        if name.startswith("/") and not name.startswith(_NO_FILES) and _is_locked(pid, number):
            locks.append(name)
        if name.startswith("pipe:["):
            inode, how = name[6:-1], mode(pid, number)
            pipes[inode] = how if pipes.get(inode, how) == how else "rw"
        elif name.startswith("socket:["):
            inodes.add(name[8:-1])
    sockets = _addresses(pid, inodes) if inodes else []
    return {"pipes": dict(sorted(pipes.items())[:MOST]), "sockets": sockets[:MOST], "locks": sorted(locks)[:MOST]}


def descriptors(pid: int | str) -> list[str]:
    with suppress(OSError):
        return os.listdir(f"/proc/{pid}/fd")
    return []


def link(pid: int | str, number: str) -> str:
    with suppress(OSError):  # it was closed meanwhile
        return os.readlink(f"/proc/{pid}/fd/{number}")
    return ""


def mode(pid: int | str, number: str) -> str:
    lines = kernel_view.text(f"/proc/{pid}/fdinfo/{number}").splitlines()
    flags = next((int(line.split()[1], 8) for line in lines if line.startswith("flags:")), 0)
    return _MODES[min(flags & os.O_ACCMODE, 2)]


def _is_locked(pid: int | str, number: str) -> bool:
    """Whether a lock is held through this open file, also one that a process which it was forked from has taken."""
    return "\nlock:" in kernel_view.text(f"/proc/{pid}/fdinfo/{number}")


def _addresses(pid: int | str, inodes: set[str]) -> list[str]:
    return sorted(
        {
            kernel_view.address(parts[1])
            for table in ("tcp", "tcp6")
            for line in kernel_view.text(f"/proc/{pid}/net/{table}").splitlines()[1:]
            if len(parts := line.split()) > 9 and parts[3] in _OPEN and parts[9] in inodes
        }
    )
