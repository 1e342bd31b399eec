"""What the inlined code calls. It stands in `builtins`, where every function of the program finds it."""

from __future__ import annotations

import builtins
import os
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from . import threads
from .conditions import Condition
from .inlining import FAILED, HERE, HIT
from .instrument import FILE
from .quiet import ENTER, LEAVE, THREAD, enter, leave, thread

_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_STANDARD = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_ADDED = (os.path.join(_STANDARD, "site-packages"), os.path.join(_STANDARD, "dist-packages"))
NAMES = (HIT, HERE, FAILED, THREAD, ENTER, LEAVE)

_around: set[int] = set()  # code of the debugger's own, by its id

Ids = tuple[str, ...]
Reached = Callable[[Ids, FrameType], None]
Failure = Callable[[str, BaseException], None]


def install(reached: Reached, failed: Failure, condition: Callable[[str], Condition | None]) -> None:
    """`reached` is called at breakpoints, with those of one place that are hit together; `failed` for a condition that
    raised; `condition` finds that of an id.

    Each is called with tracing switched off, and gives the thread for which its caller switches it on again.
    """

    def hit(names: Ids, _quiet: None) -> Any:
        try:
            reached(names, sys._getframe(1))
        except BaseException:
            leave(thread())
            raise
        return thread()

    def here(names: Ids, _quiet: None) -> Any:
        frame = sys._getframe(1)
        try:
            held = tuple(name for name in names if holds(name, frame))
            if held:
                reach(held, frame)
        except BaseException:
            leave(thread())
            raise
        return thread()

    def holds(name: str, frame: FrameType) -> bool:
        asked = condition(name)
        try:
            return asked is None or asked.holds(frame)
        except Exception as error:  # noqa: BLE001 - keeps the program running: a condition that raises is reported
            failed(name, error)
            return False

    def reach(names: Ids, frame: FrameType) -> None:
        try:
            reached(names, frame)
        except Exception as error:
            inner = error.__traceback__.tb_next if error.__traceback__ else None
            if not is_all_ours(inner):
                raise
            failed(names[0], error)

    def is_the_programs(names: Ids, _quiet: None) -> bool:
        """Whether the exception that is handled now is to go on: not if it is of the condition, or of our own code."""
        error = sys.exception()
        if not isinstance(error, Exception):
            return True
        inner = error.__traceback__.tb_next if error.__traceback__ else None
        if inner is not None and inner.tb_frame.f_code is hit.__code__ and not is_all_ours(inner):
            return True
        for name in names:
            failed(name, error)
        return False

    functions = (hit, here, is_the_programs, thread, enter, leave)
    for name, function in zip(NAMES, functions, strict=True):
        setattr(builtins, name, function)


def supply(namespace: dict[str, Any]) -> None:
    """For a function that has builtins of its own."""
    for name in NAMES:
        if name not in namespace and hasattr(builtins, name):
            namespace[name] = getattr(builtins, name)


def calls_the_programs(function: Any) -> Any:
    """Of a function of the debugger's around one of the program's: what that does is the program's own doing."""
    _around.add(id(function.__code__))  # the same of all closures that are made of it
    return function


def is_own_doing(frame: FrameType) -> bool:
    """Whether the debugger itself is what runs here: it must not stop at a breakpoint in a module that it uses, too."""
    thread = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]  # current_thread() might make one
    if threads.is_ours(thread):
        return True
    caller, is_standard = frame.f_back, _is_standard(frame.f_code.co_filename)
    while caller is not None and (
        id(caller.f_code) in _around or (is_standard and _is_standard(caller.f_code.co_filename))
    ):
        caller = caller.f_back
    return caller is not None and caller.f_code.co_filename.startswith(_OURS)


def is_all_ours(traceback: TracebackType | None) -> bool:
    """Whether no frame of the program's, such as a signal's handler, had a part in an exception."""
    while traceback is not None:
        name = traceback.tb_frame.f_code.co_filename
        if name != FILE and not name.startswith(_OURS) and not _is_standard(name):
            return False
        traceback = traceback.tb_next
    return True


def _is_standard(filename: str) -> bool:
    if filename.startswith("<frozen"):
        return True
    return filename.startswith(_STANDARD) and not filename.startswith(_ADDED)
