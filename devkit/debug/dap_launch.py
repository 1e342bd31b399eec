"""`devkit dap --launch`: starts a program under `devkit run`, and is then the parent session of its job.

The editor's breakpoints go along with the program: they are armed before its first task.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from devkit.debug import client
from devkit.debug.dap_choice import Choice
from devkit.debug.dap_cluster import Cluster, DapHub
from devkit.debug.dap_command import LOOK_SECONDS, Command, Launch, Listener
from devkit.debug.dap_exchange import End
from devkit.debug.dap_loop import Loop
from devkit.debug.dap_parent import ParentSession
from devkit.debug.dap_stdio import Editor
from devkit.debug.inworker.records import Breakpoint
from devkit.debug.protocols import Document
from devkit.debug.runs import Run
from devkit.errors import DevkitError, UsageError

JOIN_SECONDS = 30.0  # for the debugger of a job that is there
RETRY_SECONDS = 0.5
PATIENCE_SECONDS = 5.0  # a program that ends takes its cluster along before it says so
QUIET_SECONDS = 60.0  # after which it is said that the program has not called `ray.init`
END_SECONDS = 12.0  # for a command that was asked to end, before it is killed
LEAVE_SECONDS = 10.0  # for the editor to go, after it was told that all is over
CAPABILITIES = {"supportsTerminateRequest": True, "supportTerminateDebuggee": True}

Reach = Callable[[Run], DapHub]


class LaunchSession:
    """Before the program starts it collects breakpoints; what is not about starting and ending is the parent's."""

    def __init__(
        self,
        loop: Loop,
        editor: Editor,
        workspace: str,
        address: str | None,
        seconds: float,
        reach: Reach | None = None,
    ) -> None:
        self._loop, self._editor, self._reach = loop, editor, reach or client.connect_to
        self._workspace, self._address, self._seconds = workspace, address, seconds
        self._parent = ParentSession(loop, editor, Choice.of(None, None), workspace, PATIENCE_SECONDS)
        self._launch: Launch | None = None
        self._command: Command | None = None
        self._request: Document | None = None  # the launch, until it is answered
        self._given: list[str] = []  # breakpoints that went along
        self._can: Document = {}  # what the editor said of itself
        self._is_configured = False
        self._is_leaving = False

    def start(self) -> None:
        self._editor.on_request = self._on_first
        self._editor.on_end = self._lost
        self._editor.start()

    # ---- from the editor

    def _on_first(self, request: Document) -> None:
        if request.get("command") == "disconnect":
            self._editor.answer(request)
            self._loop.stop(0)
        elif request.get("command") != "initialize":
            self._editor.refuse(request, "a session begins with initialize")
        else:
            self._can = request.get("arguments") or {}
            self._parent.start(request, CAPABILITIES)
            self._editor.on_request = self._on_request
            self._editor.on_end = self._lost

    def _on_request(self, request: Document) -> None:
        command = request.get("command")
        arguments = request.get("arguments") or {}
        if command == "launch":
            self._on_launch(request, arguments)
        elif command == "attach":
            self._editor.refuse(request, "this session launches a program", "devkit dap --all attaches to a job")
        elif command == "configurationDone":
            self._editor.answer(request)
            self._parent.configured()
            self._is_configured = True
            self._begin()
        elif command == "terminate":
            self._editor.answer(request)
            if self._command is not None:
                self._command.end()
        elif command == "disconnect":
            self._disconnect(request, arguments)
        else:
            self._parent.on_request(request)

    def _on_launch(self, request: Document, arguments: Document) -> None:
        try:
            if not self._can.get("supportsStartDebuggingRequest"):
                hint = "start it with devkit run, and attach with devkit dap --all"
                raise UsageError("this editor can't have a child session for each rank", hint=hint)
            self._launch = Launch.of(arguments, self._workspace, self._address)
        except UsageError as error:
            self._editor.refuse(request, f"error: {error.message}", f"hint: {error.hint}")
            return
        self._request = request
        self._parent.note(arguments)
        self._editor.event("initialized")
        self._begin()

    def _begin(self) -> None:
        """Once it is known what to launch, and with which breakpoints."""
        launch = self._launch
        if launch is None or not self._is_configured or self._command is not None:
            return
        listener = Listener(self._started, self._refused, self._joined, self._ended)
        self._command = command = Command(self._loop, self._editor, launch, listener)
        in_terminal = launch.console != "internalConsole" and bool(self._can.get("supportsRunInTerminalRequest"))

        def start(points: list[Breakpoint]) -> None:
            if not self._is_leaving:
                self._given = [point.id for point in points] if launch.debug else []
                command.start(points if launch.debug else [], in_terminal)

        self._parent.board.when_settled(start)

    # ---- from the command

    def _started(self) -> None:
        request, self._request = self._request, None
        if request is not None:
            self._editor.answer(request)
        self._loop.after(QUIET_SECONDS, self._say_what_is_missing)

    def _say_what_is_missing(self) -> None:
        if not self._parent.is_joined and self._command is not None and not self._command.is_over:
            self._editor.output("waiting for ray.init(); breakpoints take effect after it")

    def _refused(self, why: str) -> None:
        request, self._request = self._request, None
        if request is not None:
            self._editor.refuse(request, f"error: {why}")
        self._ended(End(1, why))

    def _joined(self, run: Run) -> None:
        if self._launch is None or not self._launch.debug:
            return
        if any(name.startswith("RAY_AUTH") for name in self._launch.env):  # what the program shows, we show too
            os.environ.update({name: value for name, value in self._launch.env.items() if value is not None})
        self._connect(run, time.monotonic() + JOIN_SECONDS)

    def _connect(self, run: Run, until: float) -> None:
        def connected(hub: DapHub) -> None:
            if self._is_leaving or (self._command is not None and self._command.is_over):
                hub.close()
                return
            self._parent.choice = Choice(run.job_id, None)
            self._parent.join(Cluster(self._loop, lambda: self._reach(run), hub, self._seconds), self._given)

        def failed(error: DevkitError) -> None:
            if self._command is None or self._command.is_over or self._is_leaving:
                return
            if time.monotonic() < until:
                self._loop.after(RETRY_SECONDS, lambda: self._connect(run, until))
                return
            text = f"the debugger of job {run.job_id} can't be reached: {error.message}"
            self._editor.output(f"{text}; the program runs on: devkit ps", "important")

        self._loop.background(lambda: self._reach(run), connected, failed)

    def _ended(self, end: End) -> None:
        request, self._request = self._request, None
        if request is not None:
            self._editor.answer(request)
        if end.error:
            self._editor.output(f"error: {end.error}", "important")
        code = end.code if end.code >= 0 else 128 - end.code
        self._parent.program_ended(code)
        self._editor.event("exited", {"exitCode": code})
        self._editor.event("terminated")
        self._loop.after(LEAVE_SECONDS, self._leave)

    # ---- the end

    def _disconnect(self, request: Document, arguments: Document) -> None:
        command = self._command
        if command is not None and arguments.get("terminateDebuggee", command.is_child):
            if command.is_ending:
                command.kill()
            command.end()
        self._leave(lambda: self._editor.answer(request))

    def _lost(self) -> None:
        """The editor is gone. A program in a terminal has somebody else to talk to; a child of ours hasn't."""
        if self._command is not None and self._command.is_child:
            self._command.end()
        self._leave()

    def _leave(self, then: Callable[[], None] = lambda: None) -> None:
        if self._is_leaving:
            return
        self._is_leaving = True
        until = time.monotonic() + END_SECONDS

        def wait() -> None:
            """For a command that was asked to end."""
            command = self._command
            if command is not None and command.is_ending and not command.is_over:
                if time.monotonic() < until:
                    self._loop.after(LOOK_SECONDS, wait)
                    return
                command.kill()
            if command is not None:
                command.close()
            self._parent.finish()

        def gone() -> None:
            then()
            wait()

        self._parent.take_away(gone)
