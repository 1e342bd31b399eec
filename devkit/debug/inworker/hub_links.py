"""The hub's connections: strangers until they have shown that they know the key, and from then on agents and clients.

A stranger may say so little, for so long, and there may be so many of them: who does not keep to it is closed without a
word, here as in the log. Where too many come, the one that has waited longest goes: who knows the key waits no time.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from . import PROTOCOL, wire
from .words import Complaints

MOST_BUFFERED = 4 * 1024**2  # bytes of one document to the hub
MOST_UNSENT = 256 * 1024**2  # bytes that wait for somebody who does not read
MOST_STRANGERS = 1024
MOST_CONNECTIONS = 65536
KEPT_FILES = 128  # of those that the process may open, for all but connections
BACKLOG = 4096  # all agents of a large job may come at once

Document = dict[str, Any]


class Link:
    """One connection, to an agent or to a client."""

    def __init__(self, write: Callable[[Document], None]) -> None:
        self.write = write
        self.worker_id = ""
        self.heard = time.monotonic()  # when an agent last said something, be it late
        self.waiting: dict[int, asyncio.Future[Document]] = {}
        self.channels: dict[int, Link] = {}  # channel -> the link at the other end
        self.watches: set[int] = set()  # requests that want each change


class Receiver(Protocol):
    """Who is told of what comes from those that know the key."""

    def from_agent(self, link: Link, document: Document) -> None: ...
    def from_client(self, link: Link, document: Document) -> None: ...
    def closed(self, link: Link) -> None: ...


class Links:
    """All of them, and the port that they come to."""

    def __init__(self, key: bytes, receiver: Receiver) -> None:
        self.key, self.receiver = key, receiver
        self.complaints = Complaints()
        self._known: set[_Connection] = set()
        self._strangers: dict[_Connection, None] = {}  # the first has waited longest
        self._server: asyncio.Server | None = None

    async def serve(self, host: str) -> int:
        """Listens on a free port of `host` and returns it."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), host, 0, backlog=BACKLOG)
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in [*self._known, *self._strangers]:
            connection.drop()

    def came(self, connection: _Connection) -> bool:
        """Whether it may stay; if so, perhaps in place of another one that nobody knows."""
        room = min(MOST_CONNECTIONS, files() - KEPT_FILES) - len(self._known)
        if room <= 0:
            return False
        for longest in list(itertools.islice(self._strangers, max(0, len(self._strangers) + 1 - self._most(room)))):
            self.went(longest)
            longest.drop()
        self._strangers[connection] = None
        return True

    def became_known(self, connection: _Connection) -> None:
        self._strangers.pop(connection, None)
        self._known.add(connection)

    def went(self, connection: _Connection) -> None:
        self._strangers.pop(connection, None)
        self._known.discard(connection)

    def _most(self, room: int) -> int:
        return max(1, min(MOST_STRANGERS, room))


class _Connection(asyncio.Protocol):
    """One of them: lines come in, and documents go to the receiver once the first line has shown the key."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._buffer = bytearray()
        self._looked = 0  # bytes of it that hold no end of a line
        self._limit = wire.HANDSHAKE_LIMIT
        self._first = wire.nonce()
        self._receive: Callable[[Link, Document], None] | None = None  # None: a stranger
        self._link = Link(self._write)

    # ---- what asyncio calls

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._timer = asyncio.get_running_loop().call_later(wire.HANDSHAKE_SECONDS, self.drop)
        if not self._links.came(self):
            self.drop()
            return
        with suppress(OSError):  # it has gone already
            wire.keep_alive(transport.get_extra_info("socket"))
        self._write({"devkit": PROTOCOL, "nonce": self._first})

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while not self._transport.is_closing() and (line := self._line()) is not None:
            if self._receive is None:
                self._shake_hands(line)
            else:
                self._take(self._receive, line)

    def connection_lost(self, _error: Exception | None) -> None:
        self._timer.cancel()
        self._links.went(self)
        if self._receive is not None:
            self._links.receiver.closed(self._link)

    # ---- common

    def drop(self) -> None:
        """Closes it at once. What was still to be said is not."""
        self._transport.abort()

    def _line(self) -> bytes | None:
        end = self._buffer.find(b"\n", self._looked)
        if (end if end >= 0 else len(self._buffer)) > self._limit:
            self.drop()
            return None
        self._looked = 0 if end >= 0 else len(self._buffer)
        if end < 0:
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line

    def _shake_hands(self, line: bytes) -> None:
        try:
            reply = wire.decode(line)
        except wire.WireError:
            self.drop()
            return
        last = wire.verify(reply, self._links.key, self._first)
        if last is None:
            self.drop()
            return
        self._timer.cancel()
        self._limit = MOST_BUFFERED
        receiver = self._links.receiver
        self._receive = receiver.from_agent if reply.get("kind") == "agent" else receiver.from_client
        self._links.became_known(self)
        self._write({"mac": last})

    def _take(self, receive: Callable[[Link, Document], None], line: bytes) -> None:
        try:
            receive(self._link, wire.decode(line))
        except Exception as error:  # noqa: BLE001 - one connection's nonsense is not the end of the hub; it is told
            self._links.complaints.tell("the hub closed a connection", error)
            self.drop()

    def _write(self, document: Document) -> None:
        if self._transport.is_closing():
            return
        self._transport.write(wire.encode(document))
        if self._transport.get_write_buffer_size() > MOST_UNSENT:
            self.drop()


def files() -> int:
    """How many the process may have open."""
    try:
        import resource
    except ImportError:  # no unix
        return MOST_CONNECTIONS
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MOST_CONNECTIONS if most == resource.RLIM_INFINITY else most


def raise_files() -> None:
    """As many as the system lets this process have: each agent of a large job is one."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = MOST_CONNECTIONS + KEPT_FILES
        most = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
