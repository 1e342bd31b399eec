"""Lets an asyncio loop run on while one of its coroutines is stopped: the stopped thread runs the loop from inside.

Two coroutines of a loop that are stopped at once are nested, the later one inside the earlier one. The earlier one can
be looked at and told to go on, but does so only when the later one has: they share one C stack.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

_NEEDED = ("_run_once", "_ready", "_stopping", "call_soon_threadsafe", "call_later")


def running_loop() -> Any:
    """The asyncio loop that this thread runs now; None without one, or where nobody has loaded asyncio."""
    asyncio = sys.modules.get("asyncio")
    return None if asyncio is None else asyncio._get_running_loop()


def current_task(loop: Any) -> Any:
    return None if loop is None else sys.modules["asyncio"].current_task(loop)


def driver_for(loop: Any, owner: object) -> LoopDriver | None:
    """What runs this loop from inside one of its callbacks; None for a loop that is not asyncio's own (uvloop)."""
    if loop is None or not all(hasattr(loop, name) for name in _NEEDED):
        return None
    return LoopDriver(loop, owner)


class LoopDriver:
    """Runs a loop re-entrantly, between `enter` and `leave`."""

    def __init__(self, loop: Any, owner: object) -> None:
        self._loop = loop
        self._owner = owner
        self.task: Any = None
        self._timer: Any = None
        self._owed = 0
        self._outer: list[LoopDriver] = []

    def enter(self, outer: list[LoopDriver]) -> None:
        """Takes the stopped task out of the loop's hands, so that it may run others."""
        self._outer = [*outer, self]
        self._owed = len(self._loop._ready)
        task = current_task(self._loop)
        if task is not None:
            self.task = task
            _tasks()._leave_task(self._loop, task)

    def leave(self) -> None:
        """Puts everything back, as the callback that was interrupted expects it."""
        if self._timer is not None:
            self._timer.cancel()
        if self.task is not None and current_task(self._loop) is None:
            _tasks()._enter_task(self._loop, self.task)
        # The interrupted `_run_once` counted what was ready before, and will take as many.
        while len(self._loop._ready) < self._owed:
            self._loop._ready.append(_empty_handle(self._loop))

    def turn(self, longest: float) -> bool:
        """One round of the loop, which waits for at most `longest` seconds. False: it can't run now, and would spin."""
        loop = self._loop
        if loop._stopping or loop.is_closed():
            return False
        if self._timer is None:
            self._timer = loop.call_later(longest, partial(setattr, self, "_timer", None))
        # A stopped thread is traced by nobody; what the loop runs is the program's, and may be stepped.
        sys.call_tracing(loop._run_once, ())
        return True

    def wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # closed: nobody runs it any more
            self._loop.call_soon_threadsafe(_nothing)

    @contextlib.contextmanager
    def as_task_of(self, owner: object) -> Iterator[None]:
        """While a job of this stop runs, its task is the current one."""
        task = next((driver.task for driver in self._outer if driver._owner is owner), None)
        if task is None:
            yield
            return
        _tasks()._enter_task(self._loop, task)
        try:
            yield
        finally:
            _tasks()._leave_task(self._loop, task)


def _tasks() -> Any:
    return sys.modules["asyncio.tasks"]


def _empty_handle(loop: Any) -> Any:
    handle = sys.modules["asyncio.events"].Handle(_nothing, (), loop)
    handle.cancel()
    return handle


_nothing = bool  # only to wake a loop; no function of ours, which the program's own tracer would see
