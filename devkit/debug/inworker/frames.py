"""Frames of a stopped thread or of an exception, and which of them are the program's."""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass
from types import CodeType, FrameType, TracebackType
from typing import Any

MOST = 500  # frames, of a recursion without end
_OWN = ("devkit_inworker", "devkit.debug.inworker")
_MACHINERY = frozenset(("asyncio", "ray", "threading", "concurrent", "importlib", "selectors", "contextvars"))


@dataclass(frozen=True)
class Frame:
    """One line of a stack."""

    frame: FrameType
    file: str
    line: int
    function: str  # as it is shown: of a chained exception with a mark in front


def is_own(frame: FrameType) -> bool:
    """Whether it is this package's."""
    module = frame.f_globals.get("__name__")
    return isinstance(module, str) and module.startswith(_OWN)


def is_machinery(frame: FrameType) -> bool:
    """Whether it belongs to what calls a program's functions: event loops, Ray's workers, threads, imports."""
    module = frame.f_globals.get("__name__")
    return isinstance(module, str) and module.split(".")[0] in _MACHINERY


def is_import(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith("<frozen importlib")


def file_of(code: CodeType) -> str:
    """The file of a piece of code, as an absolute path where there is one."""
    name = code.co_filename
    if not os.path.isabs(name) and not name.startswith("<") and os.path.exists(name):
        return os.path.abspath(name)
    return name


def live_frames(frame: FrameType | None) -> list[Frame]:
    """From this frame outwards, as far as the loop that a stopped coroutine of the same thread runs."""
    found: list[Frame] = []
    while frame is not None and len(found) < MOST and not (is_own(frame) and frame.f_code.co_name == "_hold"):
        if not is_own(frame):
            found.append(Frame(frame, file_of(frame.f_code), frame.f_lineno or 0, frame.f_code.co_qualname))
        frame = frame.f_back
    return found


def chained_frames(error: BaseException, traceback: TracebackType | None) -> list[Frame]:
    """The frames that an exception went through, innermost first, then those of its causes."""
    found = _of_traceback(traceback or error.__traceback__, "")
    seen = {id(error)}
    while (cause := _cause_of(error)) is not None and id(cause) not in seen and len(found) < MOST:
        seen.add(id(cause))
        word = "caused by" if error.__cause__ is cause else "while handling"
        found += _of_traceback(cause.__traceback__, f"[{word}: {type(cause).__name__}] ")
        error = cause
    return found


def _cause_of(error: BaseException) -> BaseException | None:
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _of_traceback(traceback: TracebackType | None, mark: str) -> list[Frame]:
    found: deque[Frame] = deque(maxlen=MOST)
    while traceback is not None:
        code = traceback.tb_frame.f_code
        found.append(Frame(traceback.tb_frame, file_of(code), traceback.tb_lineno or 0, mark + code.co_qualname))
        traceback = traceback.tb_next
    return list(found)[::-1]


def place_of(frame: FrameType, traceback: TracebackType | None) -> tuple[str, int, str]:
    """File, line and function: of an exception, where it went through this frame."""
    line: Any = frame.f_lineno
    while traceback is not None:
        if traceback.tb_frame is frame:
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return file_of(frame.f_code), line or 0, frame.f_code.co_qualname
