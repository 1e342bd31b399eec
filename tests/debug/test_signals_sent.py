"""Who has sent a deadly signal to whom."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from devkit.debug.inworker import signals
from devkit.debug.inworker.words import NO_WORD

GUARD = {"role": "Guard", "pid": 7, "node_ip": "10.0.0.1"}
NOTE = {"pid": 9, "signal": "SIGKILL", "file": "/job/a.py", "line": 3, "function": "Guard.check"}


@pytest.fixture
def news(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[None]]:
    monkeypatch.setattr(os, "kill", os.kill)  # and back
    found: list[None] = []
    signals.watch(lambda: found.append(None))
    yield found
    signals._noted.clear()
    signals._halted.clear()


def test_a_signal_that_the_program_sends_is_noted_with_its_line_and_arrives(news: list[None]) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        child.kill()  # a library's call counts as the line that asked for it
    assert child.returncode == -signal.SIGKILL and len(news) == 1
    [note] = signals.noted()
    assert (note["pid"], note["signal"], note["file"]) == (child.pid, "SIGKILL", __file__)


def test_a_process_that_was_stopped_is_noted_until_it_is_resumed(news: list[None]) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        child.send_signal(signal.SIGSTOP)
        [halt] = signals.halts()
        assert (halt["pid"], halt["signal"], halt["file"]) == (child.pid, "SIGSTOP", __file__)
        child.send_signal(signal.SIGCONT)
        assert not signals.halts() and not signals.noted() and not news
        child.kill()


@pytest.mark.parametrize("number", [0, signal.SIGWINCH])
def test_what_kills_nobody_is_not_noted(news: list[None], number: int) -> None:
    os.kill(os.getppid(), number)
    assert not news and not signals.noted()


@pytest.mark.parametrize("wrong", [("x", 9), (1.5, 9)])
def test_wrong_arguments_are_the_kernels_to_refuse(news: list[None], wrong: Any) -> None:
    with pytest.raises(TypeError):
        os.kill(*wrong)


def test_the_sender_is_one_of_the_same_node() -> None:
    victim = {"role": "Rank", "pid": 9, "node_ip": "10.0.0.1"}
    seen = [(GUARD, {"signals": [{**NOTE, "pid": 8}, NOTE]})]
    assert signals.sender(victim, seen) == (GUARD, NOTE)
    assert signals.sender({**victim, "node_ip": "10.0.0.2"}, seen) is None
    assert signals.sender({**victim, "pid": 10}, seen) is None


def test_a_signal_that_was_outlived_is_not_why_a_process_ended() -> None:
    """As a SIGTERM that asks for a checkpoint, long before the kernel kills it for memory."""
    note = {**NOTE, "signal": "SIGTERM", "time": 100.0}
    said = "sent it SIGTERM at /job/a.py:3 in Guard.check"
    assert signals.sentence(NO_WORD, GUARD, note, 101.0).startswith("by SIGTERM, which Guard pid 7 sent")
    assert signals.sentence(NO_WORD, GUARD, note, 700.0) == f"{NO_WORD}; 600.0 s before, Guard pid 7 {said}"
