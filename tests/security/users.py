"""Other unix users of this machine, for attacks between them: the kernel asks for no name, so a number is a user.

Programs of another user import what they need and then call `become`: our interpreter may lie where others can't read.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.pace import stretched

ROOT = 0
VICTIM = 61001  # users whom nobody else on a machine should be
MALLORY = 61002
PROGRAMS = Path(__file__).with_name("programs")
REPOSITORY = Path(__file__).parents[2]
SECONDS = stretched(60.0)  # for any answer
PR_SET_DUMPABLE = 4
APART = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")

needs_users = pytest.mark.needs_root


def become(uid: int, lent: int | None = None) -> None:
    """From now on this process is that user's, as if it had been started by it.

    With rights that are `lent` by another user, as by a program of that one's with the set-user-ID bit.
    """
    os.setgroups([])
    os.setgid(uid)
    other = uid if lent is None else lent
    os.setresuid(uid, other, other)
    # A process that changed its user hides its files from it; one that the user started does not.
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)


class Program:
    """A program of `programs/`, which runs as another user and talks in lines of JSON."""

    def __init__(self, name: str, *arguments: object, apart: bool = False) -> None:
        """`apart`: with processes of its own, as in a container."""
        command = [sys.executable, str(PROGRAMS / name), *map(str, arguments)]
        self.process = subprocess.Popen(
            [*APART, *command] if apart else command,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def heard(self) -> Any:
        """Its next line."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the program ended with exit code {self.process.wait(SECONDS)}"
        return json.loads(line)

    def ask(self, **question: Any) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        return self.heard()

    def close(self) -> None:
        """Ends it; it may have ended."""
        self.process.kill()
        self.process.communicate(timeout=SECONDS)


@contextmanager
def program(name: str, *arguments: object, apart: bool = False) -> Iterator[Program]:
    running = Program(name, *arguments, apart=apart)
    try:
        yield running
    finally:
        running.close()
