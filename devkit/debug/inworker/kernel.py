"""What the kernel says of a process that it killed for memory: such a process has no time to say anything itself."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from typing import Any

LOG = "/dev/kmsg"  # readable by root, on most machines; one record a read
RECORD = 8192  # bytes; the kernel's own limit

INITIAL = "pid:[4026531836]"  # the kernel's own name for the pids that its log has; a container has others
RECENT = 60.0  # seconds
OLD = 600.0  # seconds, of what the kernel did to a process that is missed now

_KILLED = re.compile(
    r"(?:\d+,\d+,(?P<at>\d+)[^;\n]*;)?"  # microseconds since the machine was started
    r"(?P<whose>Memory cgroup out of memory|[Oo]ut of memory)[^\n]*?: "
    r"Killed process (?P<pid>\d+) \((?P<name>[^)]*)\)(?P<sizes>[^\n]*)"
)
_ANON = re.compile(r"anon-rss:(\d+)kB")


def killed_for_memory(pid: int, role: str = "", log: str = LOG, namespace: str = "") -> dict[str, Any] | None:
    """The last words that the kernel has for a process of this machine; None if it has none, or does not show them.

    In a container a pid is not the kernel's: a process with Ray's name for `role` counts there, killed just now.
    """
    now = time.monotonic()
    is_it = _by_pid(pid, now) if (namespace or _namespace()) == INITIAL else _by_name(role, now)
    found = [match for match in _KILLED.finditer(_read(log)) if is_it(match)]
    return _words(found[-1]) if found else None


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return INITIAL


def _by_pid(pid: int, now: float) -> Callable[[re.Match[str]], bool]:
    """Not long ago, if the log says when: another process may have had that number before."""

    def is_it(killed: re.Match[str]) -> bool:
        old = killed["at"] is not None and now - int(killed["at"]) / 1e6 > OLD
        return int(killed["pid"]) == pid and not old

    return is_it


def _by_name(role: str, now: float) -> Callable[[re.Match[str]], bool]:
    """The kernel keeps 15 letters of a name; Ray calls a worker `ray::Trainer.step`, and `ray::Trainer` when idle."""

    def is_it(killed: re.Match[str]) -> bool:
        recent = killed["at"] is not None and 0 <= now - int(killed["at"]) / 1e6 <= RECENT
        name = killed["name"].removeprefix("ray::").partition(".")[0]
        return recent and killed["name"].startswith("ray::") and bool(role) and role.startswith(name)

    return is_it


def _words(killed: re.Match[str]) -> dict[str, Any]:
    """
    >>> line = "Memory cgroup out of memory: Killed process 7 (ray::W) total-vm:9kB, anon-rss:2097152kB, file-rss:0kB"
    >>> _words(_KILLED.search(line))["message"]
    'killed by the kernel at 2048 MiB: its container or cgroup ran out of memory'
    """
    limited = "its container or cgroup" if killed["whose"].startswith("Memory cgroup") else "this machine"
    size = _ANON.search(killed["sizes"])
    at = f" at {int(size[1]) // 1024} MiB" if size else ""
    message = f"killed by the kernel{at}: {limited} ran out of memory"
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
