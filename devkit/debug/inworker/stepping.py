"""Steps of one thread, by a trace function that is there only while the step lasts.

`next` ends at the next line of the frame, or of its caller when the frame returns; `stepIn` also at the first line of a
function that is called; `stepOut` at the next line of a caller. A coroutine that awaits takes the trace function
away, and the future that it waits for brings it back just before the coroutine goes on: meanwhile the loop runs at
full speed.

What a line has raised is known at the next one, as `__exception__`. What a function has returned is known where a step
out of it ends, as `__return__`, pdb's name. A function that returns into Ray, or ends its thread, has no such place: it
is shown once more as it returns. A step from there ends nowhere.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from .frames import is_import, is_machinery, is_own
from .inlining import HERE, HIT
from .loops import running_loop

RETURNED, RAISED = "__return__", "__exception__"  # pdb's names
_ENDS = (StopIteration, StopAsyncIteration, GeneratorExit)  # by which loops end, and nothing goes wrong

_GENERATOR, _COROUTINE, _ITERABLE_COROUTINE, _ASYNC_GENERATOR = 0x20, 0x80, 0x100, 0x200
_SUSPENDABLE = _GENERATOR | _COROUTINE | _ITERABLE_COROUTINE | _ASYNC_GENERATOR


def _is_armed(frame: FrameType) -> bool:
    """Whether breakpoints are compiled into what runs here."""
    return HIT in frame.f_code.co_names or HERE in frame.f_code.co_names


class _Here(threading.local):
    step: _Step | None = None  # that traces this thread now
    shown: tuple[FrameType, int] | None = None  # the line at which a step stopped last, not begun yet
    returning: FrameType | None = None  # has come to its end, and has no caller that could be stepped in
    result: tuple[str, Any] | None = None  # the function that the last step left, and what it returned
    error: BaseException | None = None  # that the last step's line raised


_here = _Here()


def begin(frame: FrameType, how: str, reason: str, reached: Callable[[FrameType], None]) -> None:
    """Lets the stopped thread go on, by a step or for good; `reached` is called in it where a step ends."""
    cancel()
    if _here.returning is frame:
        return
    if how == "continue":
        # The line's own breakpoint is still to come. It was shown already; it counts again once the line has begun.
        if _here.shown is not None and _is_armed(frame):
            _Step([frame], frame, "pass", reason, None).install()
        else:
            _here.shown = None
        return
    watched = _outwards(frame)
    if how == "stepOut":
        how, watched = ("stepOut", watched[1:]) if len(watched) > 1 else ("return", watched)
    step = _Step(watched, frame, how, reason, reached)
    if watched or how == "stepIn":
        step.install()


def cancel() -> None:
    """Ends the step of this thread, if there is one: it stopped for another reason."""
    if _here.step is not None:
        _here.step.remove()


def returned(frame: FrameType) -> bool:
    """Whether a step has just stopped where this frame returns."""
    return _here.returning is frame


def result() -> tuple[str, Any] | None:
    """The function that the step which ends now has left, and what it returned."""
    found, _here.result = _here.result, None
    return found


def error() -> BaseException | None:
    """What the line of the step which ends now has raised."""
    found, _here.error = _here.error, None
    return found


def was_shown(frame: FrameType) -> bool:
    """Whether a breakpoint of this frame's line need not stop, since a step has just stopped there."""
    shown, _here.shown = _here.shown, None
    return shown is not None and shown[0] is frame and shown[1] == frame.f_lineno


def _outwards(frame: FrameType) -> list[FrameType]:
    """The frame and its callers, as far as they are the program's."""
    found = [frame]
    caller = frame.f_back
    while caller is not None and not is_own(caller) and not is_machinery(caller):
        found.append(caller)
        caller = caller.f_back
    return found


