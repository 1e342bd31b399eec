"""A client of the Debug Adapter Protocol for tests: asks, waits for the answer, keeps the events in between."""

from __future__ import annotations

import itertools
import json
import time
from queue import Empty, Queue
from typing import Any

from devkit.debug.inworker.adapter import Adapter
from devkit.debug.inworker.stops import Stops
from tests.debug.parking_lot import SECONDS

Document = dict[str, Any]


class Refusal(Exception):
    """The adapter's answer was an error."""


class Dialogue:
    """One client of one process."""

    def __init__(self, stops: Stops, arming: Any = None, only: str | None = None) -> None:
        self._received: Queue[Document] = Queue()
        self._answers: dict[int, Document] = {}
        self._events: list[Document] = []
        self._numbers = itertools.count(1)
        # Through JSON, as on every wire.
        self.adapter = Adapter(stops, arming, lambda message: self._received.put(json.loads(json.dumps(message))), only)

    def attach(self, **arguments: Any) -> None:
        """Everything up to the first `stopped` events, in the order in which VS Code asks."""
        assert self.request("initialize", adapterID="python")["supportsConfigurationDoneRequest"]
        attached = self.send("attach", **arguments)
        self.event("initialized")
        self.request("setExceptionBreakpoints", filters=["uncaught"])
        self.request("configurationDone")
        self.answer(attached)

    def send(self, command: str, **arguments: Any) -> int:
        number = next(self._numbers)
        self.adapter.handle({"seq": number, "type": "request", "command": command, "arguments": arguments})
        return number

    def answer(self, number: int) -> Document:
        self._wait(lambda: number in self._answers, f"an answer to request {number}")
        answer = self._answers.pop(number)
        if not answer["success"]:
            assert "\n" not in answer["message"]
            raise Refusal(answer["message"])
        body: Document = answer["body"]
        return body

    def request(self, command: str, **arguments: Any) -> Document:
        return self.answer(self.send(command, **arguments))

    def event(self, name: str, **wanted: Any) -> Document:
        """The body of the first event of this name and content that was not asked for before."""

        def find() -> Document | None:
            for event in self._events:
                if event["event"] == name and wanted.items() <= event["body"].items():
                    return event
            return None

        self._wait(lambda: find() is not None, f"event {name} {wanted}")
        event = find()
        assert event is not None
        self._events.remove(event)
        body: Document = event["body"]
        return body

    def pending(self, name: str) -> list[Document]:
        """Bodies of the events of this name that came until now."""
        self.request("threads")  # its answer comes after them
        return [event["body"] for event in self._events if event["event"] == name]

    def top(self, thread: int) -> Document:
        frame: Document = self.request("stackTrace", threadId=thread)["stackFrames"][0]
        return frame

    def locals(self, frame: int) -> dict[str, Document]:
        scopes = self.request("scopes", frameId=frame)["scopes"]
        assert [scope["name"] for scope in scopes] == ["Locals", "Globals"]
        return self.children(scopes[0])

    def children(self, parent: Document, **page: Any) -> dict[str, Document]:
        variables = self.request("variables", variablesReference=parent["variablesReference"], **page)["variables"]
        return {variable["name"]: variable for variable in variables}

    def _wait(self, is_so: Any, what: str) -> None:
        deadline = time.monotonic() + SECONDS
        while not is_so():
            try:
                message = self._received.get(timeout=max(deadline - time.monotonic(), 0))
            except Empty:
                raise AssertionError(f"no {what}; events: {self._events}") from None
            if message["type"] == "response":
                self._answers[message["request_seq"]] = message
            else:
                self._events.append(message)
