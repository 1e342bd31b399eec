"""The memory of a process beside that of its node or container: told while it lives, for when it is killed."""

from __future__ import annotations

import os
from contextlib import suppress

_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def memory() -> dict[str, int]:
    """Bytes: `own` of this process, `used` and `total` of its node. Nothing where the system does not tell.

    >>> found = memory()
    >>> not found or 0 < found["own"] < found["used"] <= found["total"]
    True
    """
    try:
        with open("/proc/self/statm") as file:
            own = int(file.read().split()[1]) * _PAGE
        total, used = _machine()
    except (OSError, ValueError, KeyError, IndexError):
        return {}
    for limit_file, used_file in _CGROUPS:
        with suppress(OSError, ValueError):  # no such file, or `max`
            limit = _number(limit_file)
            if 0 < limit < total:
                total, used = limit, _number(used_file)
                break
    return {"own": own, "used": used, "total": total}


def _machine() -> tuple[int, int]:
    """Of the whole machine: what it has, and what of it is not to be had any more."""
    with open("/proc/meminfo") as file:
        kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in file) if rest.split()}
    return kib["MemTotal"] * 1024, (kib["MemTotal"] - kib["MemAvailable"]) * 1024


def _number(path: str) -> int:
    with open(path) as file:
        return int(file.read())
