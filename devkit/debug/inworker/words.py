"""What the debugger says in the streams of somebody else's program: one line, and the same trouble once.

And what others say, fit to be shown.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from contextlib import suppress

# Of Ray's words on a worker's end: where its advice begins, and how it says that it knows nothing.
ADVICE = (" Some common causes include", " Traceback: ")
NO_WORD_AS_RAY_SAYS = "connection error code 2. End of file"
NO_WORD = "without a message: by SIGKILL (as by the kernel's out-of-memory killer) or another signal, or by os._exit"
BY_SIGTERM = "SIGTERM came here"  # of a driver that leaves by Ray's handler of that signal
QUEUED = "a concurrent.futures.Future queued in a pool"
READERS_TURN = "its turn to read from a multiprocessing queue"  # for what a process waits there
CONNECTION = "a free connection"  # for what a request waits
UNREAD = "what it has put into a multiprocessing queue to be read"  # before which its process does not end
MOST_TOLD = 100  # troubles of one process: those that others make up must not fill its log
# Sequences that a terminal obeys: colours and the like, titles and links, single ones; then control characters, and
# halves of characters, which nothing can print.
_OBEYED = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x9b[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-~]"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]"
)


ASLEEP = "asyncio.sleep to end"  # what a coroutine waits for that sleeps
NO_WORD_YET = "its connection ended; Ray had not said why when the program ended"


def plain(text: str) -> str:
    r"""A text without what a terminal would obey; lines and tabs stay.

    >>> plain("\x1b[31mred\x1b[0m, and\tdead\x07")
    'red, and\tdead'
    """
    return _OBEYED.sub("", text)


def in_short(detail: str) -> str:
    """What Ray says of a worker's end, without its advice.

    >>> in_short("Worker exits unexpectedly. Worker exits with an exit code 3.")
    'Worker exits unexpectedly. Worker exits with an exit code 3.'
    """
    text = " ".join(detail.split())
    for advice in ADVICE:
        text = text.partition(advice)[0]
    return NO_WORD if NO_WORD_AS_RAY_SAYS in text else text.strip()


def say(text: str) -> None:
    """A word to the program's error stream; never raises."""
    with suppress(OSError, ValueError):  # it may have none any more
        print(f"devkit: {text}", file=sys.stderr, flush=True)  # noqa: T201


def warn(file: str, line: int, text: str) -> None:
    """A warning of a line of the program, in Python's form, so that it is found among the others; never raises."""
    with suppress(OSError, ValueError):
        print(warning(file, line, text), file=sys.stderr, flush=True)  # noqa: T201


def warning(file: str, line: int, text: str) -> str:
    """
    >>> warning("a.py", 3, "in vain")
    'a.py:3: DevkitWarning: in vain'
    """
    return f"{file}:{line}: DevkitWarning: {text}"


class Complaints:
    """The troubles of one process, each told once."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def tell(self, what: str, error: Exception) -> None:
        text = f"{what}: {' '.join(traceback.format_exception_only(error)).strip()}"
        if text not in self._told and len(self._told) < MOST_TOLD:
            self._told.add(text)
            place = traceback.extract_tb(error.__traceback__)[-1]
            say(f"{text} ({os.path.basename(place.filename)}:{place.lineno})")
