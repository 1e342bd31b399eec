"""A session's connection to the hub: news of all stops, and a new connection when the hub was lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from devkit.debug.dap_loop import Loop, Timer
from devkit.debug.inworker.records import StopRecord
from devkit.debug.protocols import Channel, Document
from devkit.debug.targets import find_id
from devkit.errors import DeadlineError, DevkitError, UnreachableError, UsageError

RECONNECT_SECONDS = 60.0  # for a hub that went away, or a worker whose connection broke
RETRY_SECONDS = 0.3
ROOTS_SECONDS = 2.0
ROOTS = "[path for path in __import__('sys').path if '_ray_pkg_' in path]"


class DapHub(Protocol):
    """What a session needs of `client.HubClient`."""

    def call(self, op: str, *, timeout: float | None = None, **arguments: Any) -> Document: ...

    def channel(self, worker_id: str, only: str | None = None) -> Channel: ...

    def watch(self) -> Iterator[Document]: ...

    def close(self) -> None: ...


Connect = Callable[[], DapHub]


@dataclass(frozen=True)
class Listener:
    """Whom the cluster tells. All are called in the loop's thread."""

    on_ps: Callable[[Document], None]
    on_lost: Callable[[], None]
    on_back: Callable[[], None]
    on_given_up: Callable[[DevkitError], None]


class Connected(Protocol):
    """What a session does with its connection: a `Cluster`, or a child's share in its parent's one."""

    @property
    def hub(self) -> DapHub: ...

    @property
    def seconds(self) -> float: ...

    def start(self, listener: Listener) -> None: ...

    def close(self) -> None: ...

    def refresh_later(self) -> None: ...

    def open(
        self, worker_id: str, only: str | None, done: Callable[[Channel], None], failed: Callable[[DevkitError], None]
    ) -> None: ...


class Cluster:
    """The hub as long as the session lasts. All but the two threads' own work is done in the loop's thread."""

    def __init__(self, loop: Loop, connect: Connect, hub: DapHub, seconds: float = RECONNECT_SECONDS) -> None:
        self.hub = hub
        self.seconds = seconds
        self.ps: Document = {}  # the last news
        self._loop, self._connect = loop, connect
        self._listeners: list[Listener] = []
        self._closed = threading.Event()
        self._refresh: Timer | None = None
        self._is_watching = False

    def start(self, listener: Listener) -> None:
        """Tells this one too, from now on."""
        self._listeners.append(listener)
        if self.ps:
            listener.on_ps(self.ps)
        if not self._is_watching:
            self._is_watching = True
            self._watch()

    def stop(self, listener: Listener) -> None:
        self._listeners = [each for each in self._listeners if each is not listener]

    def close(self) -> None:
        self._closed.set()
        self.hub.close()

    def refresh_later(self) -> None:
        """A `ps` document soon, also when nothing has changed."""
        if self._refresh is None:
            self._refresh = self._loop.after(RETRY_SECONDS, self._ask_ps)

    def _ask_ps(self) -> None:
        self._refresh = None
        hub = self.hub
        self._loop.background(lambda: hub.call("ps"), self._tell_ps, lambda error: None)

    def open(
        self, worker_id: str, only: str | None, done: Callable[[Channel], None], failed: Callable[[DevkitError], None]
    ) -> None:
        """A channel to a worker."""
        hub = self.hub
        self._loop.background(lambda: hub.channel(worker_id, only), done, failed)

    def _watch(self) -> None:
        hub = self.hub

        def run() -> None:
            try:
                for ps in hub.watch():
                    self._loop.post(lambda ps=ps: self._tell_ps(ps))  # type: ignore[misc]
            except DevkitError:
                pass  # the connection is lost, as it is when the news end
            self._loop.post(lambda: self._lost(hub))

        threading.Thread(target=run, name="devkit-dap-news", daemon=True).start()

    def _tell_ps(self, ps: Document) -> None:
        if self._closed.is_set():
            return
        self.ps = ps
        for listener in list(self._listeners):
            listener.on_ps(ps)

    def _lost(self, hub: DapHub) -> None:
        if self._closed.is_set() or hub is not self.hub:
            return
        hub.close()
        self.ps = {}  # of another hub
        for listener in list(self._listeners):
            listener.on_lost()
        self._loop.background(self._again, self._back, self._give_up)

    def _give_up(self, error: DevkitError) -> None:
        for listener in list(self._listeners):
            listener.on_given_up(error)

    def _again(self) -> DapHub:
        """Tries to connect until the deadline; the last try's error is raised."""
        end = time.monotonic() + self.seconds
        last: DevkitError = UnreachableError("the hub went away", hint="devkit ps says what is stopped")
        while time.monotonic() < end and not self._closed.is_set():
            try:
                return self._connect()
            except DevkitError as error:
                last = error
            self._closed.wait(RETRY_SECONDS)
        raise last

    def _back(self, hub: DapHub) -> None:
        if self._closed.is_set():
            hub.close()
            return
        self.hub = hub
        self._watch()
        for listener in list(self._listeners):
            listener.on_back()


Fate = Literal["here", "away", "gone"]


def fate_of(ps: Document, worker_id: str) -> Fate:
    """What became of a worker: "away" while its connection is broken, or while a new hub waits for it to join.

    >>> ps = {"workers": [{"worker_id": "a", "connected": True}, {"worker_id": "b", "connected": False}]}
    >>> fate_of(ps, "a"), fate_of(ps, "b"), fate_of(ps, "c")
    ('here', 'away', 'gone')
    """
    found = next((worker for worker in ps.get("workers", ()) if worker["worker_id"] == worker_id), None)
    if found is None:
        return "gone"
    return "here" if found.get("connected", True) else "away"


def end_of(ps: Document, stop_id: str) -> str:
    """Why a stop ended, in the hub's words; empty when the hub doesn't know.

    >>> end_of({"gone": [{"id": "s1", "reason": "killed by SIGKILL"}]}, "s1")
    'killed by SIGKILL'
    """
    ends = [end for end in ps.get("gone", ()) if end["id"] == stop_id]
    return str(ends[-1]["reason"]) if ends else ""


def find_stop(ps: Document, wanted: str) -> StopRecord:
    """The stop whose id is, or begins with, this. Raises UsageError, with what became of it where that is known."""
    stops = {each["id"]: StopRecord.from_json(each) for each in ps["stops"]}
    ended = next((end for end in reversed(ps.get("gone", ())) if end["id"] == wanted), None)
    if wanted not in stops and ended is not None:
        raise UsageError(f"the stop {wanted} has ended: {ended['reason']}", hint="devkit ps shows what is stopped")
    return stops[find_id(wanted, list(stops), "stop")]


def unpacked_code(hub: DapHub, stop_ids: Sequence[str]) -> dict[str, str]:
    """Where Ray unpacked the code of these stops' processes, as a text in which the folders stand, by stop."""
    try:
        answer = hub.call("eval", expression=ROOTS, ids=list(stop_ids), timeout=ROOTS_SECONDS)
    except DeadlineError:
        return {}  # a busy cluster: the paths of the frames will tell
    except DevkitError:
        return {}  # one of the stops ended just now
    return {result["id"]: result.get("value") or "" for result in answer.get("results", ())}
