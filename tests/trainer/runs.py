"""Real runs for the tests: a command in a session of its own, what it says, and whether anything of it is left.

Every process of a run inherits a mark in its environment; they are found by it and ended one by one, by pid.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import queue
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

from tests.pace import stretched

ROOT = Path(__file__).parents[2]
DEADLINE_S = stretched(120.0)  # of a run that takes 20 s on an idle machine
GONE_S = stretched(20.0)  # until nothing of an ended run is left
MARK = "TRAINER_TEST_RUN"
# Ray's own, which try for a minute to report that their cluster was killed, and then go.
AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")
MEASURED = (
    *("perf/time_per_step", "perf/throughput"),
    *("perf/max_memory_allocated_gb", "perf/max_memory_reserved_gb", "perf/cpu_memory_used_gb"),
)


def marked(mark: str) -> list[int]:
    """Pids of the living processes that carry `mark`."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            alive = (folder / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
            if alive and f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:  # it ended meanwhile
            continue
    return found


def wait_until_gone(mark: str, timeout_s: float = GONE_S, *, but: tuple[str, ...] = ()) -> list[str]:
    """The command lines of what is still there at the deadline; empty as soon as nothing is, but for these programs."""
    deadline = time.monotonic() + timeout_s
    while pids := [pid for pid in marked(mark) if not any(program in command_of(pid) for program in but)]:
        for pid in pids:
            left = deadline - time.monotonic()
            if left <= 0:
                return [command_of(pid) for pid in marked(mark) if pid in pids]  # and not who has ended meanwhile
            _wait_for_exit(pid, left)
    return []


def _wait_for_exit(pid: int, timeout_s: float) -> None:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        select.select([handle], [], [], timeout_s)
    finally:
        os.close(handle)


def command_of(pid: int) -> str:
    try:
        return f"{pid} " + Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]
    except OSError:
        return str(pid)


R = TypeVar("R", bound="Run")


class Run:
    """A process and everything that it starts."""

    def __init__(self, command: Sequence[str], folder: Path, env: Mapping[str, str]) -> None:
        self.mark = uuid.uuid4().hex
        environment = {**os.environ, "RAY_AUTH_MODE": "disabled", **env, MARK: self.mark}
        environment.pop("RAY_AUTH_TOKEN", None)
        self.process, self.stream = self.started(command, folder, environment)
        self.lines: list[str] = []
        self._queue: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError), self.stream as stream:  # a terminal whose last program has gone is an error
            for line in stream:
                self.lines.append(line.rstrip("\n"))
                self._queue.put(line)
        self._queue.put(None)

    def started(
        self, command: Sequence[str], folder: Path, environ: Mapping[str, str]
    ) -> tuple[subprocess.Popen[str], IO[str]]:
        """The process, and what it says."""
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        assert process.stdout is not None
        return process, process.stdout

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def wait_for_line(self, part: str, timeout_s: float = DEADLINE_S) -> str:
        """The next line with `part` in it."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                line = self._queue.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no line with {part!r} within {timeout_s} s:\n{self.text}") from None
            assert line is not None, f"ended without a line with {part!r}:\n{self.text}"
            if part in line:
                return line.rstrip("\n")

    def wait(self, timeout_s: float = DEADLINE_S) -> int:
        """The exit code, once all that it wrote is read."""
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout_s} s:\n{self.text}") from None
        self._reader.join(GONE_S)  # what it left behind may hold the pipe open
        return code

    def signal_group(self, number: signal.Signals) -> None:
        """As the terminal does with Ctrl-C."""
        os.killpg(self.process.pid, number)

    def close(self) -> None:
        """Ends what is left, by pid."""
        while pids := marked(self.mark):
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                    _wait_for_exit(pid, GONE_S)
                except ProcessLookupError:
                    continue
        self.process.wait(GONE_S)
        self._reader.join(GONE_S)


class TerminalRun(Run):
    """The same on a terminal of its own, of 80 columns and 24 rows. What is drawn in place is a line each time."""

    def started(
        self, command: Sequence[str], folder: Path, environ: Mapping[str, str]
    ) -> tuple[subprocess.Popen[str], IO[str]]:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self._modes = termios.tcgetattr(self._master)
        environ = {**environ, "TERM": "xterm-256color"}
        process = subprocess.Popen(
            ["setsid", "--ctty", *command], cwd=folder, env=environ, stdin=slave, stdout=slave, stderr=slave, text=True
        )
        os.close(slave)
        return process, open(self._master, encoding="utf-8", errors="replace", closefd=False)

    def press(self, key: str) -> None:
        os.write(self._master, key.encode())

    @property
    def modes_are_kept(self) -> bool:
        """Whether the terminal takes and shows what is typed as it did before."""
        return termios.tcgetattr(self._master) == self._modes

    def close(self) -> None:
        super().close()
        os.close(self._master)


def running(command: Sequence[str], folder: Path, **env: str) -> AbstractContextManager[Run]:
    """A run with a Ray temp folder of its own, short enough for sockets; all of it is gone afterwards."""
    return _running(Run, command, folder, env)


def running_on_a_terminal(command: Sequence[str], folder: Path, **env: str) -> AbstractContextManager[TerminalRun]:
    return _running(TerminalRun, command, folder, env)


@contextmanager
def _running(kind: type[R], command: Sequence[str], folder: Path, env: Mapping[str, str]) -> Iterator[R]:
    temporary = tempfile.mkdtemp(prefix="tr", dir="/tmp")
    run = kind(command, folder, {"RAY_TMPDIR": temporary, "TMPDIR": temporary, "PYTHONPATH": str(ROOT), **env})
    try:
        yield run
    finally:
        run.close()
        shutil.rmtree(temporary, ignore_errors=True)


def main_ppo(words: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "trainer.main_ppo", *words]


def complete(words: Sequence[str], folder: Path, **env: str) -> tuple[int, Run]:
    """A run from its start to its end; it must leave nothing behind."""
    with running(main_ppo(words), folder, **env) as run:
        code = run.wait()
        assert wait_until_gone(run.mark) == [], run.text
    return code, run


def assert_one_error(run: Run, *parts: str) -> str:
    """One `error:` line and after it one `hint:` line, no traceback; gives both lines."""
    errors = [i for i, line in enumerate(run.lines) if line.startswith("error:")]
    hints = [i for i, line in enumerate(run.lines) if line.startswith("hint:")]
    assert len(errors) == len(hints) == 1 and hints[0] == errors[0] + 1, run.text
    assert run.lines[hints[0]].removeprefix("hint:").strip(), run.text
    assert "Traceback" not in run.text, run.text
    both = "\n".join(run.lines[errors[0] : hints[0] + 1])
    for part in parts:
        assert part in both, f"{part!r} is not in:\n{both}"
    return both


def metrics_of(folder: Path) -> dict[int, dict[str, Any]]:
    """What was logged by step, without what a machine decides; of a step that was logged twice, the last."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {
        line["step"]: {
            name: value
            for name, value in line.items()
            if not name.startswith(("timing_", "memory_gb/")) and name not in MEASURED
        }
        for line in lines
    }
