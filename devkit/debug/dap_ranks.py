"""All ranks as the threads of one session, for editors that can't have child sessions.

A request goes to the worker whose thread, frame or variable it names; breakpoints go to all, and to those who come
later too. `continue` and the steps act on one thread, or on all with `singleThread: false` or `devkitAll`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from devkit.debug import dap_together
from devkit.debug.dap_choice import Choice
from devkit.debug.dap_cluster import Cluster, Listener, end_of, fate_of, unpacked_code
from devkit.debug.dap_gather import gather, merged_breakpoints
from devkit.debug.dap_ids import Ids, UnknownId
from devkit.debug.dap_link import Link, Replay
from devkit.debug.dap_loop import Loop
from devkit.debug.dap_paths import Paths
from devkit.debug.dap_stdio import Editor
from devkit.debug.dap_translate import Translation
from devkit.debug.inworker.adapter import CAPABILITIES
from devkit.debug.naming import Who, label
from devkit.debug.protocols import Channel, Document
from devkit.errors import DevkitError

MOVES = ("continue", "next", "stepIn", "stepOut", "pause")
TO_ALL = ("setBreakpoints", "setFunctionBreakpoints", "setExceptionBreakpoints")
GATHER_SECONDS = 10.0
SETTLE_SECONDS = 5.0  # for the first connections


@dataclass
class Member:
    """One worker in the session."""

    stop: Document  # the one for which it was taken in
    name: str
    translation: Translation
    link: Link | None = None
    is_opening: bool = False
    is_lost: bool = False
    threads: dict[int, bool] = field(default_factory=dict)  # the worker's number -> whether it is stopped


class RanksSession:
    """State of one session; everything happens in the loop's thread."""

    def __init__(self, loop: Loop, editor: Editor, cluster: Cluster, choice: Choice, workspace: str) -> None:
        self._loop, self._editor, self._cluster = loop, editor, cluster
        self._choice, self._workspace = choice, workspace
        self._members: dict[str, Member] = {}
        self._replay = Replay()
        self._ids = Ids()
        self._when_settled: list[Callable[[], None]] = []
        self._has_news = False
        self._is_over = False

    def start(self, initialize: Document) -> None:
        self._editor.on_request = self._on_request
        self._editor.on_end = self._leave
        self._replay.note("initialize", initialize.get("arguments") or {})
        self._cluster.start(Listener(self._on_ps, self._on_hub_lost, self._on_hub_back, self._on_given_up))
        self._editor.answer(initialize, CAPABILITIES)

    # ---- from the editor

    def _on_request(self, request: Document) -> None:
        command = str(request.get("command"))
        arguments = request.get("arguments") or {}
        own: dict[str, Callable[[Document, Document], None]] = {
            "attach": self._attach,
            "launch": self._attach,
            "configurationDone": self._configured,
            "threads": self._threads,
            "devkitAll": self._devkit_all,
            "devkitEval": self._devkit_eval,
            "disconnect": self._disconnect,
            "terminate": self._disconnect,
        }
        if command in own:
            own[command](request, arguments)
        elif command in TO_ALL:
            self._to_all(request, command, arguments)
        elif command in MOVES and arguments.get("singleThread") is False:
            self._move_all(request, command)
        else:
            self._to_one(request, command, arguments)

    def _attach(self, request: Document, arguments: Document) -> None:
        self._replay.note("attach", arguments)
        for member in self._members.values():
            member.translation.paths.attach(arguments)
            self._tell(member, "attach", arguments)

        def ready() -> None:
            self._editor.answer(request)
            self._editor.event("initialized")

        # What the editor sends next, its breakpoints above all, is answered by the ranks that are here by then.
        self._when_settled.append(ready)
        self._loop.after(SETTLE_SECONDS, lambda: self._settle(late=True))
        self._settle()

    def _settle(self, late: bool = False) -> None:
        """Does what waits for the ranks that were stopped at the beginning."""
        if late or (self._has_news and not any(member.is_opening for member in self._members.values())):
            waiting, self._when_settled = self._when_settled, []
            for call in waiting:
                call()

    def _configured(self, request: Document, arguments: Document) -> None:
        self._replay.note("configurationDone", arguments)
        self._editor.answer(request)
        for member in self._members.values():
            self._tell(member, "configurationDone", arguments)

    def _tell(self, member: Member, command: str, arguments: Document) -> None:
        """What has no answer that matters; a member without a connection hears it when it has one."""
        if member.link is not None:
            member.link.request(command, member.translation.to_worker(arguments))

    def _to_all(self, request: Document, command: str, arguments: Document) -> None:
        self._replay.note(command, arguments)

        def done(replies: dict[str, Document]) -> None:
            bodies = {
                worker: self._outward(worker, reply.get("body") or {})
                for worker, reply in replies.items()
                if reply.get("success")
            }
            wanted = arguments.get("breakpoints") or arguments.get("filters") or ()
            self._editor.answer(request, {"breakpoints": merged_breakpoints(list(bodies.values()), len(wanted))})

        linked = {worker: member for worker, member in self._members.items() if member.link is not None}
        asked = {
            worker: (member.link, command, member.translation.to_worker(arguments)) for worker, member in linked.items()
        }
        gather(asked, done, GATHER_SECONDS)

    def _to_one(self, request: Document, command: str, arguments: Document) -> None:
        try:
            worker, inner = self._ids.inward(arguments)
        except UnknownId as error:
            self._editor.refuse(request, str(error))
            return
        worker = worker or self._first_stopped()
        member = self._members.get(worker or "")
        if worker is None or member is None or member.link is None:
            gone = "nothing is stopped" if member is None else f"{member.name} is not connected now"
            self._editor.refuse(request, gone, "devkit ps shows what is stopped")
            return
        if command in MOVES:
            inner["singleThread"] = True
        link, translated = member.link, member.translation.to_worker(inner)
        link.request(command, translated, lambda reply: self._answer(request, worker, reply))

    def _answer(self, request: Document, worker: str, reply: Document) -> None:
        if reply.get("success") and request.get("command") in MOVES:
            self._note_moved(worker, request.get("arguments") or {})
        self._editor.respond(request, {**reply, "body": self._outward(worker, reply.get("body") or {})})

    def _note_moved(self, worker: str, arguments: Document) -> None:
        owner, inner = self._ids.member_of("thread", int(arguments.get("threadId", 0)))
        if owner == worker:
            self._members[worker].threads[inner] = False

    def _first_stopped(self) -> str | None:
        stopped = (worker for worker, member in self._members.items() if any(member.threads.values()))
        return next(stopped, next(iter(self._members), None))

    def _threads(self, request: Document, _arguments: Document) -> None:
        """The threads that stopped once, under the names of their ranks."""

        def done(replies: dict[str, Document]) -> None:
            threads = []
            for worker, member in self._members.items():
                said = (replies.get(worker, {}).get("body") or {}).get("threads", ())
                names = {each["id"]: each["name"] for each in said}
                for number in member.threads:
                    more = f" {names.get(number, number)}" if len(member.threads) > 1 else ""
                    threads.append({"id": self._ids.give("thread", worker, number), "name": member.name + more})
            self._editor.answer(request, {"threads": sorted(threads, key=lambda each: str(each["name"]))})

        several = {worker: each for worker, each in self._members.items() if len(each.threads) > 1 and each.link}
        gather({worker: (each.link, "threads", {}) for worker, each in several.items()}, done, GATHER_SECONDS)

    def _devkit_all(self, request: Document, arguments: Document) -> None:
        command = str(arguments.get("command"))
        if command in MOVES:
            self._move_all(request, command)
        else:
            self._editor.refuse(request, f"devkitAll has no command {command!r}", f"one of {', '.join(MOVES)}")

    def _devkit_eval(self, request: Document, _arguments: Document) -> None:
        dap_together.answer(request, self._loop, self._editor, self._cluster.hub, self._choice)

    def _move_all(self, request: Document, command: str) -> None:
        """Every stopped thread; the answer says which of them moved."""
        threads = [
            (worker, number)
            for worker, member in self._members.items()
            for number, is_stopped in member.threads.items()
            if is_stopped != (command == "pause")
        ]

        def done(replies: dict[tuple[str, int], Document]) -> None:
            results = []
            for (worker, number), reply in replies.items():
                if not reply.get("success") and command != "pause" and worker in self._members:
                    self._members[worker].threads[number] = True  # it stands where it stood
                problem = "" if reply.get("success") else str(reply.get("message", ""))
                results.append({"threadId": self._ids.give("thread", worker, number), "error": problem})
            self._editor.answer(request, {"allThreadsContinued": command == "continue", "results": results})

        asked = {
            each: (self._members[each[0]].link, command, {"threadId": each[1], "singleThread": True})
            for each in threads
        }
        for worker, number in threads if command != "pause" else ():
            # Now: the first may have stopped again before the last has answered.
            self._members[worker].threads[number] = False
        gather(asked, done, GATHER_SECONDS)

    def _disconnect(self, request: Document, _arguments: Document) -> None:
        self._editor.answer(request)
        self._leave()

    # ---- from the workers

    def _on_event(self, worker: str, message: Document) -> None:
        name, body, member = message.get("event"), message.get("body") or {}, self._members[worker]
        number = body.get("threadId")
        if name in ("initialized", "terminated", "exited"):
            return  # of the worker alone
        if name == "stopped" and isinstance(number, int):
            self._on_stopped(worker, member, number, body)
            return
        if name == "continued" and isinstance(number, int):
            member.threads[number] = False
            body = {**body, "allThreadsContinued": False}
        elif name == "thread" and body.get("reason") == "exited" and isinstance(number, int):
            member.threads.pop(number, None)
        elif name == "output":
            body = {**body, "output": f"[{member.name}] {body.get('output', '')}"}
        self._editor.event(str(name), self._outward(worker, body))

    def _on_stopped(self, worker: str, member: Member, number: int, body: Document) -> None:
        outer = self._ids.give("thread", worker, number)
        if number not in member.threads:
            self._editor.event("thread", {"reason": "started", "threadId": outer})
        member.threads[number] = True
        said = f"{member.name}: {body.get('description') or body.get('reason', '')}"
        self._editor.event("stopped", {**self._outward(worker, body), "description": said, "allThreadsStopped": False})

    def _outward(self, worker: str, body: Any) -> Any:
        return self._ids.outward(self._members[worker].translation.to_editor(body), worker)

    # ---- members come and go

    def _on_ps(self, ps: Document) -> None:
        if self._is_over:
            return
        new = [stop for stop in self._choice.among(ps.get("stops", ())) if stop["worker_id"] not in self._members]
        self._take_in(new)
        for worker, member in list(self._members.items()):
            fate = fate_of(ps, worker)
            reason = end_of(ps, member.stop["id"])
            if fate == "here":
                self._open(worker, member)
            elif fate == "gone" and (reason or not member.is_lost):
                self._remove(worker, member, reason)
            elif member.is_lost:
                self._cluster.refresh_later()
        self._has_news = True
        self._settle()

    def _take_in(self, stops: Sequence[Document]) -> None:
        """New members; where their code was unpacked is asked of all at once, before anything of theirs is shown."""
        first = {stop["worker_id"]: stop for stop in reversed(stops)}
        for worker, stop in first.items():
            paths = Paths(self._workspace)
            paths.learn(str(stop.get("file", "")))
            paths.attach(self._replay.attach)
            self._members[worker] = Member(stop, label(Who.of(stop)), Translation(paths), is_opening=True)
        if not first:
            return
        hub, ids = self._cluster.hub, [stop["id"] for stop in first.values()]

        def done(texts: dict[str, str]) -> None:
            for worker, stop in first.items():
                member = self._members.get(worker)
                if member is not None:
                    member.translation.paths.learn(texts.get(stop["id"], ""))
                    member.is_opening = False
                    self._open(worker, member)

        self._loop.background(lambda: unpacked_code(hub, ids), done, lambda error: done({}))

    def _open(self, worker: str, member: Member) -> None:
        if member.link is None and not member.is_opening and not self._is_over:
            member.is_opening = True

            def failed(error: DevkitError) -> None:
                member.is_opening = False
                self._lose(worker, member)
                self._settle()

            self._cluster.open(worker, None, lambda channel: self._opened(worker, member, channel), failed)

    def _opened(self, worker: str, member: Member, channel: Channel) -> None:
        member.is_opening = False
        if self._is_over or self._members.get(worker) is not member:
            channel.close()
            return
        if member.is_lost:
            member.is_lost = False
            self._editor.output(f"{member.name} is connected again", "important")
        member.link = Link(
            self._loop,
            channel,
            lambda message: self._on_event(worker, message),
            lambda: self._lose(worker, member),
        )
        for command, arguments in self._replay.requests():
            self._tell(member, command, arguments)
        self._settle()

    def _lose(self, worker: str, member: Member) -> None:
        member.link = None
        if self._is_over or self._members.get(worker) is not member:
            return
        self._cluster.refresh_later()
        if member.is_lost:
            return
        member.is_lost = True
        self._editor.output(f"the connection to {member.name} was lost; looking for it", "important")

        def give_up() -> None:
            if member.is_lost and self._members.get(worker) is member:
                self._remove(worker, member, "it did not come back; if it is alive it stays paused")

        self._loop.after(self._cluster.seconds, give_up)

    def _remove(self, worker: str, member: Member, reason: str) -> None:
        del self._members[worker]
        if member.link is not None:
            member.link.close()
        words = "" if reason in ("", "continued", "stepped", "timeout") else f": {reason}"
        self._editor.output(f"{member.name} is gone{words}", "important")
        for number in member.threads:
            outer = self._ids.give("thread", worker, number)
            self._editor.event("thread", {"reason": "exited", "threadId": outer})

    def _on_hub_lost(self) -> None:
        self._editor.output(
            "the connection to the cluster was lost; the stops stay, trying to connect again", "important"
        )
        for worker, member in self._members.items():
            if member.link is not None:
                member.link.close()
                self._lose(worker, member)

    def _on_hub_back(self) -> None:
        self._editor.output("connected to the cluster again", "important")

    # ---- the end

    def _on_given_up(self, error: DevkitError) -> None:
        self._is_over = True
        self._editor.output(f"{error.message}; the stops stay: devkit ps shows them", "important")
        self._editor.event("terminated")

    def _leave(self) -> None:
        self._is_over = True
        for member in self._members.values():
            if member.link is not None:
                member.link.close()
        self._cluster.close()
        self._loop.stop(0)
