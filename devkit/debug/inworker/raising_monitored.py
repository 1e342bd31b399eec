"""Exceptions on Python 3.12 and later: `sys.monitoring` tells when one is raised, handled, and raised again.

Nothing is told of code that raises nothing, so that it costs nothing there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType, TracebackType
from typing import Any

from .caught import FLOW, Caught, Flight, flight, is_again, is_pools, is_rays_wrapper, kept_at
from .sources import is_users, source_of
from .swallowing import USUAL

Raised = Callable[[FrameType, BaseException, TracebackType | None], None]
_TOOLS = (3, 4, 5)  # ids without a name of their own
MOST = 1000  # frames in which something was handled last; those that have ended stay until others come


class Monitored:
    """Tells `raised` of exceptions in the program's own frames, and counts those that it handles."""

    def __init__(self, raised: Raised, caught: Caught) -> None:
        self._raised, self._caught = raised, caught
        caught.follows = True
        self._handled: dict[int, Flight] = {}  # by the id of the frame: what it handles now, or has handled last
        self._mine: dict[str, bool] = {}
        self._monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
        events = self._monitoring.events
        callbacks = {
            events.RAISE: self._at_raise,
            events.EXCEPTION_HANDLED: self._at_handled,
            events.RERAISE: self._at_reraise,
            events.PY_UNWIND: self._at_unwind,
        }
        self._tool = self._free_tool()
        self._events = tuple(callbacks)
        for event, callback in callbacks.items():
            self._monitoring.register_callback(self._tool, event, callback)
        self._monitoring.set_events(self._tool, sum(callbacks))

    def _free_tool(self) -> int:
        for tool in _TOOLS:
            if self._monitoring.get_tool(tool) is None:
                self._monitoring.use_tool_id(tool, "devkit-raising")
                return tool
        raise RuntimeError("other tools use all sys.monitoring ids")

    def look(self) -> str:
        """All threads are covered from the start."""
        return ""

    def handling(self) -> list[Flight]:
        """They are counted at once."""
        return []

    def close(self) -> None:
        self._monitoring.set_events(self._tool, 0)
        for event in self._events:
            self._monitoring.register_callback(self._tool, event, None)
        self._monitoring.free_tool_id(self._tool)

    def _is_mine(self, frame: FrameType) -> bool:
        name = source_of(frame)
        known = self._mine.get(name)
        if known is None:
            known = self._mine[name] = is_users(name)
        return known

    def _at_raise(self, _code: CodeType, _offset: int, error: BaseException) -> None:
        frame = sys._getframe(1)
        if self._caught.kept and not is_pools(frame) and not is_rays_wrapper(frame):  # which only pass it on
            self._caught.asked_for(error, error.__traceback__)
        if isinstance(error, FLOW) or not self._is_mine(frame):
            return
        before = self._handled.pop(id(frame), None)
        if before is not None and (is_again(frame, error.__traceback__) or _is_of(error.__context__, before)):
            self._caught.take_back(before)  # the handler raises it by its name, or something else in its place
        self._raised(frame, error, error.__traceback__)

    def _at_handled(self, code: CodeType, offset: int, error: BaseException) -> None:
        frame = sys._getframe(1)
        if self._is_mine(frame) and (found := flight(error, error.__traceback__)) is not None:
            if len(self._handled) >= MOST:
                self._handled.clear()
            self._handled[id(frame)] = found
            self._caught.add(found._replace(entry=(code, offset)))

    def _at_reraise(self, _code: CodeType, _offset: int, error: BaseException) -> None:
        frame = sys._getframe(1)
        if self._is_mine(frame):
            self._goes_on(frame, error)

    def _at_unwind(self, _code: CodeType, _offset: int, error: BaseException) -> None:
        frame = sys._getframe(1)
        if not self._is_mine(frame):
            return
        self._goes_on(frame, error)
        if type(error).__name__ in USUAL:
            return
        if (keeper := kept_at(frame)) is not None and (found := flight(error, error.__traceback__)) is not None:
            self._caught.keep(id(error), found, keeper, frame)

    def _goes_on(self, frame: FrameType, error: BaseException) -> None:
        """It was handled by a `finally`, by an `except` for something else, or raised again."""
        before = self._handled.pop(id(frame), None)
        if before is not None and _is_of(error, before):
            self._caught.take_back(before)


def _is_of(error: BaseException | None, before: Flight) -> bool:
    """Whether this is the exception that was handled: of its kind, from its line."""
    found = flight(error, error.__traceback__) if error is not None else None
    return found is not None and (found.kind, found.at) == (before.kind, before.at)
