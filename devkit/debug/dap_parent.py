"""The parent of one child session per stopped rank. It has no thread of its own, and sees ranks that stop later.

Its breakpoints are armed in the whole job, and go when it goes (`dap_board.py`). A child is told of a pipe, on which
this process serves it, beside the id of its stop: an editor that knows no pipes starts `devkit dap --id` by the id.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from devkit.debug import dap_together
from devkit.debug.dap_board import COMMANDS as BREAKPOINTS
from devkit.debug.dap_board import Board
from devkit.debug.dap_child import ChildSession, Home
from devkit.debug.dap_choice import Choice
from devkit.debug.dap_chorus import BACK, LOST, Chorus
from devkit.debug.dap_cluster import Cluster, Listener
from devkit.debug.dap_loop import Loop
from devkit.debug.dap_paths import explicit_mappings
from devkit.debug.dap_pipe import ChildServer, open_pipe
from devkit.debug.dap_stdio import Editor
from devkit.debug.dap_wanted import Bounds
from devkit.debug.naming import Who
from devkit.debug.protocols import Document
from devkit.errors import DevkitError

CAPABILITIES = {
    "supportsConfigurationDoneRequest": True,
    "supportsSingleThreadExecutionRequests": True,
    "supportsFunctionBreakpoints": True,
    "supportsConditionalBreakpoints": True,
    "supportsHitConditionalBreakpoints": True,
    "supportsLogPoints": True,
}
CHILD_EVENT = "devkitChild"  # in place of the request, for an editor that asked for it by `childEvents`
LOST_EVENT = "devkitLost"  # to the same editor, which has a message of its own for it, with something to do about it
CALM = ("setExceptionBreakpoints", "setDataBreakpoints", "setInstructionBreakpoints")
LEAVE_SECONDS = 5.0  # for the breakpoints to be taken away
# What a configuration says for the editor or for the parent itself, and not for the children.
OWN_ARGUMENTS = frozenset(
    {"type", "request", "name", "id", "thread", "all", "ranks", "job", "crash", "pipe", "address", "noDebug", "program",
     "command", "args", "env", "python", "console", "postMortem", "preLaunchTask", "postDebugTask", "presentation",
     "internalConsoleOptions", "serverReadyAction", "debugServer", "restart", "childEvents"}
)  # fmt: skip


class ParentSession:
    """Starts a child for each stop. A child follows its thread, so a thread's later stops need no other one."""

    def __init__(self, loop: Loop, editor: Editor, choice: Choice, workspace: str, patience: float = 0.0) -> None:
        """`patience`: seconds until it is said that a connection was lost; a program that ends breaks them all."""
        self.board = Board(loop, Bounds(workspace, choice.job or "", choice.ranks), self._tell_breakpoint)
        self.choice = choice
        self._loop, self._editor, self._workspace, self._patience = loop, editor, workspace, patience
        self._chorus = Chorus(loop, self._say_of_ranks)
        self._cluster: Cluster | None = None
        self._pipe: ChildServer | None = None
        self._attach: Document = {}
        self._ps: Document = {}
        self._started: set[str] = set()  # stops
        self._threads: set[tuple[str, str]] = set()  # worker and thread of a child
        self._is_configured = False
        self._tells_of_children = False
        self._is_lost = False  # the hub
        self._told_lost = False
        self._is_quiet = False
        self._is_leaving = False

    def start(self, initialize: Document, more: Mapping[str, Any] = MappingProxyType({})) -> None:
        """`more` are capabilities."""
        self._editor.on_request = self.on_request
        self._editor.on_end = self.leave
        self._editor.answer(initialize, {**CAPABILITIES, **more})

    @property
    def is_joined(self) -> bool:
        return self._cluster is not None

    def join(self, cluster: Cluster, given: Sequence[str] = ()) -> None:
        """The session is for the choice's part of this cluster; breakpoints of these ids are there already."""
        self._cluster = cluster
        home = Home(self._loop, cluster, self.board, self._chorus, self._workspace, self._patience)
        self._pipe = open_pipe(lambda loop, editor: ChildSession(loop, editor, home))
        self.board.join(lambda: cluster.hub, given, self.choice.job or "")
        cluster.start(Listener(self._on_ps, self._on_lost, self._on_back, self._on_given_up))

    # ---- from the editor

    def on_request(self, request: Document) -> None:
        command = str(request.get("command"))
        arguments = request.get("arguments") or {}
        if command in ("attach", "launch"):
            self.note(arguments)
            self._editor.answer(request)
            self._editor.event("initialized")
        elif command == "configurationDone":
            self._editor.answer(request)
            self.configured()
        elif command == "threads":
            self._editor.answer(request, {"threads": []})
        elif command in BREAKPOINTS:
            answer = self._editor.answer
            self.board.set(command, arguments, lambda found: answer(request, {"breakpoints": found}))
        elif command in CALM:
            self._editor.answer(request, {"breakpoints": []})
        elif command in dap_together.COMMANDS:
            self._together(request)
        elif command in ("disconnect", "terminate"):
            self.leave(lambda: self._editor.answer(request))
        else:
            self._editor.refuse(request, f"{command} is for the session of a rank")

    def note(self, arguments: Document) -> None:
        """What the configuration says for the children, and of paths."""
        self._tells_of_children = bool(arguments.get("childEvents"))
        self._attach = {
            name: value
            for name, value in arguments.items()
            if name not in OWN_ARGUMENTS and not name.startswith("__")  # the editor's own notes
        }
        self.board.bounds = replace(self.board.bounds, mappings=tuple(explicit_mappings(arguments)))

    def configured(self) -> None:
        self._is_configured = True
        self._start_children()

    def _together(self, request: Document) -> None:
        if self._cluster is None:
            self._editor.refuse(request, "the job has not started yet", "its processes appear once it calls ray.init")
        else:
            dap_together.answer(request, self._loop, self._editor, self._cluster.hub, self.choice)

    def _tell_breakpoint(self, document: Document) -> None:
        self._editor.event("breakpoint", {"reason": "changed", "breakpoint": document})

    # ---- children

    def _on_ps(self, ps: Document) -> None:
        self._ps = ps
        self.board.on_ps(ps)
        if self._is_configured:
            self._start_children()

    def _start_children(self) -> None:
        for stop in sorted(self.choice.among(self._ps.get("stops", ())), key=_by_rank):
            thread = (stop["worker_id"], stop.get("thread", ""))
            is_followed = thread in self._threads and stop.get("attached", 0) > 0
            if stop["id"] not in self._started:
                self._started.add(stop["id"])
                if not is_followed:
                    self._threads.add(thread)
                    self._start(stop)

    def _start(self, stop: Document) -> None:
        name = child_name(stop)
        configuration = {**self._attach, "type": "devkit", "request": "attach", "name": name, "id": stop["id"]}
        configuration["thread"] = f"{stop['worker_id']}/{stop.get('thread', '')}"  # so that a click finds this session
        configuration["underParent"] = True
        if self._pipe is not None:
            configuration["pipe"] = self._pipe.path
        if self._tells_of_children:
            self._editor.event(CHILD_EVENT, configuration)
            return

        def answered(response: Document) -> None:
            if not response.get("success", True):
                self._editor.output(
                    f"{name}: the editor started no session: {response.get('message', '')}", "important"
                )

        self._editor.ask("startDebugging", {"request": "attach", "configuration": configuration}, answered)

    # ---- the hub, and the end

    def _say_of_ranks(self, text: str) -> None:
        if not self._is_lost and not self._is_quiet:  # else it is known why
            self._editor.output(text, "important")

    def _on_lost(self) -> None:
        self._is_lost = True
        self._chorus.drop()
        self._loop.after(self._patience, self._say_lost)

    def _say_lost(self) -> None:
        if self._is_lost and not self._is_quiet:
            self._told_lost = True
            self._editor.output(LOST, "console" if self._tells_of_children else "important")
            if self._tells_of_children:
                self._editor.event(LOST_EVENT, {"message": LOST})

    def _on_back(self) -> None:
        self._is_lost = False
        if self._told_lost:
            self._editor.output(BACK, "important")
        self._told_lost = False
        self.board.post()

    def _on_given_up(self, error: DevkitError) -> None:
        if not self._is_quiet:
            self._editor.output(f"{error.message}; paused ranks stay paused: see devkit ps", "important")
            self._editor.event("terminated")

    def program_ended(self, code: int) -> None:
        """That the cluster goes is no news any more, nor that a rank does."""
        self._is_quiet = True
        if self._pipe is not None:
            self._pipe.end_all("the program has ended", code)

    def leave(self, then: Callable[[], None] = lambda: None) -> None:
        """The stops stay; the session's breakpoints are taken away first, while the editor waits for its answer."""

        def end() -> None:
            then()
            self.finish()

        if not self._is_leaving:
            self._is_leaving = True
            self.take_away(end)

    def take_away(self, done: Callable[[], None]) -> None:
        """Removes the breakpoints from the job, as far as that can be done in time."""
        is_over = False

        def end() -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                done()

        self._loop.after(LEAVE_SECONDS, end)
        self.board.close(end)

    def finish(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
        if self._cluster is not None:
            self._cluster.close()
        self._loop.stop(0)


def _by_rank(stop: Mapping[str, Any]) -> tuple[str, int]:
    """As they are to stand in the editor, whoever stopped first."""
    who = Who.of(stop)
    return who.role, -1 if who.rank is None else who.rank


def child_name(stop: Mapping[str, Any]) -> str:
    """
    >>> child_name({"id": "a-1", "role": "Worker", "rank": 1}), child_name({"id": "a-2", "role": "driver"})
    ('rank 1 Worker', 'driver a-2')
    """
    who = Who.of(stop)
    return f"{who.role or 'worker'} {who.id}" if who.rank is None else f"rank {who.rank} {who.role}".rstrip()
