"""What Ray says at length, in one sentence: an exception as it is listed and headed. Pure.

The whole text stays in the snapshot; `devkit crashes show --all` has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_UNPICKLED = re.compile(r"(Could not serialize the [^\n]{1,300}?):\n.*?FAIL serialization: ([^\n]{1,300})", re.DOTALL)
# Ray's memory monitor, since Ray 2.5x: what was used, what may be; before that in other words.
_MONITOR = re.compile(r"killed due to the node running low on memory")
_OVER = re.compile(r"Memory usage (\d+)B exceeded threshold of (\d+)B \(([\d.]+%) of (\d+)B limit\)")
_OVER_BEFORE = re.compile(
    r"was ([\d.]+)GB / ([\d.]+)GB \([\d.]+\), which exceeds the memory usage threshold of (\d(?:\.\d+)?)"
)
_USERS = re.compile(r"memory users:\s+PID\s+MEM\(GB\)\s+COMMAND\s+(.*)", re.DOTALL)
_USER = re.compile(r"(\d+)\s+(\d+\.\d\d)\s+(\S.*?)(?=\s+\d+\s+\d+\.\d\d\s|\s*$)", re.DOTALL)
MOST_USERS, WORTH_GIB, COMMAND = 3, 0.1, 40


@dataclass(frozen=True)
class Brief:
    """An exception in few words."""

    type: str
    message: str

    @property
    def said(self) -> str:
        """In one line.

        >>> Brief("ValueError", "no such\\n  word").said, Brief("KeyError", "").said
        ('ValueError: no such word', 'KeyError')
        """
        message = " ".join(self.message.split())
        return f"{self.type}: {message}" if message else self.type


def brief(kind: str, message: str) -> Brief:
    """Of whatever is not known here, what was given.

    >>> brief("ValueError", "no")
    Brief(type='ValueError', message='no')
    """
    if found := _UNPICKLED.search(message):
        return Brief(kind, f"{found[1]}: {found[2]}")
    if _MONITOR.search(message) or _OVER_BEFORE.search(message):
        return Brief(kind, "; ".join(["killed by Ray's memory monitor", *_of_monitor(message)]))
    return Brief(kind, message)


def _of_monitor(message: str) -> Iterator[str]:
    """How much the node used of what it may, and who used most of it, as far as the text says."""
    if found := _OVER.search(message):
        used, allowed, limit = (int(found[at]) / 2**30 for at in (1, 2, 4))
        share = f"{found[3].removesuffix('%')} % of {limit:.1f} GiB"
        yield f"the node used {used:.2f} of {allowed:.2f} GiB allowed ({share})"
    elif found := _OVER_BEFORE.search(message):
        yield f"the node used {found[1]} of {found[2]} GiB, and {100 * float(found[3]):g} % are allowed"
    listed = _USERS.search(message)
    users = [(pid, used, command) for pid, used, command in _USER.findall(listed[1] if listed else "")]
    most = [each for at, each in enumerate(users[:MOST_USERS]) if at == 0 or float(each[1]) >= WORTH_GIB]
    if most:
        yield "most by " + ", ".join(f"{_command(command)} (pid {pid}: {used} GiB)" for pid, used, command in most)


def _command(line: str) -> str:
    line = " ".join(line.removeprefix("ray::").split())
    return line if len(line) <= COMMAND else f"{line[: COMMAND - 1]}…"
