"""Files that a process has mapped into memory: who looks behind the end of one that has got shorter ends by SIGBUS."""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from . import kernel_view

SIGNAL = "SIGBUS"
MOST = 8  # files that are told, the largest ones
LONGEST = 1 << 18  # characters of the kernel's table that are read
_LINE = re.compile(
    r"^(?P<from>[0-9a-f]+)-(?P<to>[0-9a-f]+) (?P<may>\S{4}) (?P<at>[0-9a-f]+) \S+ [1-9]\d* +(?P<file>/.+)$"
)
_SYSTEM = (".so", " /usr/", "(deleted)")  # in a line that is of none of the program's files

Document = dict[str, Any]


def noted() -> list[Document]:
    """[{"file", "size"}]: how many bytes of each the process has mapped; no code, and nothing that is deleted."""
    table = ""
    with suppress(OSError):
        table = kernel_view.text("/proc/self/maps")[:LONGEST]
    return of_table(table)


def of_table(table: str) -> list[Document]:
    """
    >>> table = "10000-12000 r--s 00001000 08:01 7   /data/rows.bin\\n20000-21000 r-xp 00000000 08:01 8   /bin/a\\n"
    >>> of_table(table)
    [{'file': '/data/rows.bin', 'size': 12288}]
    """
    sizes: dict[str, int] = {}
    code: set[str] = set()
    for line in table.splitlines():
        if any(each in line for each in _SYSTEM) or (found := _LINE.match(line)) is None:
            continue
        name, size = found["file"], int(found["at"], 16) + int(found["to"], 16) - int(found["from"], 16)
        sizes[name] = max(size, sizes.get(name, 0))
        code |= {name} if "x" in found["may"] else set()
    largest = sorted((name for name in sizes if name not in code), key=lambda name: -sizes[name])
    return [{"file": name, "size": sizes[name]} for name in largest[:MOST]]


def sentence(known: Sequence[Document]) -> str:
    """Which of these files of this machine is shorter than its mapping; empty: none is, or nothing is known."""
    for each in known:
        with suppress(OSError):
            size = os.path.getsize(each["file"])
            if -(-size // mmap.PAGESIZE) * mmap.PAGESIZE < each["size"]:
                return f"{each['file']} has {size} bytes, and it had mapped {each['size']} of it"
    return ""


__all__ = ["SIGNAL", "noted", "of_table", "sentence"]
