"""Terminals of a user who has set nothing: a virtual host with default ports and folders, and an empty home."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.hosts.hosts import Host
from tests.pace import stretched

HOME = "/home/me"
DEADLINE = stretched(240.0)  # seconds, for anything that a user waits for
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Terminal:
    """A shell in the user's home folder, with the virtual environment active and no other variable set."""

    host: Host
    home: str = HOME

    def words(self, command: str) -> list[str]:
        path = f"{Path(sys.executable).parent}:{SYSTEM_PATH}"
        clean = ("env", "-i", f"PATH={path}", f"HOME={self.home}", "LANG=C.UTF-8", "TERM=dumb")
        return self.host.words(*clean, "bash", "-c", f"cd {self.home} && {command}")

    def try_(self, command: str, timeout: float = DEADLINE) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end, however it ends."""
        return subprocess.run(
            self.words(command), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout
        )

    def run(self, command: str, code: int = 0, timeout: float = DEADLINE) -> str:
        """What a command prints on stdout; it has to end with `code`."""
        done = self.try_(command, timeout)
        assert done.returncode == code, f"$ {command}\n{done.stdout}{done.stderr}-> {done.returncode}"
        return done.stdout

    def once(self, command: str, text: str) -> str:
        """What a command prints, once that has `text` in it."""
        until = time.monotonic() + DEADLINE
        while text not in (done := self.try_(command)).stdout:
            assert time.monotonic() < until, f"$ {command}\n{done.stdout}{done.stderr}-> {done.returncode}"
        return done.stdout

    def json(self, command: str) -> Any:
        return json.loads(self.run(f"{command} --json"))

    @contextmanager
    def running(self, command: str) -> Iterator[Running]:
        """A command that runs meanwhile; what is left of it at the end is killed."""
        process = subprocess.Popen(
            self.words(f"exec {command}"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        program = Running(command, process)
        try:
            yield program
        finally:
            process.kill()
            program.wait(stretched(10))
            program.close()

    def stops(self, program: Running, count: int = 1, where: str = "") -> list[dict[str, Any]]:
        """What `devkit ps` lists, once that is `count` stops of the program that runs. `where`: its `--address`."""
        until = time.monotonic() + DEADLINE
        with self.running(f"devkit ps --watch --wait --json {where}") as view:
            while True:
                *whole, _ = view.said.split("\n")
                lines = [line for line in whole if line.startswith("{")]
                found: list[dict[str, Any]] = json.loads(lines[-1]).get("stops", []) if lines else []
                if len(found) >= count:
                    return found
                assert program.process.poll() is None, f"it ended: {program.said}"
                assert time.monotonic() < until, f"$ {view.command}\n{view.said}\n{program.said}"
                time.sleep(0.05)  # between two looks; the deadline is above


@dataclass
class Running:
    """A command that runs in a terminal, and what it said so far."""

    command: str
    process: subprocess.Popen[str]
    said: str = ""
    _heard: int = 0
    _reader: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        while piece := os.read(self.process.stdout.fileno(), 1 << 16):
            self.said += piece.decode("utf-8", "replace")

    def says(self, text: str) -> str:
        """Waits until it has said `text`; what it said up to there is not looked at again."""
        until = time.monotonic() + DEADLINE
        while text not in self.said[self._heard :]:
            assert self.process.poll() is None and time.monotonic() < until, f"{text!r} is not in {self.said}"
            time.sleep(0.05)
        begun, self._heard = self._heard, self.said.index(text, self._heard) + len(text)
        return self.said[begun : self._heard]

    def type(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def wait(self, seconds: float = DEADLINE) -> int:
        """Its exit code."""
        code = self.process.wait(seconds)
        self._reader.join(seconds)
        return code

    def close(self) -> None:
        assert self.process.stdout is not None and self.process.stdin is not None
        self.process.stdin.close()
        self.process.stdout.close()
