"""Exceptions on Python 3.12 and later: `sys.monitoring` tells when one is raised, handled, and raised again.

Nothing is told of code that raises nothing, so that it costs nothing there. What the exit of a `with` does with an
exception is told by the branch behind it: in code in which that has happened, and of no other branch more than once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType, TracebackType
from typing import Any, NamedTuple

from . import landings
from .caught import FLOW, Caught, Flight, flight, is_again, is_pools, is_rays_wrapper, kept_at
from .harmless import harmless
from .sources import is_users, source_of
from .swallowing import USUAL

Raised = Callable[[FrameType, BaseException, TracebackType | None], None]
_TOOLS = (3, 4, 5)  # ids without a name of their own
BELOW = 2  # frames of ours
MOST = 1000  # frames in which something was handled last; those that have ended stay until others come


class _Leaving(NamedTuple):
    """An exception that the exit of a `with` has been given, and may end."""

    flight: Flight
    error: int  # its id
    branch: int  # the instruction that says what becomes of it
    over: int  # where the function goes on without it


class Monitored:
    """Tells `raised` of exceptions in the program's own frames, and counts those that it handles."""

    def __init__(self, raised: Raised, caught: Caught) -> None:
        self._raised, self._caught = raised, caught
        caught.follows = True
        self._handled: dict[int, Flight] = {}  # by the id of the frame: what it handles now, or has handled last
        self._leaving: dict[int, _Leaving] = {}  # by the id of the frame
        # Code whose branches are told of, and those that decide, by its id.
        self._withs: dict[int, tuple[CodeType, frozenset[int]]] = {}
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
        self._events = (*callbacks, events.BRANCH)
        self._monitoring.register_callback(self._tool, events.BRANCH, harmless(self._at_branch))
        for event, callback in callbacks.items():
            self._monitoring.register_callback(self._tool, event, harmless(callback))
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
        for code, _ in self._withs.values():
            self._monitoring.set_local_events(self._tool, code, 0)
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
        frame = sys._getframe(BELOW)
        if self._caught.kept and not is_pools(frame) and not is_rays_wrapper(frame):  # which only pass it on
            self._caught.asked_for(error, error.__traceback__)
        if isinstance(error, FLOW) or not self._is_mine(frame):
            return
        self._leaving.pop(id(frame), None)
        before = self._handled.pop(id(frame), None)
        if before is not None and (is_again(frame, error.__traceback__) or _is_of(error.__context__, before)):
            self._caught.take_back(before)  # the handler raises it by its name, or something else in its place
        self._raised(frame, error, error.__traceback__)

    def _at_handled(self, code: CodeType, offset: int, error: BaseException) -> None:
        frame = sys._getframe(BELOW)
        if isinstance(error, FLOW) or not self._is_mine(frame):
            return
        place = landings.landing(code, offset)
        if place.kind == landings.PASSES or (found := flight(error, error.__traceback__)) is None:
            return
        found = found._replace(entry=(code, offset))
        if place.kind == landings.EXIT:
            self._leaves(frame, _Leaving(found, id(error), place.branch, place.over))
            return
        for key, each in list(self._leaving.items()):
            if each.error == id(error):  # the program's own context manager handles it: it is one, and caught there
                del self._leaving[key]
        self._counts(frame, found)

    def _counts(self, frame: FrameType, found: Flight) -> None:
        if len(self._handled) >= MOST:
            self._handled.clear()
        self._handled[id(frame)] = found
        self._caught.add(found)

    def _leaves(self, frame: FrameType, leaving: _Leaving) -> None:
        """It is caught if the exit of the `with` says so, which may take its time."""
        if len(self._leaving) >= MOST:
            self._leaving.clear()
        self._leaving[id(frame)] = leaving
        if id(frame.f_code) not in self._withs:
            self._withs[id(frame.f_code)] = frame.f_code, landings.branches(frame.f_code)
            self._monitoring.set_local_events(self._tool, frame.f_code, self._monitoring.events.BRANCH)

    def _at_branch(self, code: CodeType, offset: int, destination: int) -> object:
        if id(code) not in self._withs or offset not in self._withs[id(code)][1]:
            return self._monitoring.DISABLE
        frame = sys._getframe(BELOW)
        leaving = self._leaving.pop(id(frame), None)
        if leaving is not None and leaving.branch == offset and destination >= leaving.over:
            self._counts(frame, leaving.flight)
        return None

    def _at_reraise(self, _code: CodeType, _offset: int, error: BaseException) -> None:
        frame = sys._getframe(BELOW)
        if self._is_mine(frame):
            self._goes_on(frame, error)

    def _at_unwind(self, _code: CodeType, _offset: int, error: BaseException) -> None:
        frame = sys._getframe(BELOW)
        if not self._is_mine(frame):
            return
        self._goes_on(frame, error)
        if type(error).__name__ in USUAL:
            return
        if (keeper := kept_at(frame)) is not None and (found := flight(error, error.__traceback__)) is not None:
            self._caught.keep(id(error), found, keeper, frame)

    def _goes_on(self, frame: FrameType, error: BaseException) -> None:
        """It was handled by an `except` for something else, or raised again."""
        self._leaving.pop(id(frame), None)
        before = self._handled.pop(id(frame), None)
        if before is not None and _is_of(error, before):
            self._caught.take_back(before)


def _is_of(error: BaseException | None, before: Flight) -> bool:
    """Whether this is the exception that was handled: of its kind, from its line."""
    found = flight(error, error.__traceback__) if error is not None else None
    return found is not None and (found.kind, found.at) == (before.kind, before.at)
