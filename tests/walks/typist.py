"""A real shell in a real terminal, into which a page is typed line by line."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fcntl import ioctl
from pathlib import Path

from tests.walks.pages import INTERRUPT, SHELL, Saved, Typed, compare, with_meant
from tests.walks.terminals import DEADLINE, Terminal

ROWS, COLUMNS = 50, 100  # of a terminal as most people have it, an editor's too
READY = re.compile(r"<(\d+)>\$ $")  # the shell's prompt, with the exit code of what ran before
DEBUGGER = re.compile(r"\(devkit[^)\n]*\) $")
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|\x1b[=>()][B0]?|\r")
FOLDER = "project"  # of the user's home, where everything is typed
LOOKS = ("ps", "eval", "stacks", "crashes", "hang", "jobs", "logs", "break --list")  # one may look again


@dataclass
class Shell:
    """`bash` in a terminal of its own."""

    process: subprocess.Popen[bytes]
    master: int
    said: str = ""
    begun: int = 0  # where what the last line printed begins
    _reader: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # the terminal is closed
            while piece := os.read(self.master, 1 << 16):
                self.said += CONTROL.sub("", piece.decode("utf-8", "replace"))

    @property
    def printed(self) -> str:
        return self.said[self.begun :]

    def until(self, what: str, holds: Callable[[], object]) -> None:
        end = time.monotonic() + DEADLINE
        while not holds():
            assert self.process.poll() is None and time.monotonic() < end, f"{what}, in:\n{self.said[-4000:]}"
            time.sleep(0.05)

    def ready(self) -> int:
        """Waits for the shell's prompt. The exit code of what ran."""
        self.until("no prompt", lambda: READY.search(self.printed))  # not the one at which the last line was typed
        found = READY.search(self.printed)
        assert found
        return int(found[1])

    def type(self, text: str) -> None:
        self.begun = len(self.said)
        os.write(self.master, text.encode())

    def key(self, text: str) -> None:
        """A key that prints nothing of its own; what was printed before it counts on."""
        os.write(self.master, text.encode())


@contextmanager
def bash(
    terminal: Terminal, rows: int, columns: int, prompt: str, folder: str = FOLDER
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A shell of the user, with the virtual environment active and nothing else set; and its terminal's other end."""
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    starts = "exec setsid --ctty bash --norc --noprofile --noediting -i"
    words = terminal.words(f"mkdir -p {folder} && cd {folder} && TERM=xterm PS1='{prompt}' PROMPT_COMMAND= {starts}")
    process = subprocess.Popen(words, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
    os.close(slave)
    try:
        yield process, master
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        os.close(master)


@contextmanager
def shell(terminal: Terminal) -> Iterator[Shell]:
    with bash(terminal, ROWS, COLUMNS, "<$?>$ ") as (process, master):
        yield Shell(process, master)


@dataclass
class Reader:
    """Somebody who does what a page says, in as many terminals, and on as many machines, as it asks for."""

    machines: list[Terminal]
    shells: dict[int, Shell]
    typed: int = 0
    meant: dict[str, str] = field(default_factory=dict)  # ids and addresses: those of the page, those of this run

    def do(self, step: Saved | Typed) -> None:
        if isinstance(step, Saved):
            for machine in self.machines:
                machine.host.write(str(Path(machine.home) / FOLDER / step.path), step.text, "644")
            return
        shell = self.shells[step.terminal]
        line = with_meant(step.text, self.meant) + "\n"
        if step.text == INTERRUPT:
            shell.key("\x03")
        elif step.prompt == SHELL:
            shell.ready()
            shell.type(line)
        else:
            shell.until("no debugger", lambda: DEBUGGER.search(shell.printed))
            shell.type(line)
        self.typed += 1
        self._see(shell, step, line)

    def _see(self, shell: Shell, step: Typed, line: str) -> None:
        """Waits for what the page shows; what only looks is asked again."""
        looks = step.prompt == SHELL and step.text.removeprefix("devkit ").startswith(LOOKS)
        end = time.monotonic() + DEADLINE
        echoed = 1 if step.prompt == SHELL else 0  # lines: the typed one
        while (compared := compare(step.shown, "".join(shell.printed.splitlines(True)[echoed:]))).missing is not None:
            over = step.prompt == SHELL and READY.search(shell.printed)
            waits = time.monotonic() < end and shell.process.poll() is None and (looks or not over)
            assert waits, f"{step.text}: no {compared.missing!r} in:\n{shell.printed[-6000:]}"
            if looks and over:
                shell.type(line)
            time.sleep(0.1)
        self.meant |= compared.meant


def walk(terminal: Terminal, steps: list[Saved | Typed], others: Mapping[int, Terminal] | None = None) -> Reader:
    """Types all of a page. `others`: of the page's terminals, those that are on another machine."""
    on = others or {}
    with contextlib.ExitStack() as stack:
        numbers = sorted({step.terminal for step in steps if isinstance(step, Typed)})
        shells = {number: stack.enter_context(shell(on.get(number, terminal))) for number in numbers}
        reader = Reader(list(dict.fromkeys([terminal, *on.values()])), shells)
        for step in steps:
            reader.do(step)
        for shell_of in reader.shells.values():
            shell_of.ready()  # nothing of the page runs on
        return reader
