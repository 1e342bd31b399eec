"""What can be told from the outside of a GCS, the server that every Ray node knows by its HOST:PORT."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from devkit.debug.rest import open_socket
from devkit.debug.rows import NodeRow
from devkit.debug.tokens import MODE, TOKEN, TOKEN_PATH, Token
from devkit.errors import UnreachableError, UsageError

ADDRESS_HINT = "a GCS address is HOST:PORT, as in 10.0.0.5:6379"
TOKEN_HINT = f"set {TOKEN} to the cluster's token; it is in ~/.ray/auth_token of the user who started the head"


class RefusedError(UnreachableError):
    """It asks for a token, or for another one."""


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
        if not 0 < int(port) < 65536:
            raise UsageError(f"{text!r} has a port that cannot be", hint=ADDRESS_HINT)
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


def check(address: GcsAddress, timeout: float = 3.0) -> None:
    """Raises UnreachableError unless something listens there."""
    try:
        open_socket(address.host, address.port, time.monotonic() + timeout).close()
    except socket.gaierror:
        raise UnreachableError(f"the host {address.host!r} is not known", hint=ADDRESS_HINT) from None
    except OSError as error:
        why = "no answer" if isinstance(error, TimeoutError) else (error.strerror or "no answer").lower()
        raise UnreachableError(
            f"no Ray answers at {address}: {why}", hint="is its head up? devkit debug-cluster starts one"
        ) from None


def is_up(address: GcsAddress, timeout: float = 2.0) -> bool:
    try:
        check(address, timeout)
    except UnreachableError:
        return False
    return True


def ask(address: GcsAddress, token: Token | None, timeout: float = 10.0) -> GcsFacts:
    """Asks the GCS. Raises UnreachableError if it does not answer in time, or refuses the token."""
    check(address, min(3.0, timeout))
    environ = {name: value for name, value in os.environ.items() if name not in (TOKEN, TOKEN_PATH)}
    environ[MODE] = "token" if token else "disabled"
    if token:
        environ[TOKEN] = token.value
    program = str(Path(__file__).with_name("gcs_probe.py"))
    try:
        # -P: the folder of the program and the current one may hold modules that Ray's imports would find.
        said = subprocess.run(
            [sys.executable, "-P", program, str(address)],
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
        )
        document = json.loads(said.stdout.strip().splitlines()[-1]) if said.returncode == 0 else None
    except (subprocess.TimeoutExpired, ValueError, IndexError):
        document = None
    if not document:
        raise UnreachableError(f"what answers at {address} is not a Ray GCS that works", hint=ADDRESS_HINT)
    if document.get("refused"):
        problem = f"refuses the token of {token.source}" if token else "asks for a token"
        raise RefusedError(f"the Ray at {address} {problem}", hint=TOKEN_HINT)
    nodes = tuple(NodeRow.from_json(node) for node in document["nodes"])
    return GcsFacts(document["dashboard"], document["session"], nodes)
