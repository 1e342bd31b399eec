"""Threads that are stopped: each waits on its own, is listed, can be asked, and goes on when it is told to.

A stop ends by `resume`, by its time-out, or by an exception that somebody raises in its thread (Ctrl-C, ray.cancel),
which then goes its way. Nobody who looks at a stop can end it by leaving.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import threading
import time
import traceback as tracebacks
import weakref
from collections import deque
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Literal, Protocol

from . import noting, stepping
from .frames import Frame, chained_frames, live_frames, place_of
from .loops import LoopDriver, driver_for, running_loop
from .parking import Job, Place
from .quiet import quiet
from .records import Identity, Reason, StopRecord

Why = Literal["continued", "stepped", "timeout", "cancelled", "exit"]  # exit: by SIGTERM, as Ray ends workers
How = Literal["continue", "next", "stepIn", "stepOut"]
REMEMBERED = 100


class Viewer(Protocol):
    """Somebody who looks at stops. It is called in the stopping thread, and must only take note."""

    def shows(self, stop: Stop) -> bool: ...
    def stopped(self, stop: Stop) -> None: ...
    def ended(self, stop: Stop, why: Why) -> None: ...


class Stop:
    """One thread at one place. Lives until the thread goes on."""

    def __init__(
        self,
        name: str,
        number: int,
        place: Place,
        frame: FrameType,
        reason: Reason,
        exception: BaseException | None,
        identity: Identity,
    ) -> None:
        self.id = name
        self.identity = identity  # as the stopped thread knows it: another one could not tell its task
        self.thread_id = number  # of the thread in the debug adapter protocol
        self.frame = frame
        self.reason: Reason = reason
        self.exception = exception
        self.breakpoints: tuple[str, ...] = ()  # ids of those of its place that were hit
        self.traceback: TracebackType | None = None
        self.timeout: float | None = None
        self.listed: Callable[[], None] | None = None
        self.since = time.time()
        self.how: str = ""  # set: it may go on
        self.place = place
        self.note = ""  # what is unusual about it
        self.raised: BaseException | None = None  # what its line has just raised: it stops on the way, not at its end
        self.names: dict[str, Any] = {}  # that an expression here may use beside the program's
        self._over = threading.Event()
        self.thread_name = _thread_name(place.ident)

    @property
    def error(self) -> BaseException | None:
        """The exception that it is about."""
        return self.exception or self.raised

    def run(self, call: Callable[[], Any], timeout: float | None = None) -> Any:
        """The result of calling this in the stopped thread, after what was asked before.

        Raises what the call raises, TimeoutError when the deadline passed (the call is then interrupted, as soon as it
        runs Python again), and LookupError when the thread goes on.
        """
        if threading.get_ident() == self.place.ident:
            return call()
        if self._over.is_set():
            raise LookupError("not stopped any more")
        job = Job(call, self)
        self.place.add(job)
        if self._over.is_set():  # it ended just now, and may have looked at its jobs before this one came
            self.place.drop(self)
        if not job.wait(timeout):
            self.place.give_up(job)
            busy = ": it is still busy with the previous request" if self.place.busy else ""
            raise TimeoutError(f"no answer within {timeout:g} s{busy}")
        return job.result()

    def end(self) -> None:
        self._over.set()

    def frames(self) -> list[Frame]:
        """The frames, innermost first; of an exception those that it went through, then those of its causes."""
        if self.exception is not None:
            return chained_frames(self.exception, self.traceback)
        return live_frames(self.frame)


class Stops:
    """All stops of this process."""

    def __init__(self, identity: Callable[[], Identity], changed: Callable[[], None]) -> None:
        self.on_end: Callable[[StopRecord, Why], None] | None = None
        self.gone: deque[tuple[StopRecord, Why]] = deque(maxlen=REMEMBERED)
        self._identity = identity
        self._changed = changed
        self._numbers = itertools.count(1)
        self._reset()
        me = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _reset(me))

    def _reset(self) -> None:
        """A forked child has none of its parent's threads, so none of their stops; and its locks may be held."""
        self._lock = threading.Lock()
        self._stops: dict[str, Stop] = {}
        self._places: dict[int, Place] = {}
        self._thread_numbers: dict[int, int] = {}
        self._viewers: list[Viewer] = []

    # ---- for whoever looks

    def records(self) -> list[StopRecord]:
        return [self.record(stop) for stop in self.all()]

    def all(self) -> list[Stop]:
        with self._lock:
            return list(self._stops.values())

    def get(self, name: str) -> Stop | None:
        return self._stops.get(name)

    def resume(self, name: str, how: How = "continue") -> bool:
        """Lets one stop go on; False if there is none of this id."""
        stop = self._stops.get(name)
        if stop is None:
            return False
        stop.how = stop.how or how
        self._note_nesting(stop)
        stop.place.ring()
        return True

    def watch(self, viewer: Viewer) -> list[Stop]:
        """Tells this viewer of stops from now on; the ones that stand already are the answer."""
        with self._lock:
            self._viewers.append(viewer)
            standing = [stop for stop in self._stops.values() if viewer.shows(stop)]
        self._tell()
        return standing

    def unwatch(self, viewer: Viewer) -> None:
        with self._lock:
            self._viewers = [each for each in self._viewers if each is not viewer]
        self._tell()

    def record(self, stop: Stop) -> StopRecord:
        identity = stop.identity
        file, line, function = place_of(stop.frame, stop.traceback)
        error = stop.error
        with self._lock:
            attached = sum(viewer.shows(stop) for viewer in self._viewers)
        return StopRecord(
            stop.id,
            identity.job_id,
            identity.actor,
            identity.role,
            identity.rank,
            identity.node_ip,
            identity.pid,
            identity.worker_id,
            file,
            line,
            function,
            stop.reason,
            None if error is None else noting.record(error),
            stop.since,
            attached,
            thread=f"{stop.thread_name} ({stop.note})" if stop.note else stop.thread_name,
            breakpoint=next(iter(stop.breakpoints), ""),
            breakpoints=stop.breakpoints,
        )

    def thread_number(self, ident: int) -> int:
        """A small number for a thread, the same for all clients."""
        with self._lock:
            return self._thread_numbers.setdefault(ident, len(self._thread_numbers) + 1)

    # ---- in the thread that stops

    def park(
        self,
        frame: FrameType,
        reason: Reason,
        *,
        exception: BaseException | None = None,
        traceback: TracebackType | None = None,
        breakpoints: tuple[str, ...] = (),
        timeout: float | None = None,
        listed: Callable[[], None] | None = None,
        raised: BaseException | None = None,
    ) -> None:
        """Holds this thread until it is resumed; calls `listed` once the stop can be seen, if it comes to one.

        `exception` stops where one has ended, with the frames of its traceback; `raised` where one begins its way.

        Raises nothing but what others raise in this thread.
        """
        with quiet():
            self._park(frame, reason, exception, traceback, breakpoints, timeout, listed, raised)

    def _park(
        self,
        frame: FrameType,
        reason: Reason,
        exception: BaseException | None,
        traceback: TracebackType | None,
        breakpoints: tuple[str, ...],
        timeout: float | None,
        listed: Callable[[], None] | None,
        raised: BaseException | None,
    ) -> None:
        try:
            place = self._place()
            if place.busy or (reason == "breakpoint" and raised is None and stepping.was_shown(frame)):
                return
            stepping.cancel()
            stop = self._new(place, frame, reason, exception, "")
            stop.traceback = traceback or (exception.__traceback__ if exception is not None else None)
            stop.breakpoints, stop.timeout, stop.listed = breakpoints, timeout, listed
            if raised is not None:
                noting.raised(stop, raised)
            elif reason == "breakpoint":
                noting.handled(stop, frame, sys.exception())
        except Exception:  # noqa: BLE001 - keeps the program running: it passes this stop by, and says so
            _complain("could not stop")
            return
        self._hold(stop)

    def _stepped(self, last: Stop, frame: FrameType) -> None:
        """A step has come to its end: the stop goes on under the same id."""
        place = self._place()
        if not place.busy:
            stop = self._new(place, frame, "step", None, last.id)
            stop.timeout = last.timeout
            noting.result(stop)
            self._hold(stop)

    def _new(self, place: Place, frame: FrameType, reason: Reason, exception: BaseException | None, name: str) -> Stop:
        number, identity = self.thread_number(place.ident), self._identity()
        with self._lock:
            if not name or name in self._stops:
                name = f"{_short(identity.worker_id)}-{next(self._numbers)}"
            if any(stop.thread_id == number for stop in self._stops.values()):
                number = 1_000_000 + int(name.rpartition("-")[2])  # another coroutine of the same thread
            return Stop(name, number, place, frame, reason, exception, identity)

    def _place(self) -> Place:
        ident = threading.get_ident()
        place = self._places.get(ident)
        if place is None:
            place = self._places[ident] = Place()
        return place

    def _hold(self, stop: Stop) -> None:
        why: Why = "cancelled"
        place, frame = stop.place, stop.frame
        loop = running_loop()
        driver = driver_for(loop, stop)
        try:
            if driver is not None:
                driver.enter(place.drivers)
                place.drivers.append(driver)
            self._list(stop, loop, driver)
            deadline = time.monotonic() + stop.timeout if stop.timeout else None
            if place.wait(lambda: bool(stop.how), deadline, driver):
                why = "continued" if stop.how == "continue" else "stepped"
            else:
                why = "timeout"
        except SystemExit:
            why = "exit"
            raise
        finally:
            self._unlist(stop, why)
            if driver is not None:
                place.drivers = [each for each in place.drivers if each is not driver]
                driver.leave()
            _refresh(frame)
        if stop.exception is None:
            stepping.begin(frame, stop.how or "continue", stop.reason, lambda reached: self._stepped(stop, reached))

    def _list(self, stop: Stop, loop: Any, driver: LoopDriver | None) -> None:
        if driver is not None and driver.task is not None:
            stop.thread_name += f" {driver.task.get_name()}"
        elif driver is None and loop is not None:
            stop.note = f"its event loop is also blocked: {type(loop).__module__} can't run inside itself"
        with self._lock:
            self._stops[stop.id] = stop
        if stop.listed is not None:
            stop.listed()
        self._tell(stop, lambda viewer: viewer.stopped(stop))

    def _unlist(self, stop: Stop, why: Why) -> None:
        stop.end()
        with self._lock:
            self._stops.pop(stop.id, None)
            if not any(other.place is stop.place for other in self._stops.values()):
                self._places.pop(stop.place.ident, None)
        stop.place.drop(stop)
        try:
            record = self.record(stop)
            self.gone.append((record, why))
            if self.on_end is not None:
                self.on_end(record, why)
        except Exception:  # noqa: BLE001 - keeps the program running
            _complain("could not tell the end of a stop")
        self._tell(stop, lambda viewer: viewer.ended(stop, why))

    def _note_nesting(self, stop: Stop) -> None:
        """Of two stopped coroutines of a loop, the earlier one is below the later one on the stack."""
        later = [each.id for each in self.all() if each.place is stop.place and each.since > stop.since]
        stop.note = f"goes on when {', '.join(later)} did" if later else stop.note

    def _tell(self, stop: Stop | None = None, what: Callable[[Viewer], None] | None = None) -> None:
        """Tells the viewers of this stop, and then the owner of all stops."""
        try:
            with self._lock:
                viewers = list(self._viewers)
            for viewer in viewers:
                if stop is not None and what is not None and viewer.shows(stop):
                    what(viewer)
            self._changed()
        except Exception:  # noqa: BLE001 - keeps the program running
            _complain("could not tell of a stop")


def _refresh(frame: FrameType) -> None:
    """Reads a frame's variables anew: after a trace function, CPython before 3.13 writes back what it last read.

    A closure that ran meanwhile may have changed them.
    """
    if sys.version_info < (3, 13):
        frame.f_locals  # noqa: B018


def _reset(me: weakref.ref[Stops]) -> None:
    stops = me()
    if stops is not None:
        stops._reset()


def _short(worker_id: str) -> str:
    """What the stops of a process are named by. Children of one worker differ by what is behind its id: their pids.

    >>> _short("4ef79312a0b1c2d3"), _short("4ef79312a0b1c2d3-18354")
    ('4ef79312', '4ef79312-18354')
    """
    worker, dash, child = worker_id.partition("-")
    return f"{worker[:8]}{dash}{child}"


def _thread_name(ident: int) -> str:
    thread = threading._active.get(ident)  # type: ignore[attr-defined]  # `current_thread` would make one up
    return thread.name if thread is not None else f"thread {ident}"


def _complain(text: str) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):  # it has no error stream any more
        sys.stderr.write(f"devkit: {text}\n{tracebacks.format_exc()}")


__all__ = ["Stop", "Stops", "Viewer"]
