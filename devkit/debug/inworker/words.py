"""What the debugger says in the streams of somebody else's program: one line, and the same trouble once."""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import suppress


def say(text: str) -> None:
    """A word to the program's error stream; never raises."""
    with suppress(OSError, ValueError):  # it may have none any more
        print(f"devkit: {text}", file=sys.stderr, flush=True)  # noqa: T201


class Complaints:
    """The troubles of one process, each told once."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def tell(self, what: str, error: Exception) -> None:
        text = f"{what}: {' '.join(traceback.format_exception_only(error)).strip()}"
        if text not in self._told:
            self._told.add(text)
            place = traceback.extract_tb(error.__traceback__)[-1]
            say(f"{text} ({os.path.basename(place.filename)}:{place.lineno})")
