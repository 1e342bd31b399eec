"""One HTTP request with a deadline for all of it: connection, headers and body. Standard library only.

A socket's own time limit is for each piece, so that a server which sends a byte a second would be waited for without
end; and `urllib` would send what is meant for 127.0.0.1 to the proxy of the environment.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

MOST_BYTES = 2**26  # of an answer


@dataclass(frozen=True)
class Answer:
    status: int
    reason: str
    body: bytes


class TooLong(Exception):
    """The answer has more than MOST_BYTES."""


def split(url: str) -> SplitResult:
    """`http://HOST:PORT/PATH` in its parts. Raises ValueError for what is no such URL."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise ValueError("not http://HOST:PORT/PATH")
    _ = parts.port  # raises ValueError for one that is no number up to 65535
    if not url.isascii() or any(character.isspace() for character in url):
        raise ValueError("not http://HOST:PORT/PATH in ASCII")
    return parts


def ask(url: str, body: bytes | None, timeout_s: float) -> Answer:
    """POST `body`, or GET where that is None, over a connection of its own: one process may fork, another have threads.

    Raises TimeoutError after `timeout_s` seconds, OSError and http.client.HTTPException for a connection that breaks,
    TooLong.
    """
    deadline, parts = time.monotonic() + timeout_s, split(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    connection = http.client.HTTPConnection(host, port)
    try:
        connection.sock = _connected(host, port, parts.scheme == "https", deadline)
        target = parts._replace(scheme="", netloc="", fragment="").geturl() or "/"
        headers = {"Content-Type": "application/json", "Connection": "close"}
        connection.request("GET" if body is None else "POST", target, body, headers)
        response = connection.getresponse()
        read = response.read(MOST_BYTES + 1)
        if len(read) > MOST_BYTES:
            raise TooLong(f"over {MOST_BYTES // 2**20} MiB")
        cut_off = response.length is None and not response.chunked and not read  # perhaps in its headers
        if response.length or cut_off:  # `read` of a size does not say so itself
            raise http.client.IncompleteRead(read, response.length)
        return Answer(response.status, response.reason, read)
    finally:
        connection.close()


class _Within:
    """A socket whose every piece must come before `deadline`, of `time.monotonic()`."""

    deadline: float

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        self._hurry()
        return super().recv_into(*args, **kwargs)  # type: ignore[misc, no-any-return]

    def sendall(self, *args: Any, **kwargs: Any) -> None:
        self._hurry()
        super().sendall(*args, **kwargs)  # type: ignore[misc]

    def _hurry(self) -> None:
        self.settimeout(left(self.deadline))  # type: ignore[attr-defined]


class _Plain(_Within, socket.socket):
    pass


class _Tls(_Within, ssl.SSLSocket):
    pass


def left(deadline: float) -> float:
    """Seconds until `deadline`. Raises TimeoutError behind it."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds


def _connected(host: str, port: int, tls: bool, deadline: float) -> socket.socket:
    opened = socket.create_connection((host, port), left(deadline))
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if not tls:
        plain = _Plain(opened.family, opened.type, opened.proto, opened.detach())
        plain.deadline = deadline
        return plain
    context = ssl.create_default_context()
    context.sslsocket_class = _Tls
    try:
        opened.settimeout(left(deadline))
        wrapped = context.wrap_socket(opened, server_hostname=host)
    except BaseException:
        opened.close()
        raise
    assert isinstance(wrapped, _Tls)
    wrapped.deadline = deadline
    return wrapped
