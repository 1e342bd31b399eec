"""One thread that runs a session: what other threads bring comes to it as calls, and what waits has a timer."""

from __future__ import annotations

import heapq
import itertools
import queue
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from devkit.errors import DevkitError

Result = TypeVar("Result")
Call = Callable[[], None]


class Timer:
    """A call at a later time, until it is cancelled."""

    def __init__(self, call: Call) -> None:
        self.call: Call | None = call

    def cancel(self) -> None:
        self.call = None


class Loop:
    """Calls, one after the other. Only `post` may be used by other threads.

    >>> loop = Loop()
    >>> loop.post(lambda: loop.stop(3))
    >>> loop.run()
    3
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Call] = queue.SimpleQueue()
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._code: int | None = None

    def post(self, call: Call) -> None:
        self._calls.put(call)

    def after(self, seconds: float, call: Call) -> Timer:
        timer = Timer(call)
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._order), timer))
        return timer

    def background(
        self, work: Callable[[], Result], done: Callable[[Result], None], failed: Callable[[DevkitError], None]
    ) -> None:
        """Does what may block in a thread of its own, and tells its result here."""

        def run() -> None:
            try:
                result = work()
            except DevkitError as error:
                problem = error
                self.post(lambda: failed(problem))
            else:
                self.post(lambda: done(result))

        threading.Thread(target=run, name="devkit-dap-work", daemon=True).start()

    def stop(self, code: int) -> None:
        """Ends `run`; the first code counts."""
        if self._code is None:
            self._code = code

    def run(self) -> int:
        """Until `stop`; returns its code."""
        while self._code is None:
            try:
                call = self._calls.get(timeout=self._until_next())
            except queue.Empty:
                self._ring()
            else:
                call()
        return self._code

    def _until_next(self) -> float | None:
        while self._timers and self._timers[0][2].call is None:
            heapq.heappop(self._timers)
        return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None

    def _ring(self) -> None:
        while self._code is None and self._timers and self._timers[0][0] <= time.monotonic():
            timer = heapq.heappop(self._timers)[2]
            if timer.call is not None:
                timer.call()
