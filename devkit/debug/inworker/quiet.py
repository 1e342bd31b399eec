"""Keeps what the debugger does in a thread out of the sight of trace functions, profilers and `sys.monitoring` tools.

Python itself calls a trace function with tracing switched off for the thread, and exports how that is done. None of the
three functions is one of Python's own kind, so that not even a profiler is told of the call. What is called in between
is invisible, however it is traced: a program that counts its calls, and coverage, see the program alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterator
from typing import Any

THREAD, ENTER, LEAVE = "__devkit_thread__", "__devkit_quiet__", "__devkit_loud__"  # their names in `builtins`
_PR_SET_NAME = 15


def _of_python(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    # A prototype of our own: attributes of ctypes.pythonapi are shared with everybody else.
    function: Callable[..., Any] = ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))
    return function


thread = _of_python("PyThreadState_Get", ctypes.c_void_p)
enter = _of_python("PyThreadState_EnterTracing", None, ctypes.c_void_p)
leave = _of_python("PyThreadState_LeaveTracing", None, ctypes.c_void_p)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """For a block that the program's tools must not see; the first call of this very function is still told."""
    enter(thread())
    try:
        yield
    finally:
        leave(thread())


def _tell_kernel(name: str) -> None:
    """`ps -T` and whoever looks from another process know the calling thread by its name then. Linux only."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)  # of which the kernel keeps 15 characters


class Thread(threading.Thread):
    """One of ours, which the program must not see: not by `threading.settrace`, nor in a pydevd of its own."""

    def __init__(self, run: Callable[[], object], name: str) -> None:
        super().__init__(target=run, name=name, daemon=True)
        self.pydev_do_not_trace = True  # a pydevd in this process must not stop it
        self.is_pydev_daemon_thread = True

    def run(self) -> None:
        enter(thread())  # for good
        _tell_kernel(self.name)
        super().run()

    # What the program gives to all threads is there before this is called: it sees a frame of threading, as of any.
    run.__code__ = run.__code__.replace(co_filename=threading.__file__)
