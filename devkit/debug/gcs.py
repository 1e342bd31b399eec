"""What can be told from the outside of a GCS, the server that every Ray node knows by its HOST:PORT."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devkit import patience
from devkit.debug.rest import open_socket
from devkit.debug.rows import NodeRow
from devkit.debug.tokens import MODE, TOKEN, TOKEN_PATH, Token
from devkit.errors import UnreachableError, UsageError

CONNECT_SECONDS = 3.0  # for a port to accept
PROBE_SECONDS = 5.0  # for one of the answers of a GCS
ADDRESS_HINT = "a GCS address is HOST:PORT, as in 10.0.0.5:6379"
TOKEN_HINT = (
    f"set {TOKEN} to the cluster's token, from ~/.ray/auth_token of the user who started its head; or start a Ray of "
    "your own with devkit run -- CMD"
)


class RefusedError(UnreachableError):
    """It asks for a token, or for another one."""


class NobodyError(UnreachableError):
    """Nothing listens there."""


@dataclass(frozen=True)
class GcsAddress:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> GcsAddress:
        """
        >>> str(GcsAddress.parse("head:6379")), GcsAddress.parse("[::1]:6379").host
        ('head:6379', '::1')
        """
        host, _, port = text.strip().rpartition(":")
        bracketed = host.startswith("[") and host.endswith("]")
        bare = host[1:-1] if bracketed else host
        if not bare or (":" in bare) != bracketed or not port.isascii() or not port.isdigit() or "/" in bare:
            raise UsageError(f"{text!r} is not an address", hint=ADDRESS_HINT)
        if len(port) > 5 or not 0 < int(port) < 65536:
            raise UsageError(f"{text!r} has an invalid port", hint=ADDRESS_HINT)
        return cls(bare, int(port))

    @property
    def is_local(self) -> bool:
        """Whether the host is this machine: only its own addresses can be bound."""
        try:
            found = socket.getaddrinfo(self.host, 0, type=socket.SOCK_STREAM)
            for family, kind, protocol, _, address in found:
                with socket.socket(family, kind, protocol) as probe:
                    probe.bind(address)
                return True
        except OSError:
            pass
        return False


@dataclass(frozen=True)
class GcsFacts:
    """What a GCS says of its cluster."""

    dashboard: str  # HOST:PORT; empty without one
    session: str
    nodes: tuple[NodeRow, ...]
    hub: str = ""  # where devkit's hub listens, as JSON; empty without one


def check(address: GcsAddress, timeout: float | None = None) -> None:
    """Raises NobodyError unless something listens there."""
    timeout = patience.seconds(CONNECT_SECONDS) if timeout is None else timeout
    try:
        open_socket(address.host, address.port, time.monotonic() + timeout).close()
    except socket.gaierror:
        raise NobodyError(f"unknown host {address.host!r}", hint=ADDRESS_HINT) from None
    except OSError as error:
        why = "no answer" if isinstance(error, TimeoutError) else (error.strerror or "no answer").lower()
        raise NobodyError(
            f"no Ray answers at {address}: {why}", hint="is its head running? To start a cluster: devkit debug-cluster"
        ) from None


def is_up(address: GcsAddress, timeout: float = 2.0) -> bool:
    """Of one that may well be gone: `timeout` is not the user's, since others are tried after it."""
    try:
        check(address, timeout)
    except UnreachableError:
        return False
    return True


def ask(address: GcsAddress, token: Token | None, timeout: float = 10.0) -> GcsFacts:
    """Asks the GCS once. Raises UnreachableError if it does not answer in time, or refuses the token."""
    check(address, min(patience.seconds(CONNECT_SECONDS), timeout))
    with closing(Watch(address, token)) as watch:
        return watch.facts(timeout)


class Asked:
    """A process that imports Ray once and is asked again and again: a line goes in, and a JSON document comes out.

    It is started at once; whom it asks need not be there before it is asked.
    """

    PROGRAM = ""  # a file beside this one

    def __init__(self, address: GcsAddress, token: Token | None) -> None:
        self._address = address
        self._token = token
        self._process: subprocess.Popen[bytes] | None = self._start()

    def ask(self, question: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """Raises UnreachableError if there is no answer within `timeout` seconds, or the token is refused."""
        until = time.monotonic() + timeout
        check(self._address, min(patience.seconds(CONNECT_SECONDS), timeout))
        document = self._exchange(question, until)
        if not document:
            raise UnreachableError(f"what answers at {self._address} is not a Ray GCS that works", hint=ADDRESS_HINT)
        if document.get("refused"):
            problem = f"refuses the token of {self._token.source}" if self._token else "asks for a token"
            raise RefusedError(f"the Ray at {self._address} {problem}", hint=TOKEN_HINT)
        return document

    def close(self) -> None:
        process, self._process = self._process, None
        if process:
            process.kill()
            with process:  # closes the pipes, and waits
                pass

    def _start(self) -> subprocess.Popen[bytes]:
        environ = {name: value for name, value in os.environ.items() if name not in (TOKEN, TOKEN_PATH)}
        environ[MODE] = "token" if self._token else "disabled"
        if self._token:
            environ[TOKEN] = self._token.value
        program = str(Path(__file__).with_name(self.PROGRAM))
        # -P: the folder of the program and the current one may hold modules that Ray's imports would find.
        return subprocess.Popen(
            [sys.executable, "-P", program, str(self._address)],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def _exchange(self, question: Mapping[str, Any], until: float) -> dict[str, Any] | None:
        """One question, one document; None, and a new process next time, where there was none in time."""
        process = self._process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        said = b""
        try:
            process.stdin.write(json.dumps(question).encode() + b"\n")
            process.stdin.flush()
            while left := max(0.0, until - time.monotonic()):
                if not select.select([process.stdout], [], [], left)[0]:
                    break
                piece = os.read(process.stdout.fileno(), 1 << 16)
                said += piece
                for line in said.splitlines(keepends=True):  # Ray may say something, too
                    if line.startswith(b"{") and line.endswith(b"\n"):
                        return dict(json.loads(line))
                if not piece:
                    break
        except (OSError, ValueError):
            pass
        self.close()
        return None


class Watch(Asked):
    """A GCS that is asked again and again, as long as a wait lasts."""

    PROGRAM = "gcs_probe.py"

    def facts(self, timeout: float = 10.0) -> GcsFacts:
        """What it says now. Raises UnreachableError if it does not within `timeout` seconds, or refuses the token."""
        document = self.ask({"seconds": patience.seconds(PROBE_SECONDS)}, timeout)
        nodes = tuple(NodeRow.from_json(node) for node in document["nodes"])
        return GcsFacts(document["dashboard"], document["session"], nodes, document["hub"])
