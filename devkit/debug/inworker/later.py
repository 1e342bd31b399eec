"""A child of a worker has the debugger once it has lived for a while, or as soon as it needs it.

Programs start thousands of short ones: graders run a candidate's code so, each with a limit of a second or two. To load
the debugger takes a quarter of a second of both; what ends before is none the wiser. This module is what every child
loads: nothing but what Python has loaded by itself, and `threading`.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

CHILD_OF = "DEVKIT_CHILD_OF"  # "pid:worker id" of the worker whose child this is
ARMED = "DEVKIT_ARMED"  # set where breakpoints are, which a child may come to at its first line
SETTINGS = "DEVKIT_SETTINGS"  # in a worker's children their text
SECONDS = 0.5  # that a child lives without

_NO_BREAKPOINTS = '"breakpoints": []'


def is_enough(environ: Any) -> bool:
    """Whether this process is a child that nothing has to be armed in before its first line."""
    settings = environ.get(SETTINGS, "")
    owner = environ.get(CHILD_OF, "").partition(":")[0]
    return (
        owner not in ("", str(os.getpid()))
        and not environ.get(ARMED)
        and settings.startswith("{")
        and _NO_BREAKPOINTS in settings
        and '"leave_to_ray": false' in settings
    )


class Later:
    """Starts the debugger once: after a while, or at the first thing that is to be told.

    What is to be told while it is being started by another thread waits for it: until then there is nobody to tell.
    """

    def __init__(self, start: Callable[[], object]) -> None:
        self._start, self._lock, self._is_over = start, _thread.allocate_lock(), False
        self._pid = os.getpid()
        self._thread_hook, self._exit = threading.excepthook, os._exit
        threading.excepthook = self._in_thread
        os._exit = self._at_exit
        if sys.breakpointhook is sys.__breakpointhook__:
            sys.breakpointhook = self._at_breakpoint
        _thread.start_new_thread(self._after, (SECONDS,))

    def now(self) -> bool:
        """Whether it was yet to be started when this was called; not in a forked child, which goes on without."""
        if self._is_over or os.getpid() != self._pid:  # a fork may have copied the lock as it was held
            return False
        with self._lock:
            if not self._is_over:
                self._begin()
        return True

    def _begin(self) -> None:
        try:
            self._start()
        except Exception as error:  # noqa: BLE001 - the child goes on without us; its output tells
            with contextlib.suppress(Exception):
                sys.stderr.write(f"devkit: the debugger could not start: {type(error).__name__}: {error}\n")
        self._is_over = True

    def _after(self, seconds: float) -> None:
        time.sleep(seconds)
        self.now()

    def _in_thread(self, arguments: Any) -> None:
        hook: Any = threading.excepthook if self.now() else None
        (self._thread_hook if hook is None or hook == self._in_thread else hook)(arguments)

    def _at_exit(self, status: int) -> Any:
        leave: Any = os._exit if status and self.now() else None
        (self._exit if leave is None or leave == self._at_exit else leave)(status)

    def _at_breakpoint(self, *arguments: Any, **named: Any) -> Any:
        self.now()
        from .agent import current

        agent = current()
        if agent is None:
            return sys.__breakpointhook__(*arguments, **named)
        agent.pause_here(sys._getframe(1))
        return None


def start_in_process() -> None:
    """Called by `sitecustomize`; see `boot.start_in_process`."""
    if is_enough(os.environ):
        Later(_boot)
    else:
        _boot()


def _boot() -> None:
    from . import boot

    boot.start_in_process()
