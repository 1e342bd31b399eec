"""Exceptions as the program raises them: stopped at (`--break-on`), and counted where the program itself catches them.

Python 3.12 tells of exceptions alone (`raising_monitored.py`). On 3.11 the program's threads are traced for it
(`raising_traced.py`), which costs each of its calls something: only where somebody has asked.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Protocol

from .caught import FLOW, Caught, Flight, places
from .conditions import Condition
from .records import Breakpoint

Hit = Callable[[tuple[str, ...], FrameType, BaseException], None]
Failed = Callable[[str, BaseException], None]


class Engine(Protocol):
    """What tells of exceptions."""

    def look(self) -> str:
        """Covers threads that came since; gives what is in the way, or ""."""

    def handling(self) -> list[Flight]:
        """What was caught, and is not counted yet."""

    def close(self) -> None: ...


class Raising:
    """One per process. `add`, `remove` and `look` are for one thread at a time; all else is the program's threads."""

    def __init__(self, on_hit: Hit, on_failed: Failed, on_new: Callable[[], object]) -> None:
        """`on_new`: something was caught for the first time."""
        self.caught = Caught(on_new)
        self._on_hit, self._on_failed = on_hit, on_failed
        self._points: dict[str, tuple[Breakpoint, Condition | None]] = {}
        self._counts = False
        self._engine: Engine | None = None
        self._problem = ""

    def count(self) -> None:
        """Counts from now on what is caught."""
        self._counts = True
        self.look()

    def keep(self, found: Flight) -> None:
        """Counts what a Future keeps, unless that is counted anyway."""
        if not self._counts:
            self.caught.add(found)

    def add(self, point: Breakpoint) -> None:
        condition = Condition(point.condition) if point.condition else None
        self._points = {**self._points, point.id: (point, condition)}
        self.look()

    def remove(self, name: str) -> None:
        self._points = {each: known for each, known in self._points.items() if each != name}
        if self._engine is not None and not self._is_wanted:
            self._engine.close()
            self._engine = None

    def look(self) -> str:
        """Covers what is there now. Gives why exceptions can't be seen, or ""."""
        if not self._is_wanted:
            return ""
        try:
            if self._engine is None:
                self._engine = self._made()
            self._problem = self._engine.look()
        except (RuntimeError, AttributeError, ValueError) as error:
            self._problem = f"this Python does not tell of exceptions: {error}"
        return self._problem

    @property
    def problem(self) -> str:
        return self._problem

    @property
    def _is_wanted(self) -> bool:
        return self._counts or bool(self._points)

    def _made(self) -> Engine:
        if sys.version_info >= (3, 12):
            from .raising_monitored import Monitored

            return Monitored(self.raised, self.caught)
        from .raising_traced import Traced

        return Traced(self.raised, self.caught)

    def listed(self) -> list[dict[str, Any]]:
        """What was caught, as `Caught.listed` has it."""
        return self.caught.listed(self._engine.handling() if self._engine is not None else ())

    # ---- in the program's threads

    def raised(self, frame: FrameType, error: BaseException, trace: TracebackType | None) -> None:
        """An exception has come into a frame of the program. The first of them is where it stops."""
        if not self._points or len(list(places(trace))) != 1:
            return
        names = [type(error)] if isinstance(error, FLOW) else type(error).__mro__
        known = {name for each in names for name in (each.__name__, f"{each.__module__}.{each.__qualname__}")}
        points = [(point, asked) for point, asked in self._points.values() if point.raises in known]
        hit = tuple(point.id for point, asked in points if self._holds(point, asked, frame))
        if hit:
            self._on_hit(hit, frame, error)

    def _holds(self, point: Breakpoint, condition: Condition | None, frame: FrameType) -> bool:
        try:
            return condition is None or condition.holds(frame)
        except Exception as error:  # noqa: BLE001 - keeps the program running: a condition that raises is reported
            self._on_failed(point.id, error)
            return False
