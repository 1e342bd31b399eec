"""A door for Ray's own Distributed Debugger extension, which connects to `ip:debugger_port` and cannot show a token.

Only processes of the same user on the same host pass: the kernel says whose the other end is (`peer.py`), asked after
the first message was read and before anything is done about it. A port scan, an HTTP request or a stranger is closed
without a word. `ray_extension="open"` lets every host in, for who decides so.
"""

from __future__ import annotations

import errno
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from . import peer, threads, wire
from .words import say

HEADER_SECONDS = 5.0  # for the first message; a debugger may be silent later
SEND_SECONDS = 5  # a client that reads no more must hold no thread of the program, nor its end
ACCEPT_SECONDS = 0.5  # until the next try where nothing is left to accept with
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
MAX_HEADER = 256  # bytes
MAX_FIRST = 64 * 1024  # bytes of the first message, whose sender is not known yet
MAX_MESSAGE = 16 * 1024**2
MAX_CLIENTS = 64
HIDDEN = (
    "a process of this user that can't be looked into, of another container or of sshd, was refused at the debug port; "
    "devkit attach needs no such port, and --ray-extension open lets everybody in"
)

Document = dict[str, Any]


class Gate:
    """Listens on a free port of `host`; each client that may pass gets a debug adapter of its own."""

    def __init__(self, agent: Any, host: str) -> None:
        self._agent = agent
        self._clients = threading.Semaphore(MAX_CLIENTS)
        self._has_told = False
        self._is_closed = False
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._server = socket.create_server((host, 0), family=family)
        self.port = int(self._server.getsockname()[1])
        threads.start(self._accept, "devkit-gate")

    def close(self) -> None:
        """Lets nobody in any more; who is in stays."""
        self._is_closed = True
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                client, _ = self._server.accept()
            except ConnectionError:
                continue  # it is gone already
            except OSError as error:
                if error.errno not in EXHAUSTED:
                    return
                time.sleep(ACCEPT_SECONDS)
                continue
            if self._clients.acquire(blocking=False):
                self._begin(client)
            else:
                client.close()

    def _begin(self, client: socket.socket) -> None:
        try:
            threads.start(lambda: self._serve(client), "devkit-gate-client")
        except RuntimeError:  # the process has no thread left
            client.close()
            self._clients.release()

    def _serve(self, client: socket.socket) -> None:
        try:
            if self._is_open() or peer.may_be_ours(client):
                self._talk(client)
        except OSError:
            pass  # the client went away
        finally:
            client.close()
            self._clients.release()

    def _talk(self, client: socket.socket) -> None:
        from .adapter import Adapter

        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wire.keep_alive(client)  # one from another host may be gone without a word
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_SECONDS, 0))
        adapter = None
        try:
            for message in messages(client):
                if adapter is None:
                    if not self._may_pass(client):
                        return
                    adapter = Adapter(self._agent.stops, self._agent, _sender(client))
                adapter.handle(message)
        finally:
            if adapter is not None:
                adapter.close()

    def _may_pass(self, client: socket.socket) -> bool:
        """Asked when its first message has come: what a client says, and then is gone, nobody has said."""
        if self._is_open():
            return True
        owner = peer.owner(client)
        if owner == "hidden" and not self._has_told:
            self._has_told = True
            say(HIDDEN)
        return owner == "ours"

    def _is_open(self) -> bool:
        return bool(self._agent.settings.ray_extension == "open")


def _sender(client: socket.socket) -> Any:
    lock = threading.Lock()

    def send(message: Document) -> None:
        with lock:
            try:
                client.sendall(frame(message))
            except OSError:
                with suppress(OSError):
                    client.shutdown(socket.SHUT_RDWR)  # half of a message may have gone
                raise

    return send


def frame(message: Document) -> bytes:
    """A message as the Debug Adapter Protocol sends it.

    >>> frame({"seq": 1})
    b'Content-Length: 9\\r\\n\\r\\n{"seq":1}'
    """
    body = json.dumps(message, separators=(",", ":"), default=str).encode()
    return b"Content-Length: %d\r\n\r\n" % len(body) + body


def messages(client: socket.socket) -> Iterator[Document]:
    """The messages of a client, until it goes or says something else than the Debug Adapter Protocol."""
    buffer = bytearray()
    most = MAX_FIRST
    deadline: float | None = time.monotonic() + HEADER_SECONDS
    while (body := _body(client, buffer, most, deadline)) is not None:
        try:
            message = json.loads(body)
        except (ValueError, RecursionError):
            return
        if not isinstance(message, dict):
            return
        most, deadline = MAX_MESSAGE, None
        yield message


def _body(client: socket.socket, buffer: bytearray, most: int, deadline: float | None) -> bytes | None:
    """The next message, which is taken from the buffer; None when none will come."""
    while (end := buffer.find(b"\r\n\r\n")) < 0:
        if len(buffer) > MAX_HEADER or not b"Content-Length:".startswith(bytes(buffer[:15])):
            return None
        if not _fill(client, buffer, deadline):
            return None
    length = _length(bytes(buffer[:end])) if end <= MAX_HEADER else None
    if length is None or length > most:
        return None
    del buffer[: end + 4]
    while len(buffer) < length:
        if not _fill(client, buffer, deadline):
            return None
    body = bytes(buffer[:length])
    del buffer[:length]
    return body


def _fill(client: socket.socket, buffer: bytearray, deadline: float | None) -> bool:
    left = None if deadline is None else deadline - time.monotonic()
    if left is not None and left <= 0:
        return False
    client.settimeout(left)
    data = client.recv(1 << 16)
    buffer += data
    return bool(data)


def _length(header: bytes) -> int | None:
    """
    >>> _length(b"Content-Length: 12"), _length(b"GET / HTTP/1.1")
    (12, None)
    """
    for line in header.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length" and value.strip().isdigit():
            length = int(value)
            return length if length <= MAX_MESSAGE else None
    return None
