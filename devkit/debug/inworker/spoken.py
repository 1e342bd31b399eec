"""What this process wrote last, where Ray has put its output into files: a warning there may say what went wrong."""

from __future__ import annotations

import os
import re
import stat

from . import forked
from .redaction import scrub_start

TAIL = 8192  # bytes that are read
LINE = 200  # characters
_OURS = re.compile(r"^(:(actor_name|task_name|job_id|task_id):|devkit: )")
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_TRACEBACK = re.compile(r"^(Traceback \(most recent call last\):|  File \"|    |\s*\^+$)")


def last_lines(most: int) -> list[str]:
    """Of its error output, then of its output, so many of each at most; none of a terminal, a pipe, or a traceback.

    A forked process writes to the files of the one that it comes from: what stands there may be that one's.
    """
    if forked.is_child():
        return []
    return list(dict.fromkeys([*_lines(2, most), *_lines(1, most)]))  # both may be one file


def _lines(number: int, most: int) -> list[str]:
    try:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            return []
        with open(f"/proc/self/fd/{number}", "rb") as file:  # a place of its own in the file
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL))
            text = file.read(TAIL).decode(errors="replace")
    except OSError:
        return []
    lines = text.splitlines()[1 if size > TAIL else 0 :]
    return [scrub_start(line, LINE) for line in _told(lines)][-most:]


def _told(lines: list[str]) -> list[str]:
    """
    >>> _told([":actor_name:W", "\\x1b[33mlow on rows\\x1b[0m", "", "low on rows", "  File \\"a.py\\", line 1, in f"])
    ['low on rows']
    """
    plain = (_COLOURS.sub("", line).rstrip() for line in lines)
    kept = [line for line in plain if line.strip() and not _OURS.match(line) and not _TRACEBACK.match(line)]
    return list(dict.fromkeys(kept))


__all__ = ["last_lines"]
