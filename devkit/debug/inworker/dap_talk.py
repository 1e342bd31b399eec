"""One side of a talk in the Debug Adapter Protocol: takes requests, and sends answers and events in order."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

from .lanes import Lane
from .values import error_line

Document = dict[str, Any]


class Refused(Exception):
    """A request that can't be done; the text is for the user."""


class Later:
    """What a method gives whose answer is sent in another way."""


LATER = Later()


class Talk:
    """A subclass answers the request `name` by a method `_on_name(arguments, request)`, which gives the body.

    The methods run in one thread, one after the other, so they must not wait.
    """

    def __init__(self, send: Callable[[Document], None]) -> None:
        self._send = send
        self._lane = Lane("devkit-adapter")
        self._is_closed = False
        self._sending = threading.Lock()
        self._sequence = 0

    def handle(self, message: Document) -> None:
        """Takes a message of the client. Never waits, never raises."""
        if not self._is_closed:
            self._lane.put(lambda: self._dispatch(message))

    def _dispatch(self, request: Document) -> None:
        if not isinstance(request, dict) or request.get("type") != "request":
            return
        command = str(request.get("command"))
        method = getattr(self, f"_on_{command}", None)
        try:
            if method is None:
                raise Refused(f"{command} is not supported")
            body = method(request.get("arguments") or {}, request)
        except Exception as error:  # noqa: BLE001 - keeps the client's session: it gets the error as an answer
            self._fail(request, error)
            return
        if body is not LATER:
            self._answer(request, body)

    def _answer(self, request: Document, body: Document | None = None) -> None:
        self._reply(request, {"success": True, "body": body or {}})

    def _fail(self, request: Document, error: BaseException) -> None:
        is_ours = type(error) in (Refused, TimeoutError, LookupError)
        text = " ".join(str(error).split()) if is_ours else error_line(error)
        body = {"error": {"id": 1, "format": text, "showUser": False}}
        self._reply(request, {"success": False, "message": text, "body": body})

    def _reply(self, request: Document, more: Document) -> None:
        head = {"type": "response", "request_seq": request.get("seq"), "command": request.get("command")}
        self._out({**head, **more})

    def _event(self, name: str, body: Document | None = None) -> None:
        self._out({"type": "event", "event": name, "body": body or {}})

    def _output(self, text: str, category: str = "console") -> None:
        self._event("output", {"category": category, "output": text})

    def _out(self, message: Document) -> None:
        with self._sending:
            if self._is_closed:
                return
            self._sequence += 1
            # A client that is lost: whoever owns the connection closes this side too.
            with contextlib.suppress(OSError):
                self._send({"seq": self._sequence, **message})
