"""What the tests of stops share: one process's stops, programs in threads, and waits that end."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from queue import Queue
from typing import Any

from devkit.debug.inworker.records import Identity, StopRecord
from devkit.debug.inworker.stops import Stop, Stops
from tests.pace import stretched

SECONDS = stretched(20.0)  # the deadline of every wait; far more than any of them needs


def identity() -> Identity:
    return Identity("01", "abcdef0123456789", "node", "10.0.0.5", "host", 4242, "Trainer", rank=3)


class Lot:
    """Stops, a queue of what was told about them, and the threads that a test started."""

    def __init__(self) -> None:
        self.changes: Queue[None] = Queue()
        self.ended: Queue[tuple[StopRecord, str]] = Queue()
        self.stops = Stops(identity, lambda: self.changes.put(None))
        self.stops.on_end = lambda record, why: self.ended.put((record, why))
        self.threads: list[threading.Thread] = []

    def hit(self) -> None:
        """A breakpoint of the caller's."""
        self.stops.park(sys._getframe(1), "breakpoint")

    def start(self, run: Callable[[], Any], name: str = "program") -> threading.Thread:
        thread = threading.Thread(target=run, name=name, daemon=True)
        self.threads.append(thread)
        thread.start()
        return thread

    def wait(self, is_so: Callable[[], Any]) -> Any:
        """The first true answer; asked again at each change."""
        deadline = time.monotonic() + SECONDS
        while not (answer := is_so()):
            left = deadline - time.monotonic()
            assert left > 0, f"not so within {SECONDS} s; stopped: {self.stops.records()}"
            self.changes.get(timeout=left)
        return answer

    def stop(self, *, line: int = 0, function: str = "") -> Stop:
        """The stop at this line or in this function, as soon as there is one."""

        def found() -> Stop | None:
            for record in self.stops.records():
                if (not line or record.line == line) and record.function.endswith(function):
                    return self.stops.get(record.id)
            return None

        stop: Stop = self.wait(found)
        return stop

    def join(self) -> None:
        for thread in self.threads:
            thread.join(SECONDS)
            assert not thread.is_alive(), f"{thread.name} still runs; stopped: {self.stops.records()}"

    def finish(self) -> None:
        """Lets everything go, whatever the test left standing."""
        deadline = time.monotonic() + SECONDS
        while any(thread.is_alive() for thread in self.threads) and time.monotonic() < deadline:
            for stop in self.stops.all():
                self.stops.resume(stop.id)
            for thread in self.threads:
                thread.join(0.01)
