"""A connection to the hub through nothing but Ray's dashboard; `inworker/relay.py` is the other end, and says how."""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections.abc import Iterator
from typing import Any

from devkit.debug.dashboard import Dashboard
from devkit.debug.hub_file import HubPlace
from devkit.debug.inworker import relay, wire
from devkit.debug.inworker.hub_place import LOG_FOLDER
from devkit.errors import DeadlineError, DevkitError

POLL_SECONDS = 0.02  # how often the node's agent looks for new lines
RETRY_SECONDS = 0.05
ALIVE_SECONDS = 60.0  # the relay forgets who says nothing for five minutes


class Tunnel:
    """Speaks as `wire.Connection` does. Raises `DeadlineError` when the relay does not answer by `deadline`."""

    def __init__(self, dashboard: Dashboard, place: HubPlace, deadline: float) -> None:
        self._dashboard = dashboard
        self._place = place
        self._session = secrets.token_hex(6)
        self._number = 0
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self.send({"op": "hello", "arguments": {}})
        self._stream, self._first = self._open(deadline)
        threading.Thread(target=self._stay_alive, name="devkit-tunnel", daemon=True).start()

    def send(self, document: dict[str, Any]) -> None:
        with self._lock:
            name = relay.package_name(self._place.hub_id, self._session, self._number)
            self._number += 1
            self._dashboard.put_package(name, wire.encode(document))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        buffer = b""
        for piece in itertools.chain((self._first,), self._stream):
            *lines, buffer = (buffer + piece).split(b"\n")
            yield from (wire.decode(line) for line in lines if line)

    def close(self) -> None:
        if not self._closed.is_set():
            self._closed.set()
            self._stream.close()
            self._dashboard.close()

    def _open(self, deadline: float) -> tuple[Any, bytes]:
        """The file, and its beginning: it is there once the relay has seen the first package."""
        while True:
            try:
                stream = self._follow()
                first = next(iter(stream), b"")
                if first:
                    return stream, first
                stream.close()  # so Ray shows a file that isn't there, when it has lost the error
                problem = "the relay does not respond"
            except DevkitError as error:
                problem = error.message
            if time.monotonic() > deadline:
                raise DeadlineError(
                    "devkit's hub can be reached neither directly nor through the dashboard",
                    hint=f"is it alive, or busy (--timeout SECONDS)? {problem}",
                )
            time.sleep(RETRY_SECONDS)

    def _follow(self) -> Any:
        filename = f"{LOG_FOLDER}/{relay.file_name(self._session)}"
        return self._dashboard.stream_log(self._place.node_id, filename, POLL_SECONDS, opening=5.0)

    def _stay_alive(self) -> None:
        while not self._closed.wait(ALIVE_SECONDS):
            self.send({"op": "hello", "arguments": {}})
