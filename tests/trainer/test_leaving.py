"""Ends that somebody else asks for: the last word comes in time, whatever the run hangs in; a step can be finished."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import psutil
import pytest

from tests.ends import living
from tests.pace import stretched
from tests.trainer.runs import ROOT
from trainer import cluster
from trainer.leaving import WORD_S, Leaving, Word


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def interrupted(within: AbstractContextManager[None], *calls: Callable[[], object]) -> None:
    """The calls are made one after the other, and it comes to an interruption."""

    def all_of_them() -> None:
        with within:
            for call in calls:
                call()

    with pytest.raises(KeyboardInterrupt):
        all_of_them()


def term() -> None:
    signal.raise_signal(signal.SIGTERM)


def too_late() -> None:
    raise AssertionError("it went on")


def test_sigterm_is_an_interruption_at_once() -> None:
    leaving = Leaving()
    leaving.listen()
    interrupted(leaving.step(), term, too_late)


def test_a_step_is_finished_in_its_grace_period() -> None:
    leaving, notes, done = Leaving(60), list[str](), list[str]()
    leaving.note = notes.append
    leaving.listen()
    with leaving.step():
        done.append("before")
    interrupted(leaving.step(), term, lambda: done.append(f"after {leaving.asked}"))
    assert done == ["before", "after True"] and len(notes) == 1 and "within 60 s" in notes[0]
    assert not [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]


@pytest.mark.parametrize("again", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_does_not_wait(again: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.leaving.ONE_SIGNAL_S", 0.0)
    leaving = Leaving(60)
    leaving.listen()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupted(leaving.step(), term, lambda: signal.raise_signal(again), too_late)


def test_one_that_comes_by_two_ways_is_one() -> None:
    """`timeout devkit run -- ...` sends it to the group, and `devkit run` passes its own on."""
    leaving, done = Leaving(60), list[str]()
    leaving.listen()
    interrupted(leaving.step(), term, term, lambda: done.append("the rest of the step"))
    assert done == ["the rest of the step"]


def test_outside_of_a_step_there_is_nothing_to_finish() -> None:
    leaving = Leaving(60)
    leaving.listen()
    interrupted(nullcontext(), term, too_late)


def test_a_step_that_takes_longer_than_its_grace_period() -> None:
    leaving = Leaving(0.05)
    leaving.listen()
    interrupted(leaving.step(), term, lambda: threading.Event().wait(stretched(60)), too_late)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_disturbs_the_start_of_ray(number: signal.Signals) -> None:
    """Both signals wait for its end, though other threads would take them; and children take no Ctrl-C."""
    thread_ends, said = threading.Event(), list[bytes]()
    other = threading.Thread(target=thread_ends.wait)  # takes what this thread does not
    other.start()

    def child() -> None:
        ran = subprocess.run(["sh", "-c", "kill -INT $$; echo alive"], capture_output=True, check=False)
        said.append(ran.stdout)

    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        Leaving().listen()
        interrupted(cluster.undisturbed(), lambda: os.kill(os.getpid(), number), child)
    finally:
        thread_ends.set()
        other.join()
    assert said == [b"alive\n"]


@pytest.mark.parametrize("wanted", [True, False])
def test_a_group_of_its_own(wanted: bool) -> None:
    with cluster.in_groups_of_their_own(wanted=wanted):
        child = subprocess.Popen(["sleep", "60"])
    try:
        assert (os.getpgid(child.pid) == os.getpgrp()) is not wanted
    finally:
        child.kill()
        child.wait()
    after = subprocess.Popen(["sleep", "60"])
    assert os.getpgid(after.pid) == os.getpgrp()
    after.kill()
    after.wait()


# ---------------------------------------------------------------------------------------------------- the last word


def test_the_last_word_is_said_before_five_seconds_are_over() -> None:
    """As tests/trainer/test_bad_input.py waits for it: what kills a run a few seconds later finds it told."""
    assert WORD_S < 5


HANGS = """
import os, signal, subprocess, sys, time
from trainer import leaving
leaving.WORD_S, leaving.GONE_S = 0.2, 0.4
from trainer.leaving import Word

def hang(*_):
    while True:
        time.sleep(3600)

for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, hang)
with Word(lambda: "it goes on from step 7", grace_s=float(sys.argv[1])).watching():
    tree = "sleep 3600 & echo $!; exec sleep 3600"
    child = subprocess.Popen(["sh", "-c", tree], stdout=subprocess.PIPE, text=True, start_new_session=True)
    print(child.pid, child.stdout.readline(), flush=True)
    hang()
"""


@pytest.mark.parametrize("numbers", [(signal.SIGTERM,), (signal.SIGINT,), (signal.SIGTERM, signal.SIGINT)])
def test_the_last_word_of_a_run_that_hangs(numbers: tuple[signal.Signals, ...]) -> None:
    """As it does in a call to a Ray that is dead. A second signal ends a grace period."""
    grace = "3600" if len(numbers) == 2 else "0"
    command = [sys.executable, "-c", HANGS, grace]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True) as run:
        try:
            assert run.stdout is not None
            started = [psutil.Process(int(pid)) for pid in run.stdout.readline().split()]
            for number in numbers:
                run.send_signal(number)
            _, said = run.communicate(timeout=stretched(60))
            left = living(started, stretched(60))
        finally:
            run.kill()
    assert said == "error: interrupted\nhint: it goes on from step 7\n"
    assert run.returncode == 130
    assert left == [] and len(started) == 2


def test_the_last_word_waits_for_the_grace_period_though_the_signal_comes_by_two_ways(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trainer.leaving.WORD_S", 0.1)
    reader, writer = socket.socketpair()
    with reader, writer:
        writer.send(bytes((signal.SIGTERM, signal.SIGTERM)))
        word, came = Word(lambda: "", grace_s=3600.0), list[bool]()
        waits = threading.Thread(target=lambda: came.append(word._deadline_comes(reader)), daemon=True)
        waits.start()
        waits.join(0.5)  # one that does not wait would be over
        assert waits.is_alive() and word.signals == 1
        writer.send(bytes((signal.SIGINT,)))
        waits.join(stretched(60))
    assert came == [True]


LISTENS = """
import signal, sys
if sys.argv[1] == "ignored":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
from trainer.leaving import Leaving
Leaving().listen()
try:
    signal.raise_signal(signal.SIGHUP)
    print("goes on")
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize(("how", "said"), [("heard", "interrupted"), ("ignored", "goes on")])
def test_the_end_of_the_terminal(how: str, said: str) -> None:
    """Under `nohup` it is ignored."""
    command = [sys.executable, "-c", LISTENS, how]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=stretched(60), check=True)
    assert done.stdout == f"{said}\n"


ENDS = """
import signal, sys, threading
from trainer import leaving
from trainer.commands import report_error
from trainer.leaving import Leaving, Word
word = Word(lambda: "go on", grace_s=0.0)
Leaving().listen()
try:
    with word.watching():
        signal.raise_signal(signal.SIGTERM)
except KeyboardInterrupt:
    report_error(word.say())
for thread in threading.enumerate():
    if thread.name == "last-word":
        thread.join(60)
print("over", flush=True)
"""


def test_a_run_that_ends_in_time_says_it_once() -> None:
    command = [sys.executable, "-c", ENDS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=stretched(60), check=True)
    assert (done.stdout, done.stderr) == ("over\n", "error: interrupted\nhint: go on\n")
