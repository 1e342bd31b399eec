"""The talk between hub, agents and clients: JSON documents, one a line, after both sides have shown they know the key.

The handshake (HMAC-SHA256 over both nonces) opens nothing to who does not know the cluster's token: a port scan or an
HTTP request gets one line with a random number, and then the connection is closed.

    server  {"devkit": PROTOCOL, "nonce": a}
    other   {"nonce": b, "mac": mac(key, "other", a, b), "kind": "agent" | "client"}
    server  {"mac": mac(key, "server", a, b)}
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

from . import PROTOCOL

MAX_LINE = 64 * 1024**2  # bytes of one document
HANDSHAKE_LIMIT = 1024  # bytes of a line before the other side is known
HANDSHAKE_SECONDS = 5.0  # that a stranger has at the hub
REACH_SECONDS = 5.0
ANSWER_SECONDS = 20.0
SEND_SECONDS = 5
NONCE_BYTES = 16
LATE = "no answer within"  # how the hub's answer begins for a process that gave none in time
KEEP_ALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}  # seconds, seconds, times

Document = dict[str, Any]


class WireError(ConnectionError):
    """The other side is not ours, does not know the key, or went away."""


def derive_key(token: str, hub_id: str) -> bytes:
    """The key of one hub. Who knows only where it listens, and not the cluster's token, does not know the key."""
    return hmac.new(token.encode() or b"no token", f"devkit hub {hub_id}".encode(), hashlib.sha256).digest()


def mac(key: bytes, side: str, first: str, second: str) -> str:
    return hmac.new(key, _bytes(f"{side} {first} {second}"), hashlib.sha256).hexdigest()


def is_mac(said: Any, expected: str) -> bool:
    """
    >>> is_mac("ab", "ab"), is_mac("\u00e4", "ab"), is_mac(None, "ab")
    (True, False, False)
    """
    return hmac.compare_digest(_bytes(str(said)), expected.encode())


def _bytes(text: str) -> bytes:
    """JSON has texts that are no Unicode."""
    return text.encode(errors="backslashreplace")


def keep_alive(connection: socket.socket) -> None:
    """A host that is gone without a word is noticed within two minutes, also where nothing is said."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEP_ALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def nonce() -> str:
    return secrets.token_hex(NONCE_BYTES)


def encode(document: Document) -> bytes:
    """
    >>> encode({"op": "ps"})
    b'{"op":"ps"}\\n'
    """
    return json.dumps(document, separators=(",", ":"), default=str).encode() + b"\n"


def decode(line: bytes) -> Document:
    """Raises `WireError` for what is not a JSON object.

    >>> decode(b'{"op":"ps"}')
    {'op': 'ps'}
    """
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        raise WireError("the other side does not speak devkit's protocol") from None
    if not isinstance(document, dict):
        raise WireError("the other side does not speak devkit's protocol")
    return document


def answer(greeting: Document, key: bytes, kind: str) -> tuple[Document, str]:
    """What to say to the server's greeting, and the code with which it has to reply."""
    if greeting.get("devkit") != PROTOCOL:
        raise WireError(f"the hub speaks version {greeting.get('devkit')} of devkit's protocol, this is {PROTOCOL}")
    first, second = str(greeting.get("nonce")), nonce()
    return {"nonce": second, "mac": mac(key, "other", first, second), "kind": kind}, mac(key, "server", first, second)


def verify(reply: Document, key: bytes, first: str) -> str | None:
    """The server's last word if the other side knows the key, else None."""
    second = str(reply.get("nonce"))
    if not is_mac(reply.get("mac"), mac(key, "other", first, second)):
        return None
    return mac(key, "server", first, second)


class Connection:
    """A blocking connection to the hub. `send` may be called from several threads, `receive` from one."""

    def __init__(
        self,
        address: tuple[str, int],
        key: bytes,
        kind: str,
        *,
        timeout: float = ANSWER_SECONDS,
        reach: float = REACH_SECONDS,
    ) -> None:
        """Raises `OSError` (of which `WireError` is one) when there is no hub or it does not know the key.

        `reach` are the seconds until its machine must have answered, and `timeout` those until it has itself: a hub
        that gets no time on a busy machine is slow.
        """
        import threading

        self._socket = socket.create_connection(address, timeout=min(reach, timeout))
        self._socket.settimeout(timeout)
        self._buffer = bytearray()
        self._lock = threading.Lock()
        with ExitStack() as unfinished:
            unfinished.callback(self._socket.close)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_alive(self._socket)
            self._shake_hands(key, kind)
            self._socket.settimeout(None)
            # A hub that reads no more must not hold a thread of the program: SO_SNDTIMEO leaves `receive` to wait.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_SECONDS, 0))
            unfinished.pop_all()

    def _shake_hands(self, key: bytes, kind: str) -> None:
        reply, expected = answer(decode(self._line(HANDSHAKE_LIMIT)), key, kind)
        self._socket.sendall(encode(reply))
        try:
            last = decode(self._line(HANDSHAKE_LIMIT))
        except (WireError, ConnectionError):
            raise WireError("the hub refused the connection: another token") from None
        if not is_mac(last.get("mac"), expected):
            raise WireError("the hub does not know the cluster's token")

    def send(self, document: Document) -> None:
        data = encode(document)
        with self._lock:
            try:
                self._socket.sendall(data)
            except OSError:
                self.close()  # half of a document may have gone
                raise

    def receive(self, timeout: float | None = None) -> Document:
        """The next document. Raises `TimeoutError` when none came in time, `WireError` at the end."""
        self._socket.settimeout(timeout)
        return decode(self._line(MAX_LINE))

    def __iter__(self) -> Iterator[Document]:
        while True:
            try:
                yield self.receive()
            except OSError:
                return

    def _line(self, limit: int) -> bytes:
        while True:
            end = self._buffer.find(b"\n")
            if end >= 0:
                line = bytes(self._buffer[:end])
                del self._buffer[: end + 1]
                return line
            if len(self._buffer) > limit:
                raise WireError("the other side does not speak devkit's protocol")
            data = self._socket.recv(1 << 16)
            if not data:
                raise WireError("the connection was closed")
            self._buffer += data

    def close(self) -> None:
        with suppress(OSError):  # it may have been closed from the other side
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
