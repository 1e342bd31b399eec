"""The `devkit run` of a session that launches: started in the editor's terminal or as a child, watched, and ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from devkit.debug.dap_exchange import FOLDER, End, Exchange, RunProcess
from devkit.debug.dap_loop import Loop
from devkit.debug.dap_stdio import Category, Editor
from devkit.debug.inworker import private
from devkit.debug.inworker.records import Breakpoint
from devkit.debug.protocols import Document
from devkit.debug.runs import Run
from devkit.errors import UsageError

LOOK_SECONDS = 0.1
START_SECONDS = 60.0  # for a terminal to run the command
TERMINATE_SECONDS = 5.0  # between one signal and the next
CONSOLES = {"integratedTerminal": "integrated", "externalTerminal": "external", "internalConsole": ""}
HINT = 'set "program": "train.py" or "command": ["python", "train.py"]'
PASSED_ON = ("RAY_", "DEVKIT_")  # variables of this process that the run in a terminal gets too


@dataclass(frozen=True)
class Launch:
    """What a launch request asks for."""

    command: tuple[str, ...]
    cwd: str
    env: Mapping[str, str | None] = field(default_factory=dict)
    address: str | None = None
    post_mortem: str = ""
    console: str = "integratedTerminal"
    debug: bool = True

    @classmethod
    def of(cls, arguments: Mapping[str, Any], workspace: str, address: str | None) -> Launch:
        """Raises UsageError for what can't be meant."""
        cwd = os.path.join(workspace, str(arguments.get("cwd") or ""))
        if not os.path.isdir(cwd):
            raise UsageError(f"cwd is not a folder: {cwd}", hint="the default is the workspace folder")
        console = arguments.get("console") or "integratedTerminal"
        if console not in CONSOLES:
            raise UsageError(f"console is {console!r}", hint=f"one of {', '.join(CONSOLES)}")
        env = arguments.get("env") or {}
        if not isinstance(env, dict) or not all(value is None or isinstance(value, str) for value in env.values()):
            raise UsageError("env is not an object of strings", hint='set "env": {"NAME": "value"}')
        return cls(
            command=_command(arguments, cwd),
            cwd=os.path.normpath(cwd),
            env=env,
            address=arguments.get("address") or address,
            post_mortem=str(arguments.get("postMortem") or ""),
            console=console,
            debug=not arguments.get("noDebug"),
        )

    def line(self) -> list[str]:
        """The whole command line. A `breakpoint()` of the driver stops in the editor, not in its terminal."""
        options = ["--wait"]
        options += ["--address", self.address] if self.address else []
        options += ["--post-mortem", self.post_mortem] if self.post_mortem else []
        return [sys.executable, "-m", "devkit", "run", *options, "--", *self.command]


def _command(arguments: Mapping[str, Any], cwd: str) -> tuple[str, ...]:
    program, command, more = (arguments.get(name) for name in ("program", "command", "args"))
    if bool(program) == bool(command):
        raise UsageError("a launch takes either a program or a command", hint=HINT)
    words = [*(command or ()), *(more or ())] if isinstance(command or (), list | tuple) else None
    if words is None or not isinstance(more or [], list) or not all(isinstance(word, str) for word in words):
        raise UsageError("command and args must be lists of strings", hint=HINT)
    if command:
        return tuple(words)
    path = os.path.join(cwd, str(program))
    if not os.path.isfile(path):
        raise UsageError(f"no such program: {path}", hint=HINT)
    return (str(arguments.get("python") or sys.executable), path, *words)


@dataclass(frozen=True)
class Listener:
    """Whom the command tells, in the loop's thread."""

    on_started: Callable[[], None]
    on_refused: Callable[[str], None]  # nothing was started, or nothing came of it
    on_joined: Callable[[Run], None]
    on_ended: Callable[[End], None]


