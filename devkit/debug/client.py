"""A client of the hub: one connection, over which any number of requests, channels and watches go at once.

The dashboard says where the hub is. It is spoken to directly where its port can be reached, else through the dashboard.
"""

from __future__ import annotations

import itertools
import os
import queue
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Protocol

from devkit.debug import hub_file, runs
from devkit.debug.address import resolve
from devkit.debug.dashboard import Dashboard
from devkit.debug.hub_file import HubPlace
from devkit.debug.inworker import wire
from devkit.debug.tokens import find_token
from devkit.debug.tunnel import Tunnel
from devkit.errors import DeadlineError, DevkitError, UnreachableError

DIRECT_SECONDS = 0.7  # for the first try; a port behind a firewall does not answer at all
RESTART_SECONDS = 3.0  # a hub that died is started again by Ray
RETRY_SECONDS = 0.1
GONE_HINT = "has its program ended? devkit ps --address names another cluster"

Document = dict[str, Any]


class Transport(Protocol):
    """What `wire.Connection` and `Tunnel` have in common."""

    def send(self, document: Document) -> None: ...

    def __iter__(self) -> Iterator[Document]: ...

    def close(self) -> None: ...


class HubClient:
    """Requests to the hub. Raises `DevkitError` for what it refuses, `DeadlineError` when no answer comes in time."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._numbers = itertools.count(1)
        self._answers: dict[int, queue.SimpleQueue[Document | None]] = {}
        self._channels: dict[int, Channel] = {}
        self._early: dict[int, list[Document]] = {}  # for a channel whose answer is still on its way
        self._lock = threading.Lock()
        self._ended = False
        threading.Thread(target=self._read, name="devkit-client", daemon=True).start()

    def __enter__(self) -> HubClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._transport.close()

    def call(self, op: str, *, timeout: float = 10.0, **arguments: Any) -> Document:
        """One request and its answer. `timeout` (seconds) goes to the hub too, which waits a little less."""
        number, answers = self._begin(op, timeout=timeout, **arguments)
        try:
            document = answers.get(timeout=timeout + 1.0)
        except queue.Empty:
            raise DeadlineError(
                f"the hub did not answer `{op}` within {timeout:g} s", hint="devkit ps says what still lives"
            ) from None
        finally:
            self._answers.pop(number, None)
        return _result(document)

    def channel(self, worker_id: str, only: str | None = None) -> Channel:
        """A debug-adapter connection to one worker; `only` narrows it to one stop."""
        number = int(self.call("channel", worker_id=worker_id, only=only)["channel"])
        channel = Channel(self._transport, number, self._forget)
        with self._lock:
            self._channels[number] = channel
            for document in self._early.pop(number, ()):
                channel.arrived(document)
        if self._ended:
            channel.arrived({"closed": True})
        return channel

    def watch(self) -> Iterator[Document]:
        """A `ps` document now, and one at each change. Ends with `UnreachableError` when the hub goes away."""
        number, answers = self._begin("watch")
        try:
            yield _result(answers.get(timeout=10.0))
            while True:
                yield _result(answers.get())["event"]
        except queue.Empty:
            raise DeadlineError("the hub did not answer within 10 s", hint="is the head node alive?") from None
        finally:
            self._answers.pop(number, None)

    def _begin(self, op: str, **arguments: Any) -> tuple[int, queue.SimpleQueue[Document | None]]:
        number = next(self._numbers)
        answers: queue.SimpleQueue[Document | None] = queue.SimpleQueue()
        self._answers[number] = answers
        try:
            self._transport.send({"id": number, "op": op, "arguments": arguments})
        except OSError:
            answers.put(None)
        if self._ended:
            answers.put(None)
        return number, answers

    def _read(self) -> None:
        with suppress(OSError):
            for document in self._transport:
                self._dispatch(document)
        self._ended = True
        for answers in list(self._answers.values()):
            answers.put(None)
        for channel in list(self._channels.values()):
            channel.arrived({"closed": True})

    def _dispatch(self, document: Document) -> None:
        if document.get("type") == "channel":
            with self._lock:
                channel = self._channels.get(document["channel"])
                if channel is None:
                    self._early.setdefault(document["channel"], []).append(document)
                    return
            channel.arrived(document)
        elif document.get("id") in self._answers:
            self._answers[document["id"]].put(document)

    def _forget(self, number: int) -> None:
        with self._lock:
            self._channels.pop(number, None)


class Channel:
    """A debug-adapter connection to one worker, through the hub."""

    def __init__(self, transport: Transport, number: int, forget: Any) -> None:
        self._transport = transport
        self._number = number
        self._forget = forget
        self._messages: queue.SimpleQueue[Document | None] = queue.SimpleQueue()

    def send(self, message: Document) -> None:
        with suppress(OSError):  # whoever waits for an answer is told that the connection is gone
            self._transport.send({"type": "channel", "channel": self._number, "message": message})

    def receive(self, timeout: float | None = 10.0) -> Document | None:
        """The next message; None when the worker or the hub is gone. Raises `DeadlineError` when none came in time."""
        try:
            message = self._messages.get(timeout=timeout)
        except queue.Empty:
            raise DeadlineError(f"the worker said nothing for {timeout:g} s", hint="is it busy? try again") from None
        if message is None:
            self._messages.put(None)  # and so for every later call
        return message

    def arrived(self, document: Document) -> None:
        self._messages.put(None if document.get("closed") else document["message"])

    def close(self) -> None:
        with suppress(OSError):
            self._transport.send({"type": "channel", "channel": self._number, "closed": True})
        self._forget(self._number)
        self._messages.put(None)


def connect(address: str | None, *, deadline: float = 10.0) -> HubClient:
    """A client of the hub of the cluster at `address`; within `deadline` seconds, or an error."""
    end = time.monotonic() + deadline
    local = _without_dashboard(address)
    if local is not None:
        return HubClient(local)
    cluster = resolve(address)
    dashboard = Dashboard(cluster.dashboard_url, cluster.token, timeout=deadline)
    try:
        asks_for_token = dashboard.authentication_mode() == "token"
        return HubClient(_open(dashboard, cluster.token.value if cluster.token and asks_for_token else "", end))
    finally:
        dashboard.close()  # what is idle; a tunnel opens what it needs


def _without_dashboard(address: str | None) -> Transport | None:
    """To the hub of the last `devkit run` here, if nothing else was named and its Ray has no dashboard."""
    if address or any(os.environ.get(name) for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")):
        return None
    run = next(iter(runs.running()), None)
    return None if run is None or run.dashboard_url else _of_run(run)


def connect_to(run: runs.Run, *, deadline: float = 10.0) -> HubClient:
    """A client of the hub of the cluster that the program of a `devkit run` of this machine is in."""
    return connect(run.dashboard_url, deadline=deadline) if run.dashboard_url else HubClient(_of_run(run))


def _of_run(run: runs.Run) -> Transport:
    token = find_token() if run.auth == "token" else None
    try:
        return _direct(token.value if token else "", HubPlace(**run.hub))
    except wire.WireError as error:
        raise UnreachableError(str(error), hint="is RAY_AUTH_TOKEN this cluster's?") from None
    except OSError as error:
        raise UnreachableError(f"the hub of the last devkit run does not answer: {error}", hint=GONE_HINT) from None


def _open(dashboard: Dashboard, token: str, end: float) -> Transport:
    """Directly if the port answers. One that refuses may be of a hub that is being started again."""
    restarted = min(end, time.monotonic() + RESTART_SECONDS)
    while True:
        try:
            place = hub_file.find(dashboard)
        except hub_file.NoHead:  # of a cluster that is starting
            if time.monotonic() > restarted:
                raise
            time.sleep(RETRY_SECONDS)
            continue
        try:
            return _direct(token, place)
        except ConnectionRefusedError:
            if time.monotonic() > restarted:
                break
            time.sleep(RETRY_SECONDS)
        except wire.WireError as error:
            raise UnreachableError(str(error), hint="is RAY_AUTH_TOKEN this cluster's?") from None
        except OSError:
            break
    return Tunnel(dashboard, place, end)


def _direct(token: str, place: HubPlace) -> Transport:
    key = wire.derive_key(token, place.hub_id)
    return wire.Connection((place.host, place.port), key, "client", timeout=DIRECT_SECONDS)


def _result(document: Document | None) -> Document:
    if document is None:
        raise UnreachableError("the hub went away", hint="the stops stay; the same command tries again")
    if "error" in document:
        error = DevkitError(document["error"], hint=document.get("hint", ""))
        error.exit_code = document.get("exit_code", 1)
        raise error
    answer: Document = document.get("ok", document)
    return answer
