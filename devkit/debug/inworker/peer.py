"""Whose the other end of a TCP connection is: proved by what the kernel says of both of its ends, or not at all.

A line of the kernel's table names a user, but not every line is to be trusted: once a socket is closed, its line stays
for a while and names user 0, whoever had it. So the other end is this user's only if

* both ends are established, which no socket is again once it is not, and the other one belongs to this user;
* a process that runs as this user, and that this one may look into, has that very socket open;
* the same lines still stand there afterwards, and our end is still established.

What was read from it before is then that process's: while our end is established, nobody else can be at the other.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
ESTABLISHED = 1
LOOKS = 2  # at a table from which other lines may be taken while it is read: so a line can be missed
MAPPED = bytes(10) + b"\xff\xff"  # what makes an IPv4 address one of IPv6

# hidden: of this user by the kernel's table, but of no process that this one can see: in another container, say.
Owner = Literal["ours", "hidden", "other"]


@dataclass(frozen=True)
class Line:
    """One end of a connection that is established, as the kernel's table has it."""

    uid: int
    inode: int


def owner(connection: socket.socket) -> Owner:
    """Whose process has the other end open. It holds for what was read before. Raises OSError when it is gone."""
    before = _other_end(connection)
    if before is None or before.uid != os.geteuid():
        return "other"
    if not _is_open_in_ours(before.inode):
        return "hidden"
    return "ours" if _other_end(connection) == before and _is_established(connection) else "other"


def may_be_ours(connection: socket.socket) -> bool:
    """Whether it is worth listening to it: it proves nothing. Raises OSError when the other end is gone."""
    found = _other_end(connection)
    return found is not None and found.uid == os.geteuid()


def _is_established(connection: socket.socket) -> bool:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == ESTABLISHED


def _other_end(connection: socket.socket) -> Line | None:
    """The other end, if both stand in the table as established; ours is known there by the inode that it has here."""
    inode = os.fstat(connection.fileno()).st_ino
    for _ in range(LOOKS):
        if not _is_established(connection):
            break
        theirs, ours = _forms(connection.getpeername()), _forms(connection.getsockname())
        lines: dict[str, Line] = {}
        for table in TABLES:  # a long time each on a large machine: the second is rarely needed
            lines |= dict(_established(table))
            own, other = _find(lines, ours, theirs), _find(lines, theirs, ours)
            if own is not None and own.inode == inode and other is not None and other.inode:
                return other
    return None


def _find(lines: dict[str, Line], near: list[str], far: list[str]) -> Line | None:
    return next((lines[ends] for ends in map(" ".join, zip(near, far, strict=True)) if ends in lines), None)


def _established(table: Path) -> Iterator[tuple[str, Line]]:
    """ "local remote" as the kernel prints them -> the line; nothing where there is no such table."""
    with suppress(FileNotFoundError):
        for line in table.read_text().splitlines()[1:]:
            _, near, far, state, _, _, _, uid, _, inode, *_ = line.split()
            if int(state, 16) == ESTABLISHED:
                yield f"{near} {far}", Line(int(uid), int(inode))


def _forms(address: tuple[str, int]) -> list[str]:
    """How the kernel prints an address and its port; either end of an IPv4 connection may be a socket of IPv6.

    >>> _forms(("127.0.0.1", 80)) == _forms(("::ffff:127.0.0.1", 80, 0, 0))
    True
    """
    host, port = address[:2]
    if ":" in host:
        packed = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
    else:
        packed = MAPPED + socket.inet_aton(host)
    parts = [packed, packed.removeprefix(MAPPED)] if packed.startswith(MAPPED) else [packed]
    return [f"{_words(part)}:{port:04X}" for part in parts]


def _words(packed: bytes) -> str:
    """Words of 32 bits, each in this machine's order of bytes."""
    words = (packed[at : at + 4] for at in range(0, len(packed), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)


def _is_open_in_ours(inode: int) -> bool:
    """Whether a process that runs as this user has the socket open. The kernel shows a process's files to equals."""
    link, uid = f"socket:[{inode}]", os.geteuid()
    for process in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # it has ended, or is not to be looked into: then it vouches for nobody
            if _runs_as(process, uid) and link in _files(process) and _runs_as(process, uid):
                return True
    return False


def _files(process: str) -> Iterator[str]:
    folder = f"/proc/{process}/fd"
    for name in os.listdir(folder):
        with suppress(FileNotFoundError):  # closed just now
            yield os.readlink(f"{folder}/{name}")


def _runs_as(process: str, uid: int) -> bool:
    """By all four of its user ids: a program that runs with somebody else's rights has its caller's among them."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("Uid:"):
            return set(map(int, line.split()[1:])) == {uid}
    return False
