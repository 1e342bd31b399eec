"""`devkit dap --id`: one stop, its thread from then on, and nothing in between but paths and the worker's fate.

A child of a session over all ranks is the same, but that its breakpoints are the parent's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from devkit.debug import dap_together
from devkit.debug.dap_board import COMMANDS as BREAKPOINTS
from devkit.debug.dap_child_breaks import ChildBreaks, OtherProcess
from devkit.debug.dap_chorus import LOST, back_text, lost_text
from devkit.debug.dap_cluster import Connected, Listener, end_of, fate_of
from devkit.debug.dap_link import Link, Replay
from devkit.debug.dap_loop import Loop, Timer
from devkit.debug.dap_stdio import Editor
from devkit.debug.dap_translate import Translation
from devkit.debug.inworker.records import StopRecord
from devkit.debug.naming import Who, label
from devkit.debug.protocols import Channel, Document
from devkit.errors import DevkitError

LEAVE_SECONDS = 10.0  # for the editor to go, after it was told that all is over
LEAVES = ("disconnect", "terminate")


class Spokesman(Protocol):
    """Says of many ranks together what each would say alone, and of the cluster itself what is to be said."""

    def lost(self, who: Who) -> None: ...

    def back(self, who: Who) -> None: ...


class OneSession:
    """Passes messages through. What the editor set up is said again when the connection had to be made anew."""

    def __init__(
        self,
        loop: Loop,
        editor: Editor,
        cluster: Connected,
        stop: StopRecord,
        translation: Translation,
        breaks: ChildBreaks | None = None,
        patience: float = 0.0,
        spokesman: Spokesman | None = None,
    ) -> None:
        """`patience`: seconds until it is said that a connection was lost; a program that ends breaks them all.

        With a `spokesman` the session itself says nothing of connections.
        """
        self._loop, self._editor, self._cluster = loop, editor, cluster
        self._stop, self._translation = stop, translation
        self._breaks, self._patience, self._spokesman = breaks, patience, spokesman
        self._now = stop.id  # the last stop of the thread
        self._who = Who(stop.role, stop.rank, stop.id)
        self._name = label(self._who)
        self._replay = Replay()
        self._link: Link | None = None
        self._opening = False
        self._is_over = False
        self._is_away = False
        self._told_away = False
        self._deadline: Timer | None = None  # until which it may come back
        self._held: list[Document] = []  # requests that came while there was no connection
        self._hub_is_new = False  # it may not know this worker yet
        self._code = 0

    def start(self) -> None:
        self.go_on({}, ())
        self._editor.start()

    def go_on(self, initialize: Document, requests: Sequence[Document]) -> None:
        """Of a session that has begun: `initialize` was answered, the requests weren't."""
        self._editor.on_request = self._on_request
        self._editor.on_end = self.leave
        self._cluster.start(Listener(self._on_ps, self._on_hub_lost, self._on_hub_back, self._on_given_up))
        if initialize:
            self._replay.note("initialize", initialize)
        for request in requests:
            self._on_request(request)
        self._open()

    # ---- from the editor

    def _on_request(self, request: Document) -> None:
        command = str(request.get("command"))
        arguments = request.get("arguments") or {}
        if command in LEAVES:
            self._editor.answer(request)
            if command == "terminate":
                self._editor.event("terminated")
            else:
                self.leave()
        elif self._is_over:
            self._editor.refuse(request, f"{self._name} is gone")
        elif command in BREAKPOINTS and self._breaks is not None:
            answer = self._editor.answer
            self._breaks.ask(command, arguments, lambda found: answer(request, {"breakpoints": found}))
        elif command in dap_together.COMMANDS:
            choice = dap_together.Only(self._now)
            dap_together.answer(request, self._loop, self._editor, self._cluster.hub, choice)
        else:
            if command in ("attach", "launch"):
                self._attach(arguments)
            self._replay.note(command, arguments)
            self._forward(request)

    def _attach(self, arguments: Document) -> None:
        self._translation.paths.attach(arguments)
        if arguments.get("underParent") and self._breaks is None:
            self._breaks = OtherProcess(self._loop, self._cluster, self._tell_breakpoint)

    def _tell_breakpoint(self, document: Document) -> None:
        self._editor.event("breakpoint", {"reason": "changed", "breakpoint": document})

    def _forward(self, request: Document) -> None:
        if self._link is None:
            self._held.append(request)
            return
        arguments = self._translation.to_worker(request.get("arguments") or {})
        self._link.request(str(request.get("command")), arguments, lambda reply: self._answer(request, reply))

    def _answer(self, request: Document, reply: Document) -> None:
        body = self._translation.to_editor(reply.get("body") or {})
        self._editor.respond(request, {**reply, "body": body})

    # ---- from the worker

    def _on_event(self, message: Document, is_first: bool) -> None:
        name = str(message.get("event"))
        if name in ("terminated", "exited"):
            return  # the process ends: the hub says how
        if name == "initialized" and not is_first:
            return  # the editor has been through that
        body = self._translation.to_editor(message.get("body") or {})
        if name == "stopped":
            self._now = str(body.get("stopId") or self._now)
            if self._breaks is not None and body.get("breakpointId"):
                body = {**body, "hitBreakpointIds": self._breaks.numbers_of(str(body["breakpointId"]))}
        self._editor.event(name, body)

    def _open(self) -> None:
        if self._link is None and not self._opening and not self._is_over:
            self._opening = True
            self._cluster.open(self._stop.worker_id, self._stop.id, self._opened, self._not_opened)

    def _opened(self, channel: Channel) -> None:
        self._opening = False
        if self._is_over:
            channel.close()
            return
        if self._is_away:
            self._is_away = False
            self._set_deadline(None)
            if self._told_away:
                self._tell_back()
        again = self._replay.requests()
        told = {request["command"] for request in self._held}
        is_first = "attach" in told or "launch" in told or not any(command == "attach" for command, _ in again)
        self._link = Link(self._loop, channel, lambda message: self._on_event(message, is_first), self._on_closed)
        held, self._held = self._held, []
        for command, arguments in again:
            if command not in told:
                self._link.request(command, self._translation.to_worker(arguments))
        for request in held:
            self._forward(request)

    def _not_opened(self, error: DevkitError) -> None:
        self._opening = False
        self._lose(f"{self._name} can't be reached: {error.message}")
        self._cluster.refresh_later()

    def _on_closed(self) -> None:
        self._link = None
        self._lose(lost_text([self._who]))
        self._cluster.refresh_later()

    def _lose(self, text: str) -> None:
        """Says so once, and sets the time until which it may come back."""
        if self._is_over or self._is_away:
            return
        self._is_away, self._told_away = True, False
        self._tell_away(text)
        self._set_deadline(self._cluster.seconds)

    def _tell_away(self, text: str) -> None:
        def tell() -> None:
            if self._is_away and not self._is_over:
                self._told_away = True
                if self._spokesman is not None:
                    self._spokesman.lost(self._who)
                else:
                    self._editor.output(text, "important")

        if self._patience:
            self._loop.after(self._patience, tell)
        else:
            tell()

    def _tell_back(self) -> None:
        if self._spokesman is not None:
            self._spokesman.back(self._who)
        else:
            self._editor.output(back_text([self._who]), "important")

    def _set_deadline(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        late = f"{self._name} did not come back; if it is alive it stays paused: see devkit ps"
        self._deadline = None if seconds is None else self._loop.after(seconds, lambda: self.end(late, 3))

    # ---- from the hub

    def _on_ps(self, ps: Document) -> None:
        if self._breaks is not None:
            self._breaks.on_ps(ps)
        fate = fate_of(ps, self._stop.worker_id)
        reason = end_of(ps, self._stop.id)
        if fate == "here":
            self._open()
        elif fate == "gone" and (reason or not self._hub_is_new):
            is_dead = reason not in ("", "continued", "stepped", "timeout")
            what = f"was lost while it was paused: {reason}" if is_dead else "has ended"
            self.end(f"the process of {self._name} {what}", 1 if is_dead else 0)
        elif self._is_away:
            self._cluster.refresh_later()

    def _on_hub_lost(self) -> None:
        """The cluster has a deadline of its own; the worker's begins when there is a hub that may know it."""
        if self._is_over:
            return
        if self._link is not None:
            self._link.close()
            self._link = None
        self._is_away, self._told_away = True, False
        self._set_deadline(None)
        if self._spokesman is None:  # else it says so for all
            self._tell_away(LOST)

    def _on_hub_back(self) -> None:
        self._hub_is_new = True
        self._set_deadline(self._cluster.seconds)
        self._open()

    def _on_given_up(self, error: DevkitError) -> None:
        text = f"{error.message}; the rank stays paused: devkit ps lists it once the cluster can be reached"
        self.end(text, error.exit_code, is_news=self._spokesman is None)

    # ---- the end

    def end(self, text: str, code: int, *, is_news: bool = True) -> None:
        """Tells the editor what became of it; the editor's `disconnect` then ends the session."""
        if self._is_over:
            return
        self._is_over = True
        self._set_deadline(None)
        self._editor.output(text, "important" if is_news else "console")
        self._editor.event("exited", {"exitCode": code})
        self._editor.event("terminated")
        for request in self._held:
            self._editor.refuse(request, text)
        self._held = []
        self._code = code
        self._loop.after(LEAVE_SECONDS, self.leave)

    def leave(self) -> None:
        """The worker is left as it is."""
        self._is_over = True
        if self._breaks is not None:
            self._breaks.close()
            self._breaks = None
        if self._link is not None:
            self._link.close()
        self._cluster.close()
        self._loop.stop(self._code)
