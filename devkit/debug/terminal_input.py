"""The lines that are typed in `devkit attach`: on a terminal, or through a pipe."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from typing import Protocol, TextIO

from devkit import console
from devkit.debug.state import home, private_folder
from devkit.errors import DevkitError

HISTORY_LINES = 2000
DELIMITERS = " \t\n`~!@#$%^&*()-=+[{]}\\|;:'\",<>/?"  # pdb's words end here; a dot belongs to a name


class Lines(Protocol):
    """Where commands come from."""

    def read(self, prompt: str) -> str | None:
        """The next line, None at the end. KeyboardInterrupt passes through."""
        ...

    def ended(self) -> bool:
        """Whether no more lines can come."""
        ...

    def close(self) -> None: ...


def open_lines(complete: Callable[[str, int], list[str]], nudge: Callable[[], None]) -> Lines:
    """The terminal's, or the pipe's."""
    return TerminalLines(complete) if sys.stdin.isatty() else PipeLines(sys.stdin, nudge)


class PipeLines:
    """Lines of a pipe. A thread reads ahead, so that the end is known while the session waits for a rank."""

    def __init__(self, stream: TextIO, nudge: Callable[[], None]) -> None:
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._over = threading.Event()
        self._nudge = nudge
        threading.Thread(target=self._read, args=(stream,), daemon=True).start()

    def _read(self, stream: TextIO) -> None:
        for line in stream:
            self._lines.put(line.rstrip("\r\n"))
        self._over.set()
        self._lines.put(None)
        self._nudge()

    def read(self, prompt: str) -> str | None:
        line = self._lines.get()
        if line is None:
            self._lines.put(None)
        else:
            # As if it had been typed: a transcript shows what was asked.
            console.result().print(f"{prompt}{line}", style="dim", soft_wrap=True)
        return line

    def ended(self) -> bool:
        # The end itself is one entry.
        return self._over.is_set() and self._lines.qsize() <= 1

    def close(self) -> None:
        pass


class TerminalLines:
    """readline, with completion in the frame that is looked at and a history that is kept."""

    def __init__(self, complete: Callable[[str, int], list[str]]) -> None:
        self._complete = complete
        self._found: list[str] = []
        self._history = home() / "history"
        self._has_readline = find_spec("readline") is not None  # a Python built without it still has input()
        if self._has_readline:
            self._set_up()

    def read(self, prompt: str) -> str | None:
        try:
            return input(prompt)
        except EOFError:
            sys.stdout.write("\n")
            return None

    def ended(self) -> bool:
        return False

    def close(self) -> None:
        if not self._has_readline:
            return
        import readline

        readline.set_completer(None)
        try:
            private_folder()
            readline.write_history_file(self._history)
        except (OSError, DevkitError) as error:
            console.talk().print(f"-- the history was not saved: {error}", style="dim", soft_wrap=True)

    def _set_up(self) -> None:
        import readline

        with suppress(OSError):  # the first time there is none
            readline.read_history_file(self._history)
        readline.set_history_length(HISTORY_LINES)
        readline.set_completer_delims(DELIMITERS)
        readline.set_completer(self._candidate)
        is_libedit = "libedit" in (readline.__doc__ or "")
        readline.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")

    def _candidate(self, _text: str, number: int) -> str | None:
        """readline asks for one candidate after the other."""
        import readline

        if number == 0:
            self._found = self._complete(readline.get_line_buffer(), readline.get_endidx())
        return self._found[number] if number < len(self._found) else None
