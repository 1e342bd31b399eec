"""Warnings of a line of the program that calls a library in vain: once for each line, in Python's own form."""

from __future__ import annotations

import sys

from .stacks import users_lines
from .words import warn

_told: set[tuple[str, int, str]] = set()


def once(kind: str, text: str, depth: int) -> None:
    """`depth`: frames between this call and the library's function, which is left out as the program did not write it.

    Says nothing where no line of the program is on the stack.
    """
    site = next(users_lines(sys._getframe(depth + 1)), None)
    if site is not None and (key := (str(site["file"]), int(site["line"]), kind)) not in _told:
        _told.add(key)
        warn(key[0], key[1], text)


def is_told(file: str, line: int, kind: str) -> bool:
    """Whether that line was warned of."""
    return (file, line, kind) in _told


__all__ = ["is_told", "once"]
