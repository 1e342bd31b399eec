"""A terminal that a live display has to itself: what else writes to stderr meanwhile goes to a file.

Ray's C++, engines and loggers that were made before write to file descriptor 2, past Python and past the display, which
such a line would tear. What Python prints comes as ever: the display shows it above itself.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TextIO

STDERR = 2


class Apart:
    """From `open` to `close`, file descriptor 2 is the file `log`; one of its own in the temporary folder without."""

    def __init__(self, log: Path | None = None) -> None:
        self._log = log
        self._own = log is None
        self._screen: TextIO | None = None

    def open(self) -> TextIO:
        """The terminal, as a stream of its own."""
        descriptor = self._open_log()
        sys.stderr.flush()
        encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
        self._screen = open(os.dup(STDERR), "w", encoding=encoding, errors="backslashreplace", buffering=1)  # noqa: SIM115
        os.dup2(descriptor, STDERR)
        os.close(descriptor)
        return self._screen

    def _open_log(self) -> int:
        if self._log is None:
            descriptor, name = tempfile.mkstemp(prefix="stderr-", suffix=".log")
            self._log = Path(name)
            return descriptor
        return os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def close(self) -> Path | None:
        """Everything as before; the file, if something was written. An empty one of its own is removed."""
        if self._screen is None or self._log is None:
            return None
        sys.stderr.flush()
        self._screen.flush()
        os.dup2(self._screen.fileno(), STDERR)
        self._screen.close()
        self._screen = None
        if self._log.stat().st_size:
            return self._log
        if self._own:
            self._log.unlink()
        return None
