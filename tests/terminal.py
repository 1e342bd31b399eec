"""A real terminal of 80 columns, and what a program shows on it."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Sequence

LEFT_OUT = ("CI", "NO_COLOR", "COLUMNS", "LINES", "TERM")


def seen_on_a_terminal(command: Sequence[str], *, rows: int = 24, columns: int = 80, timeout: float = 120) -> str:
    """All that `command` writes, on stdout and stderr, which are one terminal. It has to end well."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    environ = {name: value for name, value in os.environ.items() if name not in LEFT_OUT} | {"TERM": "xterm-256color"}
    with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environ) as process:
        os.close(slave)
        shown = _all_of(master)
        assert process.wait(timeout) == 0, shown
    return shown


def _all_of(master: int) -> str:
    """Until the last process that has the terminal is gone."""
    data = b""
    with open(master, "rb", buffering=0) as terminal:
        while True:
            try:
                part = terminal.read(1 << 16)
            except OSError:  # Linux says it so
                break
            if not part:
                break
            data += part
    return data.decode(errors="replace")