class Command:
    """One run. All is done in the loop's thread, but for reading what a child prints."""

    def __init__(self, loop: Loop, editor: Editor, launch: Launch, listener: Listener) -> None:
        self._loop, self._editor, self._launch, self._listener = loop, editor, launch, listener
        self._folder = tempfile.TemporaryDirectory(
            prefix="devkit-dap-", dir=private.temporary(), ignore_cleanup_errors=True
        )
        self._exchange = Exchange(Path(self._folder.name))
        self._child: subprocess.Popen[bytes] | None = None
        self._process: RunProcess | None = None
        self._readers: list[threading.Thread] = []
        self._is_joined = False
        self._was_gone = False
        self._is_over = False
        self._is_ending = False

    @property
    def is_child(self) -> bool:
        """Whether what it prints comes here: it can't live without us."""
        return self._child is not None

    @property
    def is_over(self) -> bool:
        return self._is_over

    @property
    def is_ending(self) -> bool:
        """Whether it was asked to end."""
        return self._is_ending

    def start(self, points: Sequence[Breakpoint], in_terminal: bool) -> None:
        launch = self._launch
        if in_terminal:
            own = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
            self._exchange.wish(points, {**own, **launch.env})
            arguments = {
                "kind": CONSOLES[launch.console],
                "title": f"devkit run {os.path.basename(launch.command[-1])}",
                "cwd": launch.cwd,
                "args": launch.line(),
                "env": {FOLDER: self._folder.name},
            }
            self._editor.ask("runInTerminal", arguments, self._answered)
            self._loop.after(START_SECONDS, self._not_started)
        else:
            self._exchange.wish(points, launch.env)
            try:
                self._start_child()
            except OSError as error:
                self._refuse(f"the command can't be started: {error}")
                return
            self._listener.on_started()
        self._loop.after(LOOK_SECONDS, self._look)

    def end(self) -> None:
        """As Ctrl-C; what doesn't end by that is asked once more in another way."""
        if self._is_over or self._is_ending:
            return
        self._is_ending = True
        self._signal(signal.SIGINT)

        def again() -> None:
            self._signal(signal.SIGTERM)
            self._loop.after(TERMINATE_SECONDS, late)

        def late() -> None:
            if not self._is_over:
                pid = self._process.pid if self._process else "not known"
                self._editor.output(
                    f"the command has not ended after SIGINT and SIGTERM; its pid is {pid}", "important"
                )

        self._loop.after(TERMINATE_SECONDS, again)

    def kill(self) -> None:
        """The user has no more patience."""
        self._signal(signal.SIGKILL)

    def close(self) -> None:
        """Nothing is watched any more."""
        self._is_over = True
        self._folder.cleanup()

    # ---- starting

    def _answered(self, response: Document) -> None:
        if response.get("success", True):
            self._listener.on_started()
        else:
            self._refuse(f"the editor's terminal did not start the command: {response.get('message', '')}")

    def _not_started(self) -> None:
        if not self._is_over and self._exchange.process() is None and self._exchange.end() is None:
            self._refuse(f"devkit run has not started within {START_SECONDS:g} s: the terminal did not run it")

    def _refuse(self, why: str) -> None:
        if not self._is_over:
            self._is_over = True
            self._listener.on_refused(why)

    def _start_child(self) -> None:
        self._child = child = subprocess.Popen(
            self._launch.line(),
            cwd=self._launch.cwd,
            env={**os.environ, FOLDER: self._folder.name, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        for stream, category in ((child.stdout, "stdout"), (child.stderr, "stderr")):
            reader = threading.Thread(target=self._copy, args=(stream, category), name="devkit-dap-output", daemon=True)
            self._readers.append(reader)
            reader.start()

    def _copy(self, stream: BinaryIO, category: Category) -> None:
        with stream:
            for line in stream:
                text = line.decode("utf-8", "replace").rstrip("\n")
                self._loop.post(lambda text=text: self._editor.output(text, category))  # type: ignore[misc]

    # ---- watching

    def _look(self) -> None:
        if self._is_over:
            return
        self._process = self._process or self._exchange.process()
        end = self._exchange.end() or self._vanished()
        job = None if self._is_joined else self._exchange.job()
        if job is not None and end is None:
            self._is_joined = True
            self._listener.on_joined(job)
        if end is None:
            self._loop.after(LOOK_SECONDS, self._look)
        else:
            self._over(end)

    def _vanished(self) -> End | None:
        """A run that was killed tells nothing more. What it said last is read once again before that is believed."""
        if self._child is not None:
            is_gone = self._child.poll() is not None
        else:
            is_gone = self._process is not None and not self._process.lives
        was_gone, self._was_gone = self._was_gone, is_gone
        return End(1, "devkit run was killed") if is_gone and was_gone else None

    def _over(self, end: End) -> None:
        self._is_over = True
        for reader in self._readers:  # its last words; a grandchild may keep the pipe open
            reader.join(1.0)
        if self._child is not None:
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(1.0)
        self._loop.post(lambda: self._listener.on_ended(end))  # after these

    def _signal(self, number: signal.Signals) -> None:
        """To the run's own group of processes. In a shell without job control the group is not its own.

        A run without a terminal passes SIGINT on by itself; a program that gets it twice can't clean up.
        """
        process = self._process or self._exchange.process()
        pid = self._child.pid if self._child is not None else process.pid if process and process.lives else None
        if pid is None or self._is_over:
            return
        with suppress(ProcessLookupError):
            if self._child is not None and number == signal.SIGINT:
                os.kill(pid, number)
                return
            if os.getpgid(pid) == pid:
                os.killpg(pid, number)
                return
            os.kill(pid, number)
            if process is not None:
                os.kill(process.program, number)
