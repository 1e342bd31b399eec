"""The hub for clients that reach nothing but Ray's dashboard.

Up: the client uploads small packages (`PUT /api/packages/gcs/NAME.zip`), which Ray puts into its key-value store; the
relay looks for them there. Down: the relay writes lines into a file among Ray's logs, which the client follows
(`GET /api/v0/logs/stream`). Both ends of it are the dashboard's, with its token.

    NAME    devkit-<hub>-<session>-<number>      documents, one a line
    file    devkit/relay-<session>.out           documents, one a line
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from . import wire
from .hub import Hub, Link, in_thread
from .table import Document

IDLE_SECONDS = 0.1  # between two looks while nobody speaks through the relay
BUSY_SECONDS = 0.01
QUIET_SECONDS = 30.0  # without a word for so long, a session is idle
FORGOTTEN_SECONDS = 300.0  # and for so long, it is over
HUB_ID_SHOWN = 12  # characters


def prefix(hub_id: str) -> str:
    """What the names of all packages for one hub begin with."""
    return f"devkit-{hub_id[:HUB_ID_SHOWN]}-"


def package_name(hub_id: str, session: str, number: int) -> str:
    """
    >>> package_name("0123456789abcdef", "s1", 7)
    'devkit-0123456789ab-s1-7.zip'
    """
    return f"{prefix(hub_id)}{session}-{number}.zip"


def file_name(session: str) -> str:
    return f"relay-{session}.out"


class Session:
    """One client behind the dashboard."""

    def __init__(self, file: TextIO) -> None:
        self.link = Link(self._write)
        self.next = 0
        self.heard = time.monotonic()
        self.held: dict[int, bytes] = {}  # packages that came before an earlier one
        self._file = file

    def _write(self, document: Document) -> None:
        self._file.write(wire.encode(document).decode())
        self._file.flush()

    def in_order(self, number: int, package: bytes) -> Iterable[bytes]:
        self.heard = time.monotonic()
        self.held[number] = package
        while self.next in self.held:
            yield self.held.pop(self.next)
            self.next += 1

    def end(self) -> None:
        self._file.close()
        Path(self._file.name).unlink(missing_ok=True)


class Relay:
    """Looks for packages, hands what is in them to the hub, and writes the answers."""

    def __init__(self, hub: Hub, hub_id: str, folder: Path, gcs: Any) -> None:
        self._hub = hub
        self._prefix = f"gcs://{prefix(hub_id)}"
        self._folder = folder
        self._gcs = gcs
        self._sessions: dict[str, Session] = {}

    async def run(self) -> None:
        """Never ends."""
        while True:
            for key, package in await in_thread(self._fetch):
                with suppress(wire.WireError):  # a package of somebody else's make
                    self._take(key, package)
            self._forget()
            await asyncio.sleep(BUSY_SECONDS if self._is_busy() else IDLE_SECONDS)

    def _fetch(self) -> list[tuple[str, bytes]]:
        found = []
        for key in self._gcs.internal_kv_keys(self._prefix.encode(), None, timeout=5) or ():
            package = self._gcs.internal_kv_get(key, None, timeout=5)
            self._gcs.internal_kv_del(key, False, None, timeout=5)
            if package is not None:
                found.append((key.decode(), package))
        return found

    def _take(self, key: str, package: bytes) -> None:
        name, _, number = key.removeprefix(self._prefix).removesuffix(".zip").rpartition("-")
        if not number.isdigit() or not name.isalnum():
            return  # not one of ours
        session = self._sessions.get(name) or self._open(name)
        for each in session.in_order(int(number), package):
            for line in each.splitlines():
                self._hub.from_client(session.link, wire.decode(line))

    def _open(self, name: str) -> Session:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self._folder / file_name(name)
        file = open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w")  # noqa: SIM115 - closed by `end`
        self._sessions[name] = session = Session(file)
        session.link.write({"relay": "ready"})
        return session

    def _is_busy(self) -> bool:
        return any(time.monotonic() - session.heard < QUIET_SECONDS for session in self._sessions.values())

    def _forget(self) -> None:
        for name, session in list(self._sessions.items()):
            if time.monotonic() - session.heard > FORGOTTEN_SECONDS:
                self._hub.closed(session.link)
                session.end()
                del self._sessions[name]
