"""A client of the hub: one connection, over which any number of requests, channels and watches go at once.

The dashboard says where the hub is, or the GCS where there is no dashboard. It is spoken to directly where its port can
be reached, else through the dashboard.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

from devkit import patience
from devkit.debug import gcs, hub_file, runs
from devkit.debug.address import ANSWER_SECONDS, ClusterAddress, of_run, resolve
from devkit.debug.dashboard import Dashboard
from devkit.debug.gcs import GcsAddress
from devkit.debug.hub_file import HubPlace
from devkit.debug.inworker import wire
from devkit.debug.tunnel import Tunnel
from devkit.errors import DeadlineError, DevkitError, NoJobError, UnreachableError

PATIENCE_SECONDS = 30.0  # for an answer, unless the user says otherwise: a machine may be very busy
DIRECT_SECONDS = 0.7  # until its port answers; behind a firewall it does not answer at all
RESTART_SECONDS = 3.0  # a hub that died is started again by Ray
TUNNEL_SECONDS = 4.0  # for the first try through the dashboard; then it is asked again where the hub is
RETRY_SECONDS = 0.1
TOKEN_HINT = "is RAY_AUTH_TOKEN this cluster's?"
SLOW_HINT = "is the head node alive, or busy? wait longer with --timeout SECONDS"
GONE_HINT = "has its program ended? For another cluster use devkit ps --address"

Document = dict[str, Any]


class Transport(Protocol):
    """What `wire.Connection` and `Tunnel` have in common."""

    def send(self, document: Document) -> None: ...

    def __iter__(self) -> Iterator[Document]: ...

    def close(self) -> None: ...


class HubClient:
    """Requests to the hub. Raises `DevkitError` for what it refuses, `DeadlineError` when no answer comes in time."""

    def __init__(self, transport: Transport, seconds: float = PATIENCE_SECONDS) -> None:
        self._transport = transport
        self._patience = seconds  # how long it waits for an answer
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

    def call(self, op: str, *, timeout: float | None = None, **arguments: Any) -> Document:
        """One request and its answer.

        `timeout` (seconds) is how long the hub waits for processes of the program; None: as the user says or as is
        usual, but no longer than this client is patient.
        """
        timeout = min(patience.of_hub(ANSWER_SECONDS), self._patience) if timeout is None else timeout
        number, answers = self._begin(op, timeout=timeout, **arguments)
        seconds = max(timeout + 1.0, self._patience)
        try:
            document = answers.get(timeout=seconds)
        except queue.Empty:
            raise DeadlineError(f"the hub did not answer `{op}` within {seconds:g} s", hint=SLOW_HINT) from None
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
            yield _result(answers.get(timeout=self._patience))
            while True:
                yield _result(answers.get())["event"]
        except queue.Empty:
            raise DeadlineError(f"the hub did not answer within {self._patience:g} s", hint=SLOW_HINT) from None
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
            raise DeadlineError(
                f"the worker did not respond for {timeout:g} s", hint="it may be busy: try again"
            ) from None
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


def connect(address: str | ClusterAddress | None, *, deadline: float | None = None) -> HubClient:
    """A client of the hub of the cluster at `address`; within `deadline` seconds, or an error.

    It waits for answers as long, too; by default as long as the user is patient.
    """
    deadline = patience.seconds(PATIENCE_SECONDS) if deadline is None else deadline
    end = time.monotonic() + deadline
    cluster = address if isinstance(address, ClusterAddress) else resolve(address)
    if not cluster.dashboard_url:
        return HubClient(_without_dashboard(cluster, end), deadline)
    try:
        return HubClient(_through_dashboard(cluster, end), deadline)
    except (NoJobError, DeadlineError):
        raise
    except DevkitError:
        # Also of a second Ray on one machine: its agent, which reads files, does not get Ray's fixed port.
        place = None
        with suppress(DevkitError):  # it is the dashboard's fault that is told
            place = _hub_of_gcs(cluster, end)
        if place is None:
            raise
    return HubClient(_without_dashboard(replace(cluster, hub=place), end), deadline)


def connect_to(run: runs.Run, *, deadline: float | None = None) -> HubClient:
    """A client of the hub of the cluster that the program of a `devkit run` of this machine is in."""
    return connect(of_run(run), deadline=deadline)


def _through_dashboard(cluster: ClusterAddress, end: float) -> Transport:
    dashboard = cluster.dashboard(timeout=max(0.1, min(patience.seconds(ANSWER_SECONDS), end - time.monotonic())))
    try:
        asks_for_token = dashboard.authentication_mode() == "token"
        return _open(dashboard, cluster.token.value if cluster.token and asks_for_token else "", end)
    finally:
        dashboard.close()  # what is idle; a tunnel opens what it needs


def _without_dashboard(cluster: ClusterAddress, end: float) -> Transport:
    """To where the hub is known to listen; if it is not there any more, to where the GCS says that it is."""
    place = cluster.hub or _hub_of_gcs(cluster, end)
    while True:
        if place is None:
            raise hub_file.no_hub()
        try:
            return _let_in(cluster, place, end)
        except wire.WireError as error:
            raise UnreachableError(str(error), hint=TOKEN_HINT) from None
        except OSError as error:
            if time.monotonic() > end:
                raise UnreachableError(f"devkit's hub does not answer: {error}", hint=GONE_HINT) from None
            time.sleep(RETRY_SECONDS)
        place = _hub_of_gcs(cluster, end)


def _let_in(cluster: ClusterAddress, place: HubPlace, end: float) -> Transport:
    """With the token, else without: nobody but a dashboard says beforehand whether the cluster asks for one."""
    if cluster.token is None:
        return _direct("", place, end)
    try:
        return _direct(cluster.token.value, place, end)
    except wire.WireError as refused:
        try:
            return _direct("", place, end)
        except wire.WireError:
            raise refused from None


def _hub_of_gcs(cluster: ClusterAddress, end: float) -> HubPlace | None:
    if cluster.gcs_address is None:
        return None
    facts = gcs.ask(GcsAddress.parse(cluster.gcs_address), cluster.token, max(1.0, end - time.monotonic()))
    return hub_file.parse(facts.hub) if facts.hub else None


def _open(dashboard: Dashboard, token: str, end: float) -> Transport:
    """Directly if the port answers, else through the dashboard.

    A port that refuses may be that of a hub that Ray starts again: where it is now is asked for until the end.
    """
    restarted, through = min(end, time.monotonic() + RESTART_SECONDS), TUNNEL_SECONDS
    while True:
        place = _find(dashboard, token, restarted)
        try:
            return _direct(token, place, end)
        except ConnectionRefusedError:
            if time.monotonic() < restarted:
                time.sleep(RETRY_SECONDS)
                continue
        except wire.WireError as error:
            raise UnreachableError(str(error), hint=TOKEN_HINT) from None
        except OSError:
            pass
        try:
            return Tunnel(dashboard, place, min(end, time.monotonic() + through))
        except DeadlineError:
            if time.monotonic() > end:
                raise
        through *= 2


def _find(dashboard: Dashboard, token: str, until: float) -> HubPlace:
    while True:
        try:
            return hub_file.find(dashboard, token)
        except hub_file.NoHead:  # of a cluster that is starting
            if time.monotonic() > until:
                raise
            time.sleep(RETRY_SECONDS)


def _direct(token: str, place: HubPlace, end: float) -> Transport:
    """Raises OSError: `TimeoutError` where its machine does not answer, or the hub does not by `end`."""
    key, left = wire.derive_key(token, place.hub_id), max(DIRECT_SECONDS, end - time.monotonic())
    return wire.Connection((place.host, place.port), key, "client", timeout=left, reach=DIRECT_SECONDS)


def _result(document: Document | None) -> Document:
    if document is None:
        raise UnreachableError("the hub went away", hint="paused ranks stay paused; run the same command to try again")
    if "error" in document:
        error = DevkitError(document["error"], hint=document.get("hint", ""))
        error.exit_code = document.get("exit_code", 1)
        raise error
    answer: Document = document.get("ok", document)
    return answer
