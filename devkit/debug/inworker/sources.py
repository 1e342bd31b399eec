"""Whose a file is, and the lines around a place in it."""

from __future__ import annotations

import os
import sys
from itertools import islice
from types import FrameType
from typing import Any

from .redaction import scrub_start

_STANDARD_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_INSTALLED = tuple(part.replace("/", os.sep) for part in ("/site-packages/", "/dist-packages/", "/lib/python3."))
_TRAINER = tuple(
    os.path.join(part, "trainer", "") for part in _INSTALLED[:2]
)  # the program, also where it is installed
_OWN = os.path.dirname(os.path.abspath(__file__)) + os.sep
_NATIVE = (".pyx", ".pxi", ".pxd")
_LIBRARIES = ("ray", "torch")  # also when they are installed from a checkout
LINE = 500  # characters of a line that are kept


def is_users(filename: str) -> bool:
    """Whether a file is the program's own: not Ray's, torch's, an installed package's (but our trainer's) or Python's.

    >>> is_users("/home/me/train.py"), is_users("<stdin>"), is_users(os.__file__)
    (True, True, False)
    >>> is_users("/v/lib/python3.11/site-packages/trainer/ppo.py"), is_users("/v/lib/python3.11/site-packages/ray/a.py")
    (True, False)
    """
    if any(part in filename for part in _TRAINER):
        return True
    if filename.startswith(_OWN):
        return False
    if is_standard(filename) or filename.endswith(_NATIVE):
        return False
    return not any(part in filename for part in _INSTALLED) and not filename.startswith(tuple(_library_folders()))


def source_of(frame: FrameType) -> str:
    """The file of a frame; code that was made of a text, as a dataclass makes some, is of the file that made it."""
    name = frame.f_code.co_filename
    if name.startswith("<") and not name.startswith("<frozen "):
        return str(frame.f_globals.get("__file__") or name)
    return name


def is_standard(filename: str) -> bool:
    """Whether a file is of Python's standard library."""
    return filename.startswith("<frozen ") or (
        filename.startswith(_STANDARD_LIBRARY) and not any(part in filename for part in _INSTALLED[:2])
    )


def _library_folders() -> list[str]:
    files = [getattr(sys.modules.get(name), "__file__", None) for name in _LIBRARIES]
    return [os.path.dirname(file) + os.sep for file in files if file]


def source_around(filename: str, line: int, around: int) -> dict[str, Any] | None:
    """{`first`: number of the first line, `lines`}, or None where this machine has no such file."""
    first = max(1, line - around)
    lines = _lines(filename, first, line + around)
    return {"first": first, "lines": lines} if lines else None


def _lines(filename: str, first: int, last: int) -> list[str]:
    """From Python's cache, which knows notebooks and what was made at run time; else from the file's start."""
    import linecache

    cached = linecache.cache.get(filename)
    if cached is not None and len(cached) > 2:
        found = list(cached[2])[first - 1 : last]
    elif filename.startswith("<"):
        found = linecache.getlines(filename)[first - 1 : last]
    elif not os.path.isfile(filename):  # one of `python /dev/stdin` would be waited for
        return []
    else:
        try:
            with open(filename, encoding="utf-8", errors="replace") as file:
                found = list(islice(file, first - 1, last))
        except (OSError, ValueError):
            return []
    return [scrub_start(each.rstrip("\r\n"), LINE, code=True) for each in found]
