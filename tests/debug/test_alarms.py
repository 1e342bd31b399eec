"""The timer that a process has set itself, and what is said of a death that came of it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from devkit.debug.crash_page import crash_page
from devkit.debug.inworker import alarms, told
from devkit.debug.inworker.vanished import vanished
from devkit.debug.inworker.words import NO_WORD
from tests.debug.hub_fake import printed
from tests.debug.test_crashes_view import WHO

ALARM = {"due": 100.0, "file": "/job/a.py", "line": 22, "function": "limit", "call": "Reward.score"}
LOOK: dict[str, Any] = {"time": 99.0, "frames": [], "alarm": ALARM}
SAID = "by SIGALRM, as a timer of its own, set at /job/a.py:22 in limit, ran out, and nothing handles that signal"


SCORE = {"task_id": "ab" * 24, "name": "Reward.score", "attempt": 0}


def page_of(document: dict[str, Any]) -> str:
    return printed(crash_page(document, [], document["time"]))


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    for name in ("alarm", "setitimer"):
        monkeypatch.setattr(signal, name, getattr(signal, name))
    before = signal.getsignal(signal.SIGALRM)
    told: list[bool] = []
    alarms.watch(lambda: told.append(True))
    try:
        yield told
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_one_that_nothing_handles_is_told_at_once_and_not_again_and_again(timers: list[bool]) -> None:
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.alarm(1000)
    assert timers == []
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for _ in range(50):
        signal.alarm(1000)
        signal.alarm(0)
    assert timers == [True]


def test_a_timer_that_would_kill_is_pending_until_it_is_cancelled_or_handled(timers: list[bool]) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    assert alarms.pending() is None
    signal.alarm(1000)
    found = alarms.pending()
    assert found is not None and found["file"] == __file__ and found["function"].startswith("test_a_timer")
    signal.signal(signal.SIGALRM, lambda *_: None)
    assert alarms.pending() is None, "it is handled"
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    assert alarms.pending() == found
    assert found["call"]
    signal.alarm(0)
    assert alarms.pending() is None
    signal.setitimer(signal.ITIMER_REAL, 1000.0)
    assert alarms.pending() is not None
    signal.setitimer(signal.ITIMER_VIRTUAL, 1000.0)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    assert alarms.pending() is not None, "another one"


def test_a_death_without_a_word_when_it_ran_out_is_told_by_it() -> None:
    reason = f"the process died: {NO_WORD}"
    document = vanished(WHO, None, reason, seen=LOOK, died=100.4)
    assert document["exception"]["message"] == f"the process died: {SAID}"
    memory = {"own": 1 << 20, "used": 2 << 30, "total": 4 << 30}
    page = page_of(vanished(WHO, None, reason, task=SCORE, seen={**LOOK, "memory": memory}, died=100.4))
    assert "its last known call: score; that timer was set in a call of score" in page and "memory" not in page
    other_call = vanished(WHO, None, reason, task={**SCORE, "name": "Reward.ping"}, seen=LOOK, died=100.4)
    assert "its last known call: ping; whether that had begun is not known here" in page_of(other_call)
    page = page_of(vanished(WHO, None, reason, task=SCORE, seen={**LOOK, "memory": memory}, died=200.0))
    assert "memory when last reported: 1 MiB" in page, "nobody knows what ended it"
    for died in (97.0, 200.0):  # before it ran out, and long after
        assert vanished(WHO, None, reason, seen=LOOK, died=died)["exception"]["message"] == reason
    other = vanished(WHO, None, "exit code 3", seen=LOOK, died=100.4)
    assert other["exception"]["message"] == "exit code 3"


def test_what_an_agent_tells_of_it_is_looked_at() -> None:
    doing = {"type": "doing", **LOOK}
    assert told.problem(doing) is None
    assert told.problem({**doing, "alarm": {**LOOK["alarm"], "due": "soon"}}) is not None
    assert told.problem({**doing, "alarm": {"due": 1.0}}) is not None


CPU = {"time": 99.0, "frames": [], "cpu": {"used": 7.1, "limit": 8}}


def test_a_death_near_the_limit_of_cpu_time_is_told_by_it() -> None:
    reason = f"the process died: {NO_WORD}"
    said = "probably by the kernel, at the 8 s of CPU time that RLIMIT_CPU gives it: it had used 7.1 s 1.4 s before"
    assert vanished(WHO, None, reason, seen=CPU, died=100.4)["exception"]["message"] == f"the process died: {said}"
    far = {**CPU, "cpu": {"used": 7.1, "limit": 800}}
    assert vanished(WHO, None, reason, seen=far, died=100.4)["exception"]["message"] == reason
    assert told.problem({"type": "doing", **CPU}) is None
    assert told.problem({"type": "doing", **CPU, "cpu": {"used": "7", "limit": 8}}) is not None


def test_a_process_with_such_a_limit_tells_it_and_others_nothing() -> None:
    program = (
        "import resource\n"
        "from devkit.debug.inworker import cpu_limit\n"
        "before = cpu_limit.pending()\n"
        "resource.setrlimit(resource.RLIMIT_CPU, (60, 90))\n"
        "print(before, cpu_limit.pending()['limit'], cpu_limit.pending()['used'] < 60)\n"
        "import signal\n"
        "signal.signal(signal.SIGXCPU, print)\n"
        "print(cpu_limit.pending()['limit'])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["None", "60", "True", "90"], done
