"""Stops a running thread at its next line, from another thread.

Costs nothing after it has stopped. A thread that waits in C (for a collective, a socket) stops when that returns.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from .frames import is_import, is_machinery, is_own

Stopped = Callable[[FrameType], None]


def pause(thread: int, stopped: Stopped) -> str:
    """Calls `stopped` in that thread, with the frame whose next line is about to run. Gives why not, or ""."""
    frames = _frames_of(thread)
    if not frames:
        return "this thread has no Python frames"
    try:
        pausing = _ByMonitoring if sys.version_info >= (3, 12) else _ByTracing
        return pausing(thread, frames, stopped).start()
    except (RuntimeError, AttributeError, ImportError) as error:  # an interpreter that doesn't offer what this needs
        return f"a running thread can't be paused by this Python: {error}"


def _frames_of(thread: int) -> list[FrameType]:
    """Those of the program; where there are none, of what runs it."""
    frames: list[FrameType] = []
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if not is_own(frame) and not is_import(frame):
            frames.append(frame)
        frame = frame.f_back
    return [frame for frame in frames if not is_machinery(frame)] or frames


class _ByMonitoring:
    """Python 3.12 and later: the lines of the code objects that this thread is in."""

    def __init__(self, thread: int, frames: list[FrameType], stopped: Stopped) -> None:
        self._thread = thread
        self._stopped = stopped
        self._codes: list[CodeType] = list({id(frame.f_code): frame.f_code for frame in frames}.values())
        self._monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
        self._lock = threading.Lock()
        self._is_over = False

    def start(self) -> str:
        tool = next((tool for tool in (3, 5, 4, 1, 2) if self._monitoring.get_tool(tool) is None), None)
        if tool is None:
            return "other tools use all sys.monitoring ids"
        self._tool = tool
        self._monitoring.use_tool_id(tool, "devkit-pause")
        line = self._monitoring.events.LINE
        self._monitoring.register_callback(tool, line, self._at_line)
        for code in self._codes:
            self._monitoring.set_local_events(tool, code, line)
        return ""

    def _at_line(self, _code: CodeType, _line: int) -> None:
        with self._lock:
            if self._is_over or threading.get_ident() != self._thread:
                return
            self._is_over = True
        for code in self._codes:
            self._monitoring.set_local_events(self._tool, code, 0)
        self._monitoring.register_callback(self._tool, self._monitoring.events.LINE, None)
        self._monitoring.free_tool_id(self._tool)
        self._stopped(sys._getframe(1))


class _ByTracing:
    """Python 3.11: a trace function that is set from outside, and takes itself away."""

    def __init__(self, thread: int, frames: list[FrameType], stopped: Stopped) -> None:
        self._thread = thread
        self._frames = frames
        self._stopped = stopped
        self._before: list[tuple[FrameType, Any]] = []
        self._tracer = self._at_call  # one object, to be compared

    def start(self) -> str:
        from .threadtrace import ThreadTrace

        threads = ThreadTrace()
        if threads.traced().get(self._thread):
            return "this thread is traced by another tool"
        for frame in self._frames:
            self._before.append((frame, frame.f_trace))
            frame.f_trace = self._in_frame
        threads.trace([self._thread], self._tracer)
        return ""

    def _at_call(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        return None if is_own(frame) or is_import(frame) or is_machinery(frame) else self._in_frame

    def _in_frame(self, frame: FrameType, event: str, _argument: Any) -> None:
        if event != "line":
            return
        sys.settrace(None)
        for each, before in self._before:
            each.f_trace = before
        if frame.f_trace == self._in_frame:
            frame.f_trace = None
        self._stopped(frame)