class _Step:
    """The trace function of one step."""

    def __init__(
        self,
        watched: list[FrameType],
        frame: FrameType,
        how: str,
        reason: str,
        reached: Callable[[FrameType], None] | None,
    ) -> None:
        self._watched = list(watched)
        self._how = how
        self._reached = reached
        self._raised: FrameType | None = None
        self._error: BaseException | None = None
        self._start = frame
        self._result: tuple[str, Any] | None = None
        self._hidden: FrameType | None = None
        self._restore: list[tuple[FrameType, Any]] = []
        self._previous: Any = None
        # A breakpoint of sys.monitoring stops before this line's own event: that one is not the next line.
        self._is_late = reason != "step"
        self._lines: dict[FrameType, tuple[int | None, int]] = {frame: (frame.f_lineno, frame.f_lasti)}
        for each in {id(each): each for each in [frame, *watched]}.values():
            self._restore.append((each, each.f_trace))
            each.f_trace = self._local

    def install(self) -> None:
        if _here.step is not None and _here.step is not self:
            _here.step.remove()
        self._previous = sys.gettrace()
        _here.step = self
        sys.settrace(self._global)

    def remove(self) -> None:
        """Takes all traces of the step away."""
        self._pause()
        for frame, before in self._restore:
            frame.f_trace = before
        self._restore.clear()

    def _pause(self) -> None:
        if _here.step is self:
            _here.step = None
            sys.settrace(self._previous)

    def _global(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Asked at every call: of a function, and of a generator or coroutine that goes on."""
        if self._hidden is not None:
            return None
        if is_own(frame) or is_import(frame):
            self._hidden = frame
            frame.f_trace_lines = False
            return self._in_hidden
        self._begun()
        if self._how == "pass":
            return None
        if self._how == "stepIn" and event == "call" and not _is_watched(self._watched, frame):
            self._restore.append((frame, None))
            return self._local
        return self._local if _is_watched(self._watched, frame) else None

    def _in_hidden(self, frame: FrameType, event: str, _argument: Any) -> Any:
        """Nor is what this package or an import calls in turn the program's next line."""
        if event == "return" and frame is self._hidden:
            self._hidden = None
        return self._in_hidden

    def _begun(self) -> None:
        """The line at which the last step stopped has begun, or is over: its breakpoint would be a new hit."""
        _here.shown = None
        if self._how == "pass":
            self.remove()

    def _local(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            return self._on_line(frame) if self._is_new_line(frame) else self._local
        if event == "exception":
            self._raised = frame
            if frame is self._start and not issubclass(argument[0], _ENDS):
                self._error = argument[1]
        elif event == "return":
            self._begun()
            self._on_return(frame, argument)
        return self._local

    def _is_new_line(self, frame: FrameType) -> bool:
        """Whether it isn't the line that the step began at, whose event may come late or twice."""
        line, last = self._lines.get(frame, (None, -1))
        is_late, self._is_late = self._is_late, False
        self._lines[frame] = (frame.f_lineno, frame.f_lasti)
        if line != frame.f_lineno:
            return True
        # Behind what was inserted for a breakpoint the line begins once more. Going back is a new round of a loop.
        is_twice = frame.f_lasti > last and _is_armed(frame)
        return not is_twice and not (is_late and frame.f_lasti == last)

    def _on_line(self, frame: FrameType) -> Any:
        self._raised = None
        self._begun()
        if self._how == "pass" or not self._ends_in(frame):
            return None
        self.remove()
        if _is_armed(frame):
            _here.shown = (frame, frame.f_lineno or 0)
        assert self._reached is not None
        _here.result, _here.error = self._result, self._error
        self._reached(frame)
        return None  # leaves `f_trace` as the next step may have set it

    def _ends_in(self, frame: FrameType) -> bool:
        return self._how == "stepIn" or (self._how != "return" and _is_watched(self._watched, frame))

    def _on_return(self, frame: FrameType, argument: Any) -> None:
        """It returned, raised, yielded or awaits; only in the last two cases it may go on later."""
        if _is_suspended(frame, self._raised):
            if _awaits(frame, argument):
                self._go_away(argument)
            return
        if frame is self._start and self._raised is not frame:
            self._result = frame.f_code.co_qualname, argument
        was_watched = _is_watched(self._watched, frame)
        self._watched = [each for each in self._watched if each is not frame]
        if not self._watched and (self._how != "stepIn" or _is_last(frame)):
            self.remove()
            if was_watched and self._raised is not frame:
                self._show_return(frame, argument)

    def _show_return(self, frame: FrameType, value: Any) -> None:
        """The last look at a function whose caller is not the program's."""
        if self._reached is None:
            return
        frame.f_locals[RETURNED] = value
        _here.returning, _here.result = frame, (frame.f_code.co_qualname, value)
        try:
            self._reached(frame)
        finally:
            _here.returning = None

    def _go_away(self, future: Any) -> None:
        """Until the coroutine goes on. It is woken after what was registered before it, so after `install`."""
        loop = running_loop()
        if loop is None:
            return
        if hasattr(future, "add_done_callback"):
            self._pause()
            future.add_done_callback(lambda _done: self._come_back())
        elif future is None:
            self._pause()
            loop.call_soon(self._come_back)

    def _come_back(self) -> None:
        if self._restore:
            self.install()


def _is_watched(watched: list[FrameType], frame: FrameType) -> bool:
    return any(each is frame for each in watched)


def _is_last(frame: FrameType) -> bool:
    """Whether no caller is the program's."""
    return len(_outwards(frame)) == 1


def _is_suspended(frame: FrameType, raised: FrameType | None) -> bool:
    if not frame.f_code.co_flags & _SUSPENDABLE or raised is frame:
        return False
    import opcode

    # Not `dis`, which is ten times as much to import.
    return opcode.opname[frame.f_code.co_code[frame.f_lasti]] == "YIELD_VALUE"


def _awaits(frame: FrameType, argument: Any) -> bool:
    """Whether a suspended frame awaits, and has not yielded a value to its consumer."""
    flags = frame.f_code.co_flags
    if flags & _ASYNC_GENERATOR:
        return type(argument).__name__ != "async_generator_wrapped_value"
    return bool(flags & (_COROUTINE | _ITERABLE_COROUTINE))
