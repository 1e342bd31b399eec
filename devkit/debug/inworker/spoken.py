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
    return [line for line, _ in last_words(most)]


def last_words(most: int) -> list[tuple[str, bool]]:
    """The same, each with whether nothing else was written after it, or between it and the others of its output."""
    if forked.is_child():
        return []
    return list({line: (line, last) for number in (1, 2) for line, last in _words(number, most)}.values())[::-1]


def _words(number: int, most: int) -> list[tuple[str, bool]]:
    """From the last to the first."""
    written = _written(number)
    chosen = _told(written)[-most:]
    last = chosen == written[len(written) - len(chosen) :]
    return [(scrub_start(line, LINE), last) for line in chosen[::-1]]


def _lines(number: int, most: int) -> list[str]:
    return [line for line, _ in _words(number, most)][::-1]


def _written(number: int) -> list[str]:
    """What there is at the end of an output, without colours, empty lines and our own."""
    try:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            return []
        with open(f"/proc/self/fd/{number}", "rb") as file:  # a place of its own in the file
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL))
            text = file.read(TAIL).decode(errors="replace")
    except OSError:
        return []
    plain = (_COLOURS.sub("", line).rstrip() for line in text.splitlines()[1 if size > TAIL else 0 :])
    return [line for line in plain if line.strip() and not _OURS.match(line)]


def _told(lines: list[str]) -> list[str]:
    """Without tracebacks; of equal ones the last.

    >>> _told(["low on rows", "step 3", "low on rows", "  File \\"a.py\\", line 1, in f"])
    ['step 3', 'low on rows']
    """
    kept = [line for line in lines if not _TRACEBACK.match(line)]
    return list(dict.fromkeys(kept[::-1]))[::-1]


__all__ = ["last_lines", "last_words"]
