"""What the kernel says of a process that it killed for memory: such a process has no time to say anything itself."""

from __future__ import annotations

import os
import re
from typing import Any

LOG = "/dev/kmsg"  # readable by root, on most machines; one record a read
RECORD = 8192  # bytes; the kernel's own limit

_KILLED = re.compile(
    r"(?P<whose>Memory cgroup out of memory|[Oo]ut of memory)[^\n]*?: "
    r"Killed process (?P<pid>\d+) \([^)]*\)(?P<sizes>[^\n]*)"
)
_ANON = re.compile(r"anon-rss:(\d+)kB")


def killed_for_memory(pid: int, log: str = LOG) -> dict[str, Any] | None:
    """The last words that the kernel has for a process of this machine; None if it has none, or does not show them."""
    found = [match for match in _KILLED.finditer(_read(log)) if int(match["pid"]) == pid]
    return _words(found[-1]) if found else None


def _words(killed: re.Match[str]) -> dict[str, Any]:
    """
    >>> line = "Memory cgroup out of memory: Killed process 7 (ray::W) total-vm:9kB, anon-rss:2097152kB, file-rss:0kB"
    >>> _words(_KILLED.search(line))["message"]
    'killed by the kernel at 2048 MiB: the memory of its container or cgroup had run out'
    """
    limited = "its container or cgroup" if killed["whose"].startswith("Memory cgroup") else "this machine"
    size = _ANON.search(killed["sizes"])
    at = f" at {int(size[1]) // 1024} MiB" if size else ""
    message = f"killed by the kernel{at}: the memory of {limited} had run out"
    return {"kind": "memory", "signal": "OutOfMemory", "message": message, "frames": []}


def _read(log: str) -> str:
    """All that the kernel has kept. Each read gives one record, and ends when there is none."""
    pieces: list[bytes] = []
    try:
        descriptor = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        while piece := _record(descriptor):
            pieces.append(piece)
    finally:
        os.close(descriptor)
    return b"\n".join(pieces).decode(errors="replace")


def _record(descriptor: int) -> bytes:
    while True:
        try:
            return os.read(descriptor, RECORD)
        except BrokenPipeError:  # this one was overwritten meanwhile: the next is there
            continue
        except OSError:  # the end
            return b""
