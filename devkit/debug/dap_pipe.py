"""A socket for the child sessions of one parent: an editor that can connect to it needs no process for each rank.

It lies in a folder that only this user can enter. No port is opened.
"""

from __future__ import annotations

import os
import socket
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from devkit.debug.dap_loop import Loop
from devkit.debug.dap_stdio import Editor
from devkit.debug.inworker import private

MOST_BYTES = 103  # of a socket's path, where it is shortest: macOS
BACKLOG = 256  # the children of a large job come all at once
END_SECONDS = 2.0
PREFIX = "devkit-dap-"


class Child(Protocol):
    """The session of one connection."""

    def start(self) -> None: ...

    def leave(self) -> None: ...

    def end(self, text: str, code: int) -> None: ...


class ChildServer:
    """Each connection is a session in a thread of its own, with a loop of its own."""

    def __init__(self, folder: tempfile.TemporaryDirectory[str], make: Callable[[Loop, Editor], Child]) -> None:
        self._folder, self._make = folder, make
        self._running: dict[threading.Thread, tuple[Loop, Child]] = {}
        self._lock = threading.Lock()
        self._is_closed = False
        self.path = os.path.join(folder.name, "s")
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(self.path)
        self._server.listen(BACKLOG)
        threading.Thread(target=self._accept, name="devkit-dap-pipe", daemon=True).start()

    def end_all(self, text: str, code: int) -> None:
        """Their program is over: each tells its editor so."""
        with self._lock:
            running = list(self._running.values())
        for loop, child in running:
            loop.post(lambda child=child: child.end(text, code))  # type: ignore[misc]

    def close(self) -> None:
        """Ends all children; the stops that they show stay."""
        with self._lock:
            self._is_closed = True
            running = dict(self._running)
        with suppress(OSError):  # macOS: a socket that listens has no connection to shut down
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for loop, child in running.values():
            loop.post(child.leave)
        for thread in running:
            thread.join(END_SECONDS)
        self._folder.cleanup()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            if not private.is_same_user(connection):
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(connection,), name="devkit-dap-child", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        loop = Loop()
        reader, writer = connection.makefile("rb", buffering=0), connection.makefile("wb")
        editor = Editor(loop, reader, writer)  # type: ignore[arg-type]  # raw, as stdin is
        child = self._make(loop, editor)
        with self._lock:
            is_closed = self._is_closed
            self._running[threading.current_thread()] = (loop, child)
        try:
            if not is_closed:
                child.start()
                loop.run()
        finally:
            with self._lock:
                del self._running[threading.current_thread()]
            with suppress(OSError):  # the other end is gone, and what was meant for it is lost
                writer.close()
            with suppress(OSError):  # the thread that reads waits until this end is shut
                connection.shutdown(socket.SHUT_RDWR)
            editor.join(END_SECONDS)
            reader.close()
            connection.close()


def open_pipe(make: Callable[[Loop, Editor], Child]) -> ChildServer | None:
    """None where there are no such sockets, or no folder with a path that is short enough."""
    if not hasattr(socket, "AF_UNIX"):
        return None
    for place in (private.temporary(), "/tmp"):  # the folder itself is fresh, and closed to others
        try:
            folder = tempfile.TemporaryDirectory(prefix=PREFIX, dir=place, ignore_cleanup_errors=True)
        except OSError:
            continue
        if len(os.fsencode(os.path.join(folder.name, "s"))) <= MOST_BYTES:
            return ChildServer(folder, make)
        folder.cleanup()
    return None
