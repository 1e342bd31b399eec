"""Who a worker is, for the children that it spawns: they know nothing of Ray.

It is written into a file without a name, which the worker holds open and its children reach by its process number: so
nothing stays behind, however the worker ends. Where the system has no such files, it is one among temporary files.
"""

from __future__ import annotations

import atexit
import json
import os
import tempfile
import time
from contextlib import suppress
from typing import Any

LENGTH = 4096  # bytes: it is always overwritten as a whole
LOOK_SECONDS = 0.01  # until a text that was read while it was written is read again
LOOKS = 3

Document = dict[str, Any]


class Card:
    """One per worker. Raises OSError when there can be none."""

    def __init__(self) -> None:
        if hasattr(os, "memfd_create"):
            self._file = os.memfd_create("devkit-identity")
            self.path = f"/proc/{os.getpid()}/fd/{self._file}"
        else:
            self._file, self.path = tempfile.mkstemp(prefix="devkit-identity-")
            atexit.register(os.unlink, self.path)
        self._inode = os.fstat(self._file).st_ino

    def write(self, document: Document) -> None:
        """Nothing is written if the program has closed our file, and may have another one under its number."""
        text = json.dumps(document).encode().ljust(LENGTH)
        with suppress(OSError):
            if len(text) == LENGTH and os.fstat(self._file).st_ino == self._inode:
                os.pwrite(self._file, text, 0)


def read(path: str) -> Document:
    """What the worker has written; nothing, if it has ended, or has not written anything yet."""
    for _ in range(LOOKS):
        try:
            with open(path, "rb") as file:
                document = json.loads(file.read(LENGTH))
            return document if isinstance(document, dict) else {}
        except (ValueError, RecursionError):
            time.sleep(LOOK_SECONDS)
        except OSError:
            break
    return {}
