"""Signals that end a command, in this process: where they come, and what is left of it."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from devkit.debug import launch
from devkit.signals import ENDING, handled, how_ended, interrupting

NEVER = "import time; time.sleep(600)"


@pytest.mark.parametrize("number", ENDING)
def test_what_comes_of_an_interruption_that_a_library_caught_is_one(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), interrupting():
        swallow(number)
    assert signal.getsignal(number) == before


def swallow(number: signal.Signals) -> None:
    with suppress(KeyboardInterrupt):
        signal.raise_signal(number)
    raise ValueError("half of it is there")


def test_an_error_of_a_command_that_nobody_interrupts_stays_one() -> None:
    with pytest.raises(ValueError, match="its own"), interrupting():
        raise ValueError("its own")


def test_the_ending_of_what_is_interrupted_is_not_disturbed() -> None:
    ended: list[bool] = []
    with pytest.raises(KeyboardInterrupt), interrupting():
        end(ended)
    assert ended


def end(ended: list[bool]) -> None:
    try:
        signal.raise_signal(signal.SIGHUP)
    finally:
        signal.raise_signal(signal.SIGTERM)
        ended.append(True)


def test_one_that_is_ignored_stays_so() -> None:
    with handled((signal.SIGHUP,), signal.SIG_IGN), interrupting():
        signal.raise_signal(signal.SIGHUP)


class Noisy:
    """The interruption comes while this is removed, where Python prints and forgets what is raised."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


def test_one_that_comes_in_a_destructor_comes_again() -> None:
    with pytest.raises(KeyboardInterrupt), interrupting():
        remove_and_wait()


def remove_and_wait() -> None:
    Noisy()
    signal.sigtimedwait((), 30)  # what a signal wakes up
    raise AssertionError("it was forgotten")


class Editor:
    """Is told of the command, and just then a signal comes."""

    def __init__(self) -> None:
        self.pid = 0

    def started(self, pid: int) -> None:
        self.pid = pid
        signal.raise_signal(signal.SIGTERM)


def test_a_signal_that_comes_as_the_command_is_started_ends_it(tmp_path: Path) -> None:
    editor: Any = Editor()
    told = launch._Told(tmp_path / "announce", (), editor, 0.0)
    code = None
    try:
        with suppress(KeyboardInterrupt), interrupting():  # where it is not passed on, it must not end the tests
            code = launch._run([sys.executable, "-c", NEVER], os.environ, told)
        assert code == -signal.SIGTERM
        assert not psutil.pid_exists(editor.pid)
    finally:
        if editor.pid and psutil.pid_exists(editor.pid):
            os.kill(editor.pid, signal.SIGKILL)


def test_a_signal_that_comes_before_the_command_runs_reaches_it() -> None:
    from devkit.debug.forwarding import Forwarding

    forwarding = Forwarding()
    with forwarding.installed():
        signal.raise_signal(signal.SIGTERM)
        forwarding.start([sys.executable, "-c", NEVER], os.environ)
        assert forwarding.wait() == -signal.SIGTERM


def test_an_exit_code_that_is_none_of_this_machines_is_told_as_it_is() -> None:
    assert [how_ended(code) for code in (3, -9, -40, -4000)] == [
        "ended with exit code 3", "was ended by SIGKILL", "was ended by signal 40", "was ended by signal 4000"
    ]  # fmt: skip
