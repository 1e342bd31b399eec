"""The hub for clients that reach nothing but Ray's dashboard.

Up: the client uploads small packages (`PUT /api/packages/gcs/NAME.zip`), which Ray puts into its key-value store; the
relay looks for them there. Down: the relay writes lines into a file among Ray's logs, which the client follows
(`GET /api/v0/logs/stream`). Both ends of it are the dashboard's, with its token.

    NAME    devkit-<hub>-<session>-<number>      documents, one a line
    file    devkit/relay-<session>.out           documents, one a line
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from . import private, wire
from .blocking import in_thread
from .hub import Hub
from .hub_links import Link
from .hub_place import KV_SECONDS
from .table import Document
from .words import Complaints

IDLE_SECONDS = 0.1  # between two looks while nobody speaks through the relay
BUSY_SECONDS = 0.01
QUIET_SECONDS = 30.0  # without a word for so long, a session is idle
FORGOTTEN_SECONDS = 300.0  # and for so long, it is over
HUB_ID_SHOWN = 12  # characters

_NAME = re.compile(r"([0-9A-Za-z]{1,64})-([0-9]{1,12})\.zip")  # of a package, behind the hub's prefix
_PREFIX, _SUFFIX = "relay-", ".out"


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
    return f"{_PREFIX}{session}{_SUFFIX}"


class Session:
    """One client behind the dashboard."""

    def __init__(self, path: Path) -> None:
        """Raises OSError when the file can't be this user's alone."""
        private.remove(path)
        self._path, self._file = path, open(private.create(path), "w")  # noqa: SIM115 - closed by `end`
        self.link = Link(self._write)
        self.next = 0
        self.heard = time.monotonic()
        self.held: dict[int, bytes] = {}  # packages that came before an earlier one

    def _write(self, document: Document) -> None:
        self._file.write(wire.encode(document).decode())
        self._file.flush()

    def in_order(self, number: int, package: bytes) -> Iterable[bytes]:
        self.heard = time.monotonic()
        if number >= self.next:
            self.held[number] = package
        while self.next in self.held:
            yield self.held.pop(self.next)
            self.next += 1

    def end(self) -> None:
        self._file.close()
        with suppress(OSError):
            private.remove(self._path)


class Relay:
    """Looks for packages, hands what is in them to the hub, and writes the answers."""

    def __init__(self, hub: Hub, hub_id: str, folder: Path, gcs: Any) -> None:
        self._hub = hub
        self._prefix = f"gcs://{prefix(hub_id)}"
        self._folder = folder
        self._gcs = gcs
        self._sessions: dict[str, Session] = {}
        self._complaints = Complaints()

    async def run(self) -> None:
        """Never ends."""
        self._sweep()
        while True:
            for key, package in await in_thread(self._fetch):
                try:
                    self._take(key, package)
                except Exception as error:  # noqa: BLE001 - a package that can't be read is not the end of the hub
                    self._complaints.tell("the relay passed over a package", error)
            self._forget()
            await asyncio.sleep(BUSY_SECONDS if self._is_busy() else IDLE_SECONDS)

    def _fetch(self) -> list[tuple[str, bytes]]:
        """Packages that are taken away, as far as the GCS answers; one that it gives twice is passed over later."""
        found = []
        try:
            for key in self._gcs.internal_kv_keys(self._prefix.encode(), None, timeout=KV_SECONDS) or ():
                package = self._gcs.internal_kv_get(key, None, timeout=KV_SECONDS)
                if package is not None:
                    found.append((key.decode(), package))
                self._gcs.internal_kv_del(key, False, None, timeout=KV_SECONDS)
        except Exception as error:  # noqa: BLE001 - Ray has many; a GCS that is busy is asked again
            self._complaints.tell("the relay waits for Ray's GCS", error)
        return found

    def _take(self, key: str, package: bytes) -> None:
        found = _NAME.fullmatch(key.removeprefix(self._prefix))
        if found is None:
            return  # not one of ours
        name, number = found.groups()
        session = self._sessions.get(name) or self._open(name)
        for each in session.in_order(int(number), package):
            for line in each.splitlines():
                self._hub.from_client(session.link, wire.decode(line))

    def _open(self, name: str) -> Session:
        self._sessions[name] = session = Session(self._folder / file_name(name))
        session.link.write({"relay": "ready"})
        return session

    def _sweep(self) -> None:
        """What an earlier hub was writing when it ended: nobody reads it any more."""
        with suppress(OSError):
            for name in private.names(self._folder):
                if name.startswith(_PREFIX) and name.endswith(_SUFFIX):
                    private.remove(self._folder / name)

    def _is_busy(self) -> bool:
        return any(time.monotonic() - session.heard < QUIET_SECONDS for session in self._sessions.values())

    def _forget(self) -> None:
        for name, session in list(self._sessions.items()):
            if time.monotonic() - session.heard > FORGOTTEN_SECONDS:
                self._hub.closed(session.link)
                session.end()
                del self._sessions[name]
