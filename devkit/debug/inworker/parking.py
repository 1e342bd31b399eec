"""Where a stopped thread waits: it sleeps until there is a job to do in it, or it may go on.

A thread that runs a plain asyncio loop doesn't sleep, but runs that loop: its other coroutines go on (`loops.py`).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from .loops import LoopDriver

# The longest sleep. An exception that another thread raises in this one (ray.cancel) is only seen between two of them.
SLICE_SECONDS = 0.25
GRACE_SECONDS = 0.2  # for a job that was interrupted to come back with what it has


class _Interrupted(BaseException):
    """Raised inside a job whose deadline has passed."""


class Job:
    """Something to be called in a stopped thread."""

    def __init__(self, call: Callable[[], Any], owner: object) -> None:
        self.owner = owner  # the stop that it belongs to
        self.interrupted = False
        self._call = call
        self._done = threading.Event()
        self._value: Any = None
        self._error: BaseException | None = None

    def execute(self) -> None:
        try:
            self.settle(self._call(), None)
        except _Interrupted:
            self.settle(None, TimeoutError("interrupted"))
        except KeyboardInterrupt as error:
            self.settle(None, error)
            raise  # it was meant for the program: the stop ends
        except BaseException as error:  # noqa: BLE001 - keeps the stop: whoever asked gets it, `exit()` too
            self.settle(None, error)

    def settle(self, value: Any, error: BaseException | None) -> None:
        if not self._done.is_set():
            self._value, self._error = value, error
            self._done.set()

    def wait(self, timeout: float | None) -> bool:
        return self._done.wait(timeout)

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._value


class Place:
    """One thread in which something is stopped, with all its stops: those of an event loop are nested."""

    def __init__(self) -> None:
        self.ident = threading.get_ident()
        self.busy = False  # a job runs, whose breakpoints are passed by
        self.drivers: list[LoopDriver] = []
        self._lock = threading.Lock()
        self._jobs: deque[Job] = deque()
        self._job: Job | None = None
        # A plain lock as the bell: `threading.Condition` could be left locked by an exception from another thread.
        self._bell = threading.Lock()
        self._bell.acquire()

    def ring(self) -> None:
        """Wakes the thread, to look whether it may go on."""
        with contextlib.suppress(RuntimeError):  # it rings already
            self._bell.release()
        for driver in list(self.drivers):
            driver.wake()

    def add(self, job: Job) -> None:
        with self._lock:
            self._jobs.append(job)
        self.ring()

    def wait(self, is_over: Callable[[], bool], deadline: float | None, driver: LoopDriver | None) -> bool:
        """Sleeps and does the jobs until `is_over`; False if the deadline came first."""
        while True:
            self._do_jobs(is_over)
            if is_over():
                return True
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            slice_ = SLICE_SECONDS if left is None else min(SLICE_SECONDS, left)
            if driver is None or not driver.turn(slice_):
                self._bell.acquire(timeout=slice_)

    def _do_jobs(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            with self._lock:
                if not self._jobs:
                    return
                job = self._job = self._jobs.popleft()
            self._do(job)

    def _do(self, job: Job) -> None:
        self.busy = True
        try:
            try:
                with self.drivers[-1].as_task_of(job.owner) if self.drivers else contextlib.nullcontext():
                    job.execute()
            finally:
                with self._lock:
                    self._job = None
        except _Interrupted:
            self._job = None
        finally:
            self.busy = False
        if job.interrupted:
            self._await_interrupt()
        job.settle(None, TimeoutError("interrupted"))

    def give_up(self, job: Job) -> None:
        """The deadline of a job passed: it isn't begun any more, or is interrupted at its next line of Python."""
        with self._lock:
            if job in self._jobs:
                self._jobs.remove(job)
                return
            if self._job is not job:
                return
            job.interrupted = True
            _raise_in(self.ident, _Interrupted)
        job.wait(GRACE_SECONDS)

    def _await_interrupt(self) -> None:
        """It may still be on its way, although the job has ended: then it comes within a few jumps.

        To clear it through the same function would leave CPython 3.11's flag for it set: slow code, endless tracing.
        """
        with contextlib.suppress(_Interrupted):
            for _ in range(100):
                pass

    def drop(self, owner: object) -> None:
        """Its stop ended: jobs that were not begun come back with an error."""
        with self._lock:
            gone = [job for job in self._jobs if job.owner is owner]
            for job in gone:
                self._jobs.remove(job)
        for job in gone:
            job.settle(None, LookupError("not stopped any more"))


def _raise_in(ident: int, error: type[BaseException]) -> None:
    import ctypes

    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(error))
