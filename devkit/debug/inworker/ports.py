"""Who has a TCP port that the program wanted: "Address already in use" says the port at most. Linux only."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from . import kernel_view
from .insides import attributes

MOST = 3  # ports of one error
FRAMES = 6  # the innermost ones
SECONDS = 0.5  # to look for who has them
COMMAND = 80  # characters
_NUMBER = re.compile(r"(?<![\d.])\d{2,5}(?![\d.])")
_SAID = re.compile(r"address (is )?already in use|EADDRINUSE", re.IGNORECASE)
_LISTENS = "0A"

Document = dict[str, Any]


def is_wanted_twice(error: BaseException) -> bool:
    """Whether an error is about an address that somebody else has.

    >>> is_wanted_twice(OSError(errno.EADDRINUSE, "no")), is_wanted_twice(RuntimeError("Address already in use (98)"))
    (True, True)
    >>> is_wanted_twice(OSError(errno.ENOENT, "no"))
    False
    """
    return (isinstance(error, OSError) and error.errno == errno.EADDRINUSE) or bool(_SAID.search(_text(error)))


def holders(errors: Iterable[BaseException]) -> list[Document]:
    """[{"port", "pid", "command", "inherited"}] of what these errors name, or the variables where they were raised.

    pid 0: a process of another user; "inherited": one that this process has started, and that has kept its socket.
    """
    errors, listening = list(errors), list(_listening())
    named = {int(each) for error in errors for each in _NUMBER.findall(_text(error))}
    wanted = {inode: port for inode, port in listening if port in named}
    if not wanted:
        near = {port for error in errors for port in _near(error)}
        wanted = {inode: port for inode, port in listening if port in near}
    if not wanted:
        return []
    owners = _owners(set(wanted))
    found = {port: owners.get(inode, 0) for inode, port in wanted.items()}
    return [_holder(port, pid) for port, pid in sorted(found.items())[:MOST]]


def _holder(port: int, pid: int) -> Document:
    inherited = {"inherited": True} if pid and _parent(pid) == os.getpid() else {}
    return {"port": port, "pid": pid, "command": command(pid), **inherited}


def _parent(pid: int) -> int:
    lines = kernel_view.text(f"/proc/{pid}/status").splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("PPid:")), 0)


def _near(error: BaseException) -> Iterator[int]:
    """What the frames that raised it have as a port: `bind` itself says only that it is in use."""
    places, trace = [], error.__traceback__
    while trace is not None:
        places.append(trace.tb_frame)
        trace = trace.tb_next
    for frame in places[-FRAMES:]:
        known = list(frame.f_locals.items())
        if "self" in frame.f_locals:
            known += attributes(frame.f_locals["self"])
        for name, value in known:
            if type(value) is int and "port" in name.lower():
                yield value
            elif type(value) is tuple and len(value) > 1 and type(value[0]) is str and type(value[1]) is int:
                yield value[1]


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - the program's own text of it may fail
        return ""


def _listening() -> Iterator[tuple[str, int]]:
    """Inode and port of each socket that waits for connections."""
    for table in ("tcp", "tcp6"):
        for line in kernel_view.text(f"/proc/self/net/{table}").splitlines()[1:]:
            parts = line.split()
            if len(parts) > 9 and parts[3] == _LISTENS:
                yield parts[9], int(parts[1].rpartition(":")[2], 16)


def _owners(inodes: set[str]) -> dict[str, int]:
    """By inode, the process that has that socket; of several the oldest, which has handed it on."""
    found: dict[str, int] = {}
    end = time.monotonic() + SECONDS
    for pid in sorted(int(each) for each in os.listdir("/proc") if each.isdigit()):
        if time.monotonic() > end or len(found) == len(inodes):
            break
        with suppress(OSError):  # another user's, or it has ended
            for number in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    name = os.readlink(f"/proc/{pid}/fd/{number}")
                    if name.startswith("socket:[") and name[8:-1] in inodes:
                        found.setdefault(name[8:-1], pid)
    return found


def command(pid: int) -> str:
    from .redaction import scrub_command

    words = kernel_view.text(f"/proc/{pid}/cmdline").rstrip("\0").split("\0") if pid else []
    return " ".join(scrub_command(words, COMMAND).split())  # a program may be an argument
