"""Which copy of its modules a process has: one of a runtime_env, a working folder or a node may be older than another.

A worker that fails tells of the modules that its failing code and its values are of; the driver is asked for its own.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import FrameType
from typing import Any

from .sources import is_users

FRAMES, VALUES, MODULES = 5, 60, 30  # that are looked at, at most
LARGEST = 1 << 22  # bytes of a source file

Document = dict[str, Any]


def of_error(frames: Iterable[FrameType]) -> dict[str, Document]:
    """{module: {"file", "digest"}} of the program's frames, innermost first, and of the classes of their variables."""
    users = [frame for frame in frames if is_users(frame.f_code.co_filename)][:FRAMES]
    return of_modules(name for frame in users for name in _names(frame))


def of_modules(names: Iterable[str]) -> dict[str, Document]:
    """Of those that are the program's own and come from a file. `__main__` is another one in each process."""
    found: dict[str, Document] = {}
    for name in dict.fromkeys(names):
        file = getattr(sys.modules.get(name), "__file__", None)
        if name != "__main__" and isinstance(file, str) and is_users(file) and len(found) < MODULES:
            with suppress(OSError), open(file, "rb") as source:
                found[name] = {"file": file, "digest": hashlib.sha256(source.read(LARGEST)).hexdigest()[:16]}
    return found


def _names(frame: FrameType) -> Iterator[str]:
    yield str(frame.f_globals.get("__name__", ""))
    for value in list(frame.f_locals.values())[:VALUES]:
        yield type(value).__module__
        if type(value) in (list, tuple, dict) and value:
            yield type(next(iter(value.values() if type(value) is dict else value))).__module__


def differing(here: dict[str, Document], there: dict[str, Document]) -> list[Document]:
    """[{"module", "here", "there"}] with the two files, of modules whose text differs.

    >>> differing({"a": {"file": "/x/a.py", "digest": "1"}}, {"a": {"file": "/y/a.py", "digest": "2"}})
    [{'module': 'a', 'here': '/x/a.py', 'there': '/y/a.py'}]
    """
    return [
        {"module": name, "here": own["file"], "there": there[name]["file"]}
        for name, own in here.items()
        if name in there and there[name]["digest"] != own["digest"]
    ]
