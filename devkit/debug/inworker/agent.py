"""The agent of one process: arms breakpoints, keeps stops and crashes, and tells the hub of them.

Two daemon threads wait without cost: one for what the hub asks, one for something to report. All else happens in the
threads of the program, when they hit a breakpoint or fail. Without a hub everything still works here; it is told when
there is one.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

from . import futures, later, offering, threads, turns, wire
from .channels import Channels
from .crashes import Crashes
from .identity import DRIVER, WORKER, identify
from .ray_table import RayTable
from .reached import Reached
from .settings import OFF, Settings, is_counted
from .stop_line import StopLines
from .words import Complaints

if TYPE_CHECKING:
    from .arming import Arming
    from .card import Card
    from .doing import Doing
    from .made import Call
    from .raising import Raising
    from .records import Breakpoint
    from .stops import Stops

HEARTBEAT_SECONDS = 2.0  # how often the role and the rank are looked at again
NAMELESS_SECONDS = 0.25  # the same, for a worker that may become an actor's at any moment
RETRY_SECONDS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
LEAVE_SECONDS = 0.3  # the most that the end of a process waits for its last report
ALONE_SECONDS = 3.0  # the same, where the hub has not come up yet
SETTLE_SECONDS = 5.0  # the same, of a driver whose Ray ends with it, for what the hub has to find out
REPORT_SECONDS = 0.02  # the least time between two reports
ASKED_TO_EXIT = "the process was asked to exit, as by the end of its job"
REPORTED = ("break",)  # operations whose answer says how things are then
ENDED_TOLD = 50  # stops that ended, told again with each report: the hub may have missed one

Document = dict[str, Any]


class Agent:
    """One per process. `start` is called before the process runs anything of the program."""

    def __init__(self, settings: Settings, locate: Callable[[], Document | None]) -> None:
        self.settings = settings
        self._stops: Stops | None = None  # both are loaded when there is something to stop at: that takes time
        self._arming: Arming | None = None
        self._raising: Raising | None = None
        self._making = threading.RLock()
        self.identity = identify()
        self.start_seconds = 0.0  # what our hook took of the process's start
        self.identified = 0.0  # when that was looked at, on the clock that never goes back
        self._locate = locate
        self._reached = Reached(self)
        self._complaints = Complaints()
        self._ended: deque[Document] = deque(maxlen=ENDED_TOLD)
        self._crashes = Crashes(self)
        self._stop_lines = StopLines()
        self._doing: Doing | None = None
        self.connection: wire.Connection | None = None
        self._channels = Channels(self)
        self._awake = threading.Event()
        self._told = threading.Event()  # nothing is left to report
        self._settled = threading.Event()
        self._reporting = threading.Lock()  # the report that the hub hears last is the newest
        self._last: Document = {}
        self._standing = True
        self._running = True  # its threads; a forked child has none at first
        self._published = RayTable(self) if settings.ray_extension != "off" else None
        self.card: Card | None = None  # where children that are spawned read who this is

    @property
    def stops(self) -> Stops:
        """Where threads of this process are stopped."""
        with self._making:
            if self._stops is None:
                from .stops import Stops

                self._stops = Stops(identify, self.wake)
                self._stops.on_end = self._end
            return self._stops

    @property
    def arming(self) -> Arming:
        """What puts breakpoints into this process."""
        with self._making:
            if self._arming is None:
                from .arming import Arming

                arming = Arming(self._reached.by, self._reached.failed)
                arming.on_change = self.wake
                arming.install()
                self._arming = arming
            return self._arming

    @property
    def raising(self) -> Raising:
        """What tells of exceptions that the program raises, also of those that it catches."""
        with self._making:
            if self._raising is None:
                from .raising import Raising

                self._raising = Raising(self._reached_by_raising, self._failed_at_raising, self.wake)
            return self._raising

    @property
    def has_failed(self) -> bool:
        """Whether an exception has left the program's code here."""
        return self._crashes.any

    def caught(self) -> list[Document]:
        """What the program has raised and caught, where that is counted."""
        return self._raising.listed() if self._raising is not None else []

    def start(self) -> None:
        self._count_caught()
        for each in self.settings.breakpoints:
            self.arm(each)
        self._run()
        atexit.register(self._leave)

    def change(self, settings: Settings) -> None:
        """The job has wishes of its own: they replace those of the cluster."""
        self.settings = settings
        self._count_caught()
        for each in settings.breakpoints:
            self.arm(each)

    def _count_caught(self) -> None:
        if is_counted(self.settings.caught):
            self.raising.count()
        elif self.settings.caught != OFF:
            futures.watch(lambda found: self.raising.keep(found))

    def restart_in_child(self, locate: Callable[[], Document | None]) -> None:
        """In a forked child: no thread of the parent is here. One is started when the child has something to tell."""
        self._locate = locate
        self.connection = None
        self._channels = Channels(self)
        self._ended.clear()
        self._crashes = Crashes(self)
        self._reached.forget_hits()
        if self._raising is not None:
            self._raising.caught.forget()  # its parent tells of that
        self._published = None
        self._doing = None
        self._making = threading.RLock()
        self.card = None
        self._reporting = threading.Lock()
        self._last = {}
        self._awake = threading.Event()
        self._told = threading.Event()
        self._running = False

    def _run(self) -> None:
        self._running = True
        for name, run in (("devkit-agent", self._listen), ("devkit-report", self._tell)):
            threads.start(run, name)

    def stand_down(self) -> None:
        """This process is devkit's own: nothing in it is the program's."""
        self._standing = False
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()
        self.wake()

    def wake(self) -> None:
        """Something changed: the reporting thread looks at it."""
        if not self._running and self._standing:
            self._run()
        self._awake.set()

    # ---- breakpoints; also those that an editor sets through its debug adapter

    def add(self, point: Breakpoint) -> None:
        """Arms it here, from now on."""
        self._reached.points[point.id] = point
        os.environ[later.ARMED] = "1"  # of children that are started from now on
        if point.raises:
            self.raising.add(point)
            self.wake()
        else:
            self.arming.add(point)

    def remove(self, name: str) -> None:
        point = self._reached.points.pop(name, None)
        if not self._reached.points:
            os.environ.pop(later.ARMED, None)
        if point is not None:
            (self.raising if point.raises else self.arming).remove(name)
            self.wake()

    def _reached_by_raising(self, names: tuple[str, ...], frame: FrameType, error: BaseException) -> None:
        self._reached.by(names, frame, error)

    def _failed_at_raising(self, name: str, error: BaseException) -> None:
        self._reached.failed(name, f"{type(error).__name__}: {error}")

    def state(self, name: str) -> Any:
        """In how many places it is armed, and why in none."""
        return self.arming.state(name)

    def _leave(self) -> None:
        """The process ends: how often it has caught what, and why its last stops ended, is told first, for it can't be
        asked later.
        """
        if self.connection is not None and (caught := self.caught()):
            with suppress(OSError):
                self.connection.send({"type": "caught", "caught": caught})
        if self._ended and self.connection is not None:
            self._told.clear()
            self.wake()
            self._told.wait(LEAVE_SECONDS)

    def settle(self) -> None:
        """This driver ends, and the hub with it: what became of workers that are gone is found out and kept first.

        At once where none is missing.
        """
        from .settling import alone

        connection = self.connection
        if connection is not None:
            self._settled.clear()
            with suppress(OSError):
                self._crashes.tell(len(self._crashes))
                # With it, as it can answer nothing any more: an interpreter that ends starts no thread.
                counted = is_counted(self.settings.caught)
                connection.send({"type": "leaving", "caught": self.caught(), "counted": counted})
                self._settled.wait(SETTLE_SECONDS)
        alone(self._crashes.waited, ALONE_SECONDS if connection is None else 0.0)

    # ---- in the program's threads

    def pause_here(self, frame: FrameType) -> None:
        """The program's own `breakpoint()`."""
        self.stops.park(frame, "breakpoint", timeout=self.settings.stop_timeout or None)

    def crashed(self, error: BaseException, kind: str) -> None:
        """An exception leaves the program's code. What is wrong in a process of devkit's own is in its log."""
        if not self._standing:
            return
        self._crashes.happened(error, kind)

    # ---- the thread that listens

    def _listen(self) -> None:
        failures = 0
        while self._standing:
            try:
                self.connection = connection = self._connect()
                self._crashes.joined.set()
                failures = 0
                for document in connection:
                    self._receive(document)
            except Exception as error:  # noqa: BLE001 - keeps the program free of the hub's troubles; they are told
                if not isinstance(error, OSError):
                    self._complaints.tell("the agent lost its connection to the hub", error)
            self._lost_connection()
            if self._standing:
                time.sleep(RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)])
                failures += 1

    def _connect(self) -> wire.Connection:
        from .auth import cluster_token

        place = self._locate()
        if place is None:
            raise ConnectionError("there is no hub yet")
        key = wire.derive_key(cluster_token(), place["hub_id"])
        connection = wire.Connection((place["host"], place["port"]), key, "agent")
        mine = [{**each.to_json(), "job_id": self.identity.job_id} for each in self.settings.breakpoints]
        connection.send({"type": "hello", "identity": identify().to_json(), "breakpoints": mine})
        offering.offer(at_a_signal=self.identity.role != DRIVER)  # the driver is whatever the user has started
        return connection

    def _lost_connection(self) -> None:
        self.connection = None
        self._settled.set()  # nobody would say so
        self._channels.close()

    def _receive(self, document: Document) -> None:
        kind = document.get("type")
        if kind == "welcome":
            for name in document.get("cleared", ()):
                self.remove(name)
            if document["breakpoints"]:
                from .records import Breakpoint

                for each in document["breakpoints"]:
                    self.arm(Breakpoint.from_json(each))
            self.wake()
        elif kind == "request":
            threads.start(lambda: self._answer(document), "devkit-request")
        elif kind == "channel":
            self._channels.receive(document)
        elif kind == "settled":
            self._settled.set()

    def _answer(self, document: Document) -> None:
        from .operations import OPERATIONS

        try:
            with turns.often():
                reply = OPERATIONS[document["op"]](self, document)
        except Exception as error:  # noqa: BLE001 - whatever it is, who asked is told
            reply = {"error": f"{type(error).__name__}: {error}"}
        with self._reporting:
            if document["op"] in REPORTED:
                reply["report"] = self._last = self.report()
            self.send({"type": "reply", "id": document["id"], **reply})

    # ---- the thread that tells

    def _tell(self) -> None:
        told: wire.Connection | None = None
        while self._standing:
            self._awake.wait(NAMELESS_SECONDS if self.identity.role == WORKER else HEARTBEAT_SECONDS)
            self._awake.clear()
            try:
                if self._published is not None:
                    self._published.update(len(self.stops.records()) if self._stops else 0)
                connection = self.connection
                crashes = len(self._crashes)  # those whose stop, if they have one, is in this report
                with self._reporting:
                    report = self.report()
                    if connection is not None and (report != self._last or connection is not told):
                        connection.send({"type": "report", **report})
                        self._last, told = report, connection
                if connection is not None:
                    self._stop_lines.tell(report["stops"])
                self._crashes.tell(crashes)
                self._tell_place(connection)
                offering.look_again()
            except OSError:
                self._last = {}  # the listening thread connects again, and wakes this one
            except Exception as error:  # noqa: BLE001 - keeps the reports coming; the trouble is told
                self._complaints.tell("the agent could not report", error)
            if not self._awake.is_set():
                self._told.set()
            time.sleep(REPORT_SECONDS)

    def _tell_place(self, connection: wire.Connection | None) -> None:
        """For who looks for the cause when this process has been killed."""
        self._look_at_place().tell(connection, self.identity.to_json())

    def _look_at_place(self) -> Doing:
        with self._making:
            if self._doing is None:
                from .doing import Doing

                self._doing = Doing()
            return self._doing

    def making(self, call: Call | None) -> None:
        """The actor of this process is about to be made, or (None) is made. Told at once: the next may be its end."""
        if not self._standing:
            return
        if call is not None:
            self._look_at_place().making(call)
        try:
            with self._reporting:
                report, connection = self.report(), self.connection
                if connection is not None:
                    connection.send({"type": "report", **report})
            self._tell_place(connection)
        except Exception as error:  # noqa: BLE001 - the actor is made all the same
            self._complaints.tell("the agent could not tell of its actor", error)
        self.wake()

    def has_news(self) -> None:
        """It has put an object where it had put none before, or is about to kill an actor."""
        if self._standing:
            self._look_at_place().now()
            self.wake()

    def report(self) -> Document:
        before = self.identity
        self.look_who()  # of this thread: it knows no task
        if self.card is not None and self.identity != before:
            self.card.write(self.identity.to_json())
        armed = {name: self._reached.told(name) for name in list(self._reached.points)}
        stops = [stop.to_json() for stop in self.stops.records()] if self._stops else []
        if self._raising is not None:
            self._raising.look()
        report = {"identity": self.identity.to_json(), "stops": stops, "armed": armed, "ended": list(self._ended)}
        return {**report, "caught": caught} if (caught := self.caught()) else report

    def _end(self, record: Any, why: str) -> None:
        end = {"id": record.id, "why": ASKED_TO_EXIT if why == "exit" else why}
        told = any(stop["id"] == record.id for stop in self._last.get("stops", ()))
        self._ended.append(end if told else {**end, "stop": record.to_json()})  # over before the hub has heard of it
        self.wake()

    def send(self, document: Document) -> None:
        connection = self.connection
        if connection is None:
            return
        with suppress(OSError):  # the listening thread sees it too, and connects again
            connection.send(document)

    # ---- common

    def look_who(self) -> None:
        """The role and the rank may have changed."""
        self.identity, self.identified = identify(), time.monotonic()

    def arm(self, point: Breakpoint) -> None:
        if point.id in self._reached.points or not self._is_for_this_job(point):
            return
        self.add(point)

    def _is_for_this_job(self, point: Breakpoint) -> bool:
        return not point.job_id or self.identity.job_id in ("", point.job_id)


_agent: Agent | None = None


def current() -> Agent | None:
    """The agent of this process."""
    return _agent


def launch(settings: Settings, locate: Callable[[], Document | None]) -> Agent:
    """Starts the agent of this process, once."""
    global _agent
    if _agent is None:
        _agent = Agent(settings, locate)
        _agent.start()
    return _agent


def stand_down() -> None:
    """This process is devkit's own: it has no agent from now on."""
    if _agent is not None:
        _agent.stand_down()


__all__ = ["Agent", "current", "launch", "stand_down"]
