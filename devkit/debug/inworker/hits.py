"""What the inlined code calls. It stands in `builtins`, where every function of the program finds it."""

from __future__ import annotations

import builtins
import os
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from .conditions import Condition
from .instrument import COND, FAILED, FILE, HIT

_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_STANDARD = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_ADDED = (os.path.join(_STANDARD, "site-packages"), os.path.join(_STANDARD, "dist-packages"))

Failure = Callable[[str, BaseException], None]


def install(reached: Callable[[str, FrameType], None], failed: Failure, condition: Callable[[str], Condition]) -> None:
    """`reached` is called at a breakpoint, `failed` for a condition that raised; `condition` finds one by its id."""

    def hit(name: str) -> None:
        reached(name, sys._getframe(1))

    def holds(name: str) -> bool:
        return condition(name).holds(sys._getframe(1))

    def is_the_programs(name: str) -> bool:
        """Whether the exception that is handled now is to go on: not if it is of the condition, or of our own code."""
        error = sys.exception()
        if not isinstance(error, Exception):
            return True
        inner = error.__traceback__.tb_next if error.__traceback__ else None
        if inner is not None and inner.tb_frame.f_code is hit.__code__ and not _is_all_ours(inner):
            return True
        failed(name, error)
        return False

    for name, function in ((HIT, hit), (COND, holds), (FAILED, is_the_programs)):
        setattr(builtins, name, function)


def supply(namespace: dict[str, Any]) -> None:
    """For a function that has builtins of its own."""
    for name in (HIT, COND, FAILED):
        if name not in namespace and hasattr(builtins, name):
            namespace[name] = getattr(builtins, name)


def is_own_doing(frame: FrameType) -> bool:
    """Whether the debugger itself is what runs here: it must not stop at a breakpoint in a module that it uses, too."""
    thread = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]  # current_thread() might make one
    if thread is not None and thread.name.startswith("devkit-"):
        return True
    caller = frame.f_back
    while caller is not None and _is_standard(frame.f_code.co_filename) and _is_standard(caller.f_code.co_filename):
        caller = caller.f_back
    return caller is not None and caller.f_code.co_filename.startswith(_OURS)


def _is_all_ours(traceback: TracebackType | None) -> bool:
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
