"""A session's connection to one worker's adapter, and what has to be said again over a new one."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from devkit.debug.dap_loop import Loop, Timer
from devkit.debug.protocols import Channel, Document
from devkit.errors import DeadlineError, DevkitError

ANSWER_SECONDS = 60.0  # an expression may take its time; the worker has deadlines of its own
LISTEN_SECONDS = 3600.0

OnReply = Callable[[Document], None]


def failure(message: str) -> Document:
    """A response that says why there is none."""
    return {"success": False, "message": message, "body": {"error": {"id": 1, "format": message, "showUser": True}}}


class Link:
    """Requests to one worker, each with its answer. Used by the loop's thread only."""

    def __init__(
        self, loop: Loop, channel: Channel, on_event: Callable[[Document], None], on_closed: Callable[[], None]
    ) -> None:
        self._loop, self._channel = loop, channel
        self._on_event, self._on_closed = on_event, on_closed
        self._numbers = itertools.count(1)
        self._waiting: dict[int, tuple[OnReply, Timer]] = {}
        self._open = True
        threading.Thread(target=self._read, name="devkit-dap-worker", daemon=True).start()

    def request(
        self,
        command: str,
        arguments: Mapping[str, Any],
        on_reply: OnReply = lambda reply: None,
        seconds: float = ANSWER_SECONDS,
    ) -> None:
        """`on_reply` gets the response, or one that was made here when there is none in time."""
        if not self._open:
            on_reply(failure("the connection to the worker is lost"))
            return
        number = next(self._numbers)
        late = failure(f"the worker gave no answer to {command} within {seconds:g} s")
        self._waiting[number] = (on_reply, self._loop.after(seconds, lambda: self._reply(number, late)))
        message = {"seq": number, "type": "request", "command": command, "arguments": dict(arguments)}
        try:
            self._channel.send(message)
        except (OSError, DevkitError) as error:
            self._reply(number, failure(f"the worker can't be reached: {error}"))

    def close(self) -> None:
        """Leaves the worker as it is; whoever waits is told so."""
        self._open = False
        self._channel.close()
        self._fail("the session is over")

    def _fail(self, why: str) -> None:
        for number in list(self._waiting):
            self._reply(number, failure(why))

    def _reply(self, number: int, response: Document) -> None:
        waiting = self._waiting.pop(number, None)
        if waiting is not None:
            on_reply, timer = waiting
            timer.cancel()
            on_reply(response)

    def _take(self, message: Document) -> None:
        if not self._open:
            return
        if message.get("type") == "event":
            self._on_event(message)
        elif message.get("type") == "response":
            self._reply(int(message.get("request_seq", 0)), message)

    def _closed(self) -> None:
        if self._open:
            self._open = False
            self._fail("the connection to the worker was lost")
            self._on_closed()

    def _read(self) -> None:
        while True:
            try:
                message = self._channel.receive(LISTEN_SECONDS)
            except DeadlineError:
                continue
            except (OSError, DevkitError, ValueError):
                message = None  # it broke; the session finds out what became of the worker
            if message is None:
                self._loop.post(self._closed)
                return
            self._loop.post(lambda message=message: self._take(message))  # type: ignore[misc]


@dataclass
class Replay:
    """What an editor has set up so far, so that another worker, or the same one again, learns it too."""

    initialize: Document = field(default_factory=dict)
    attach: Document = field(default_factory=dict)
    breakpoints: dict[str, Document] = field(default_factory=dict)  # by source
    others: dict[str, Document] = field(default_factory=dict)  # setFunctionBreakpoints, setExceptionBreakpoints, ...
    configured: bool = False

    def note(self, command: str, arguments: Mapping[str, Any]) -> None:
        if command == "initialize":
            self.initialize = dict(arguments)
        elif command in ("attach", "launch"):
            self.attach = dict(arguments)
        elif command == "setBreakpoints":
            self.breakpoints[str((arguments.get("source") or {}).get("path"))] = dict(arguments)
        elif command.startswith("set") and command.endswith("Breakpoints"):
            self.others[command] = dict(arguments)
        elif command == "configurationDone":
            self.configured = True

    def requests(self) -> list[tuple[str, Document]]:
        """All of it in order, as far as the editor has come."""
        attach = [("attach", self.attach)] if self.attach or self.configured else []
        points = [("setBreakpoints", each) for each in self.breakpoints.values()]
        done: list[tuple[str, Document]] = [("configurationDone", {})] if self.configured else []
        first = [("initialize", self.initialize)] if self.initialize else []
        return [*first, *attach, *points, *self.others.items(), *done]
