"""Exceptions on Python 3.11: a trace function in the program's threads, told of its calls and not of its lines.

A frame does not tell that it has caught something: that is known when it raises something else, or returns as usual.
"""

from __future__ import annotations

import opcode
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, NamedTuple

from . import entering, landings
from .caught import FLOW, Caught, Flight, flight, is_again, kept_at
from .finding import stacks
from .harmless import harmless
from .sources import is_users, source_of
from .swallowing import USUAL
from .threads import is_ours
from .threadtrace import ThreadTrace, give_way

Raised = Callable[[FrameType, BaseException, TracebackType | None], None]
_RETURN, _YIELD = opcode.opmap["RETURN_VALUE"], opcode.opmap["YIELD_VALUE"]
HANDLING_SECONDS = 0.5  # what came to a frame so long ago, and has not left it, is in its handler, or was caught
MOST = 1000  # frames with something in flight; a generator that is dropped stays until others come


class _Flying(NamedTuple):
    flight: Flight
    error: int  # the exception's id, as long as it lives
    since: float  # on the clock that never goes back
    is_met: bool  # whether it came to what may catch it, and not to the exit of a `with` or a `finally` before that

    def is_over(self, now: float) -> bool:
        """Whether it was caught, if the frame is in a handler still."""
        return self.is_met and now - self.since >= HANDLING_SECONDS


class Traced:
    """Tells `raised` of exceptions in the program's own frames, and counts those that it handles."""

    def __init__(self, raised: Raised, caught: Caught) -> None:
        self._raised, self._caught = raised, caught
        caught.follows = True
        self._mine: dict[str, bool] = {}
        self._flying: dict[int, _Flying] = {}  # by the id of the frame
        # Each one object, to be compared: a bound method is made anew at each look.
        self._call, self._local = harmless(self._at_call), harmless(self._in_frame)
        self._threads = ThreadTrace()
        for each in (self._call, self._local):
            give_way(each)
        if threading._trace_hook is None:  # type: ignore[attr-defined]
            threading.settrace(self._call)
        entering.want(self._enter)

    def _enter(self) -> None:
        """In a thread that begins a call of an actor, which may be new to Python."""
        if sys.gettrace() is None:
            sys.settrace(self._call)

    def look(self) -> str:
        """Traces the threads that nobody traces: some came since, of others a stop has taken our place."""
        entering.look()
        taken = {ident for ident, tracer in self._threads.tracers().items() if tracer not in (0, id(self._call))}
        active = dict(threading._active)  # type: ignore[attr-defined]
        wanted = set()
        for thread, frame in stacks():
            if thread not in taken and not is_ours(active.get(thread)):
                wanted.add(thread)
                if frame.f_trace is None and self._is_mine(frame):
                    frame.f_trace_lines = False
                    frame.f_trace = self._local
        self._threads.trace(wanted, self._call)
        return "another tool traces the threads of the program" if taken and not wanted else ""

    def handling(self) -> list[Flight]:
        """What frames that go on have caught last, which nothing has told yet."""
        now = time.monotonic()
        every = [(name, each.flight) for name, each in list(self._flying.items()) if each.is_over(now)]
        passing = (
            {id(frame) for _, frame in stacks() if landings.is_passing(frame.f_code, frame.f_lasti)} if every else ()
        )
        return [found for name, found in every if name not in passing]

    def close(self) -> None:
        entering.forget()
        if threading._trace_hook is self._call:  # type: ignore[attr-defined]
            threading.settrace(None)
        self._threads.clear(list(self._threads.tracers()), self._call)
        for _, frame in stacks():
            if frame.f_trace is self._local:
                frame.f_trace = None
                frame.f_trace_lines = True

    def _is_mine(self, frame: FrameType) -> bool:
        name = source_of(frame)
        known = self._mine.get(name)
        if known is None:
            known = self._mine[name] = is_users(name)
        return known

    # ---- in the traced thread

    def _at_call(self, frame: FrameType, _event: str, _argument: object) -> Any:
        if not self._is_mine(frame):
            return None
        frame.f_trace_lines = False
        return self._local

    def _in_frame(self, frame: FrameType, event: str, argument: Any) -> None:
        # Nothing is returned: what traces this frame stays, even if a stop has put a stepping function in our place.
        if event == "exception":
            _, error, trace = argument
            self._came(frame, error, trace)
        elif event == "return" and id(frame) in self._flying:
            self._left(frame)

    def _came(self, frame: FrameType, error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, FLOW):
            return
        if self._caught.kept:
            self._caught.asked_for(error, trace)
        found = flight(error, trace)
        before = self._flying.pop(id(frame), None)
        if before is not None and not _goes_on(before, frame, error, trace):
            self._add(before)
        if found is None:
            return
        self._raised(frame, error, trace)  # it may stop there
        if len(self._flying) >= MOST:
            self._flying.clear()
        place = landings.landing_from(frame.f_code, frame.f_lasti)
        is_met = place is not None and place.kind == landings.CATCHES
        self._flying[id(frame)] = _Flying(found, id(error), time.monotonic(), is_met)

    def _left(self, frame: FrameType) -> None:
        """In the usual way, it has caught what came to it; by an exception, that goes on."""
        instruction = frame.f_code.co_code[frame.f_lasti]
        if instruction == _YIELD:  # it may be in the middle of its handler, and comes back
            return
        flying = self._flying.pop(id(frame))
        if instruction == _RETURN:
            self._add(flying)
        elif flying.flight.kind not in USUAL and (keeper := kept_at(frame)) is not None:
            self._caught.keep(flying.error, flying.flight, keeper, frame)

    def _add(self, flying: _Flying) -> None:
        self._caught.add(flying.flight)
        for name, each in list(self._flying.items()):
            is_same = each.error == flying.error and each.flight[:3] == flying.flight[:3]
            if is_same and not each.is_met:  # the exit of a `with` is the program's own, and has handled it
                del self._flying[name]


def _goes_on(before: _Flying, frame: FrameType, error: BaseException, trace: TracebackType | None) -> bool:
    """Whether a handler has raised what it handles once more, by its name, or something else in its place."""
    handled = error.__context__
    is_same = id(handled) == before.error and type(handled).__name__ == before.flight.kind  # addresses are used again
    return is_same or is_again(frame, trace)
