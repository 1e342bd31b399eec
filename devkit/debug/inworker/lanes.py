"""A queue of calls and the daemon thread that makes them, one after the other."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from queue import SimpleQueue

from . import threads


class Lane:
    """Starts its thread with the first call. A call that fails is reported, and the next one made."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def put(self, call: Callable[[], None]) -> None:
        self._calls.put(call)
        with self._lock:
            if self._thread is None:
                self._thread = threads.start(self._run, self._name)

    def close(self) -> None:
        """Ends the thread after the calls that wait."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except Exception:  # noqa: BLE001 - keeps the lane going; the trouble is told
                sys.stderr.write(f"devkit: {self._name} had an error\n{traceback.format_exc()}")
