"""Requests over many debug-adapter channels at once, with one inbox for all that comes back.

A peer is the other end of a channel, under a name that the session gives it.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from devkit.debug.protocols import Channel, Document
from devkit.errors import DeadlineError, DevkitError

LISTEN_SECONDS = 3600.0  # a reader waits for as long as it takes; its end closes the channel
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Reply:
    """One answer: a body, or why there is none."""

    body: Document = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True)
class Request:
    peer: str
    command: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Arrived:
    """What a reader puts into the inbox: a message, or None when its peer is gone."""

    peer: str
    message: Document | None


class Peers:
    """All that a session speaks to. Only the session's own thread calls this, but for `post`."""

    def __init__(self, on_event: Callable[[str, Document], None], on_gone: Callable[[str], None]) -> None:
        self._on_event, self._on_gone = on_event, on_gone
        self._channels: dict[str, Channel] = {}
        self._inbox: queue.SimpleQueue[Arrived] = queue.SimpleQueue()
        self._numbers = itertools.count(1)
        self._expected: dict[tuple[str, int], Reply | None] = {}

    def add(self, peer: str, channel: Channel) -> None:
        self._channels[peer] = channel
        reader = threading.Thread(target=_read, args=(peer, channel, self._inbox), daemon=True)
        reader.start()

    @property
    def alive(self) -> frozenset[str]:
        return frozenset(self._channels)

    def close(self) -> None:
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()

    def gather(self, requests: Mapping[Key, Request], seconds: float) -> dict[Key, Reply]:
        """All requests at once, and an answer for each: an error for who is gone or late."""
        sent = {key: (request.peer, self._send(request)) for key, request in requests.items()}
        try:
            self.wait(lambda: all(self._expected[name] is not None for name in sent.values()), seconds)
            late = Reply(error=f"no answer within {seconds:g} s")
            return {key: self._expected[name] or late for key, name in sent.items()}
        finally:
            for name in sent.values():
                self._expected.pop(name, None)

    def wait(self, done: Callable[[], bool], seconds: float) -> bool:
        """Takes in what comes until `done`, or until the time is over: then False."""
        deadline = time.monotonic() + seconds
        while not done():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            try:
                self._take(self._inbox.get(timeout=left))
            except queue.Empty:
                return done()
        return True

    def take_waiting(self) -> None:
        """Takes in what has come already."""
        while not self._inbox.empty():
            self._take(self._inbox.get())

    def post(self, event: str, body: Document | None = None) -> None:
        """An event of no peer, from another thread. A `wait` looks again at what it waits for."""
        self._inbox.put(Arrived("", {"type": "event", "event": event, "body": body or {}}))

    def _send(self, request: Request) -> int:
        number = next(self._numbers)
        name = (request.peer, number)
        channel = self._channels.get(request.peer)
        if channel is None:
            self._expected[name] = Reply(error="the process is gone")
            return number
        self._expected[name] = None
        message = {"seq": number, "type": "request", "command": request.command, "arguments": dict(request.arguments)}
        try:
            channel.send(message)
        except (OSError, DevkitError):
            self._gone(request.peer)
        return number

    def _take(self, arrived: Arrived) -> None:
        message = arrived.message
        if message is None:
            self._gone(arrived.peer)
        elif message.get("type") == "event":
            self._on_event(arrived.peer, message)
        elif message.get("type") == "response":
            name = (arrived.peer, int(message.get("request_seq", 0)))
            if name in self._expected:
                self._expected[name] = _reply(message)

    def _gone(self, peer: str) -> None:
        if self._channels.pop(peer, None) is None:
            return
        for name, reply in self._expected.items():
            if name[0] == peer and reply is None:
                self._expected[name] = Reply(error="the process is gone")
        self._on_gone(peer)


def _reply(message: Document) -> Reply:
    body = message.get("body") or {}
    if message.get("success", True):
        return Reply(body)
    error = body.get("error") or {}
    return Reply(error=str(error.get("format") or message.get("message") or "it was refused"))


def _read(peer: str, channel: Channel, inbox: queue.SimpleQueue[Arrived]) -> None:
    """One channel's thread: all that comes goes to the inbox, and at last that nothing comes any more."""
    while True:
        try:
            message = channel.receive(LISTEN_SECONDS)
        except DeadlineError:
            continue
        except (OSError, DevkitError, ValueError):
            message = None  # the connection broke; the session says which ranks it lost
        inbox.put(Arrived(peer, message))
        if message is None:
            return
