"""One ssh per host, through which orders go to `host_boot.py` there and answers come back; all hosts in one thread.

The system's `ssh` does it, with the user's own ssh_config: names, users, ports, keys and jump hosts are those of
`ssh HOST`. It never asks for anything (BatchMode).
"""

from __future__ import annotations

import json
import os
import selectors
import shlex
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from devkit.errors import UsageError
from devkit.launch.host_boot import MARK

CONNECT_S = 10
OPTIONS = (
    "-T",
    *("-o", "BatchMode=yes"),
    *("-o", f"ConnectTimeout={CONNECT_S}"),
    *("-o", "ServerAliveInterval=5"),  # a host that dies is noticed after 15 s
    *("-o", "ServerAliveCountMax=3"),
    *("-o", "ClearAllForwardings=yes"),  # a LocalForward of the user's would be asked for once for each host
    *("-o", "RemoteCommand=none"),
)
# All that stands on a command line: the program itself comes through stdin, and the token, too. The folder that ssh
# starts in may hold modules of any name; `-P` would say so, but a Python that is too old has to get as far as that.
BOOT = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; import json; "
    "exec(compile(json.loads(sys.stdin.readline()), *sys.argv[1:]))"
)
Message = dict[str, Any]


def command(destination: str, python: str) -> tuple[str, ...]:
    """The ssh that runs `host_boot.py` there. No shell sees more than plain words: it may be any."""
    there = [python, "-c", BOOT, "devkit-host", "exec"]
    return ("ssh", *OPTIONS, "--", destination, shlex.join(there))


class Session:
    """The program on one host. `silent` once it has ended, or its connection has."""

    def __init__(self, destination: str, python: str) -> None:
        self.destination = destination
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the session; `close` closes it
        try:
            self._process = subprocess.Popen(
                command(destination, python),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,  # Ctrl-C is this command's: it ends what it began, through these
            )
        except FileNotFoundError:
            self._errors.close()
            raise UsageError("ssh is not installed on this machine", hint="install OpenSSH's client") from None
        assert self._process.stdout is not None
        self.output = self._process.stdout
        self._unread = b""
        self.silent = False
        source = Path(__file__).with_name("host_boot.py").read_text(encoding="utf-8")
        self._write(json.dumps(source))

    def send(self, order: Message) -> None:
        self._write(json.dumps(order))

    def hang_up(self) -> None:
        """The host then ends what it has begun, says so, and leaves."""
        with suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()

    def read(self) -> list[Message]:
        """What has come since; call it when `output` can be read. Sets `silent` at the end."""
        piece = os.read(self.output.fileno(), 1 << 16)
        self.silent = not piece
        *lines, self._unread = (self._unread + piece).split(b"\n")
        mark = MARK.encode()
        return [json.loads(line[len(mark) :]) for line in lines if line.startswith(mark)]

    def ending(self, seconds: float = 5.0) -> tuple[int, str]:
        """Exit code of ssh, and what it, or the host, wrote to stderr."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = 255
        self._errors.seek(0)
        return code, self._errors.read().decode(errors="replace")

    def close(self) -> None:
        """At once, whether or not the host has ended."""
        self.hang_up()
        if self._process.poll() is None:
            self._process.terminate()
        self._process.wait()
        self.output.close()
        self._errors.close()

    def _write(self, line: str) -> None:
        with suppress(OSError):  # it has ended; reading tells why
            assert self._process.stdin is not None
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()


def messages(sessions: Sequence[Session], until: float) -> Iterator[tuple[Session, Message | None]]:
    """What the hosts say, as it comes; None: that one has ended. Ends when all have, or at the time `until`."""
    with selectors.DefaultSelector() as selector:
        for session in sessions:
            if not session.silent:
                selector.register(session.output, selectors.EVENT_READ, session)
        while selector.get_map() and (left := until - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                session = key.data
                for message in session.read():
                    yield session, message
                if session.silent:
                    selector.unregister(session.output)
                    yield session, None
