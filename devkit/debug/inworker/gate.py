"""A door for Ray's own Distributed Debugger extension, which connects to `ip:debugger_port` and cannot show a token.

Only processes of the same user on the same host pass: the kernel's table of connections says whose the other end is. A
port scan or an HTTP request is closed without a word. `ray_extension="open"` lets every host in, for who decides so.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

HEADER_SECONDS = 5.0
MAX_HEADER = 256  # bytes
MAX_MESSAGE = 16 * 1024**2
MAX_CLIENTS = 64

Document = dict[str, Any]


class Gate:
    """Listens on a free port of `host`; each client that may pass gets a debug adapter of its own."""

    def __init__(self, agent: Any, host: str) -> None:
        self._agent = agent
        self._clients = threading.Semaphore(MAX_CLIENTS)
        self._server = socket.create_server((host, 0))
        self.port = int(self._server.getsockname()[1])
        threading.Thread(target=self._accept, name="devkit-gate", daemon=True).start()

    def close(self) -> None:
        """Lets nobody in any more; who is in stays."""
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            if not self._clients.acquire(blocking=False):
                client.close()
                continue
            threading.Thread(target=self._serve, args=(client,), name="devkit-gate-client", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            if self._agent.settings.ray_extension == "open" or is_same_user(client):
                self._talk(client)
        except OSError:
            pass  # the client went away
        finally:
            client.close()
            self._clients.release()

    def _talk(self, client: socket.socket) -> None:
        from .adapter import Adapter

        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        lock = threading.Lock()

        def send(message: Document) -> None:
            with lock:
                client.sendall(frame(message))

        adapter = None
        try:
            for message in messages(client):
                if adapter is None:
                    adapter = Adapter(self._agent.stops, self._agent, send)
                adapter.handle(message)
        finally:
            if adapter is not None:
                adapter.close()


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
    client.settimeout(HEADER_SECONDS)  # the first header; a debugger may be silent later
    while True:
        end = buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(buffer) > MAX_HEADER or not b"Content-Length:".startswith(bytes(buffer[:15])):
                return
            if not _fill(client, buffer):
                return
            continue
        length = _length(bytes(buffer[:end]))
        if length is None:
            return
        del buffer[: end + 4]
        while len(buffer) < length:
            if not _fill(client, buffer):
                return
        body, buffer = bytes(buffer[:length]), buffer[length:]
        message = json.loads(body)
        client.settimeout(None)
        yield message


def _fill(client: socket.socket, buffer: bytearray) -> bool:
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


def is_same_user(client: socket.socket) -> bool:
    """Whether the other end is a process of this host that runs as this user, or as root."""
    uid = owner(client.getpeername(), client.getsockname())
    return uid is not None and uid in (os.getuid(), 0)


def owner(theirs: tuple[Any, ...], ours: tuple[Any, ...]) -> int | None:
    """The user id of the socket `theirs` that is connected to `ours`; None when it isn't on this host."""
    wanted = f"{_kernel_form(theirs)} {_kernel_form(ours)}"
    try:
        table = Path("/proc/net/tcp").read_text()
    except OSError:
        return None
    for line in table.splitlines()[1:]:
        fields = line.split()
        if f"{fields[1]} {fields[2]}" == wanted:
            return int(fields[7])
    return None


def _kernel_form(address: tuple[Any, ...]) -> str:
    """
    >>> _kernel_form(("127.0.0.1", 80))
    '0100007F:0050'
    """
    host, port = address[:2]
    return f"{socket.inet_aton(host)[::-1].hex().upper()}:{port:04X}"
