"""Signals on their way from `devkit run` to its command, and how that ended."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from devkit.debug.processes import load_psutil
from devkit.errors import INTERRUPTED
from devkit.signals import handled

LOOK_S = 0.2  # between looks whether what nobody reaps has ended
ONE_SIGNAL_S = 1.0  # SIGTERM twice within it is one: `timeout` sends it to its child and to their group
SHELLS = ("sh", "bash", "dash", "zsh", "ksh", "fish")


class Forwarding:
    """SIGTERM and SIGINT go to the command and, where that is a shell's script, to what the script runs.

    A shell dies of SIGTERM, or waits on after SIGINT, and passes neither on: a launch script would leave its trainer.
    What a script starts with `&` ignores SIGINT, and gets SIGTERM in its place.
    """

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._early: list[signal.Signals] = []  # what came before the command ran
        self._came: set[signal.Signals] = set()
        self._passed_on = -math.inf
        self._below: dict[int, Any] = {}  # what a script ran when a signal came: psutil's process by pid

    @contextmanager
    def installed(self) -> Iterator[None]:
        """What is ignored stays so: as `nohup` and a shell's `&` have it, for the command too."""
        # Ctrl-C reaches the child by itself, through the terminal; both are needed to end together.
        with handled((signal.SIGTERM, signal.SIGINT), self._handle):
            yield

    def start(self, command: Sequence[str], environ: Mapping[str, str]) -> int:
        """Starts the command, and gives its pid. Raises OSError where it cannot run."""
        load_psutil()  # now: a second Ctrl-C would find it half imported by the first
        child = self._child = subprocess.Popen(command, env=dict(environ))
        while self._early:
            self._pass_on(child, self._early.pop(0))
        return child.pid

    def wait(self) -> int:
        """The exit code, once the command has ended, and what it had run when a signal came.

        It is what ended the command: after a signal a Ray driver may end with any code, by SIGABRT for one.
        """
        assert self._child is not None, "it is started first"
        code = self._child.wait()
        for process in list(self._below.values()):
            _wait_for(process)
        if code and signal.SIGINT in self._came:
            return INTERRUPTED
        return -signal.SIGTERM if code and signal.SIGTERM in self._came else code

    def _handle(self, number: int, _frame: object) -> None:
        came = signal.Signals(number)
        self._came.add(came)
        if self._child is None:
            self._early.append(came)
        else:
            self._pass_on(self._child, came)

    def _pass_on(self, child: subprocess.Popen[bytes], came: signal.Signals) -> None:
        if came == signal.SIGTERM and time.monotonic() - self._passed_on <= ONE_SIGNAL_S:
            return
        self._passed_on = time.monotonic()
        self._below |= _run_by_shells(child.pid)
        from_terminal = came == signal.SIGINT and sys.stdin.isatty()  # which has sent it to all
        for process in self._below.values():  # before the shell: it would go on with its next command
            with suppress(load_psutil().Error):
                if came == signal.SIGINT and ignores_interrupts(process.pid):
                    process.send_signal(signal.SIGTERM)
                elif not from_terminal:
                    process.send_signal(came)
        if not from_terminal:
            child.send_signal(came)


def _wait_for(process: Any) -> None:
    """Until it has ended. Where PID 1 reaps no orphans, as in a container without an init, it stays as a zombie."""
    psutil = load_psutil()
    while True:
        with suppress(psutil.TimeoutExpired):
            process.wait(LOOK_S)
            return
        with suppress(psutil.Error):
            if process.status() == psutil.STATUS_ZOMBIE:
                return


def ignores_interrupts(pid: int) -> bool:
    """As what a script starts with `&` does: its shell has it so, and Ctrl-C would end the script alone."""
    with suppress(OSError, ValueError, StopIteration):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        mask = next(line.split()[1] for line in lines if line.startswith("SigIgn:"))
        return bool(int(mask, 16) >> (signal.SIGINT - 1) & 1)
    return False


def _run_by_shells(pid: int) -> dict[int, Any]:
    """What a shell and the shells below it run; nothing where the process is no shell."""
    psutil = load_psutil()
    found: dict[int, Any] = {}
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        for each in process.children() if process.name() in SHELLS else ():
            found |= {each.pid: each, **_run_by_shells(each.pid)}
    return found
