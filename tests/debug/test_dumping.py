"""Stacks of processes that do not answer, where there is no py-spy: real agents in processes, and a hub without Ray."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devkit.debug.inworker import dumping, hub_looks
from tests.debug.conftest import eventually
from tests.debug.hubs import FakeAgent, RunningHub, identity, running_hub
from tests.pace import stretched

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody is asked by a signal")

Document = dict[str, Any]
# A process with an agent. It reads a line, then a byte: inside C, with Python's lock, if the line says so.
PROGRAM = """
import ctypes, sys
from devkit.debug.inworker.agent import launch
from devkit.debug.inworker.settings import Settings

def reads():
    return ctypes.PyDLL(None).read(0, ctypes.create_string_buffer(1), 1)

def step(line):
    return reads() if line == b"hold\\n" else len(sys.stdin.buffer.raw.read(1))

sys.executable = "/nowhere/python"  # where no py-spy is beside it
launch(Settings(), lambda: {"host": "127.0.0.1", "port": int(sys.argv[1]), "hub_id": "hub 1"})
line = b""
while not line.endswith(b"\\n"):
    line += sys.stdin.buffer.raw.read(1)
print("reading", flush=True)
print("went on with", step(line), flush=True)
"""
LINES = {
    name: number
    for number, line in enumerate(PROGRAM.splitlines(), 1)
    for name in ("PyDLL", "return reads", "step(line), flush")
    if name in line
}


class Process:
    """One with an agent that has joined the hub."""

    def __init__(self, hub: RunningHub, folder: Path, rank: int, role: str = "Worker") -> None:
        card = folder / f"{role}{rank}"
        card.write_text(json.dumps({"job_id": "01", "node_id": "node1", "role": role, "rank": rank}))
        environ = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "the token", "DEVKIT_PARENT": str(card)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(hub.port)],
            env={**environ, "PATH": "", "PYTHONPATH": os.getcwd()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        eventually(lambda: f"pid-{self.process.pid}" in hub.hub.agents, "joining the hub")

    def say(self, text: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text)
        self.process.stdin.flush()

    def hears(self) -> bytes:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[RunningHub]:
    with running_hub(tmp_path) as hub:
        yield hub


@pytest.fixture
def start(hub: RunningHub, tmp_path: Path) -> Iterator[Callable[..., Process]]:
    with ExitStack() as stack:

        def begin(rank: int, role: str = "Worker") -> Process:
            process = Process(hub, tmp_path, rank, role)
            stack.callback(process.close)
            return process

        yield begin


def stack_of(hub: RunningHub, process: Process) -> Document:
    with hub.client() as client:
        ranks = client.call("stacks", timeout=stretched(15.0))["ranks"]
    return next(each for each in ranks if each["pid"] == process.process.pid)


def places(found: Document) -> list[tuple[str, int]]:
    assert found["error"] is None, found["error"]
    [main] = [thread for thread in found["threads"] if thread["name"] == "MainThread"]
    return [(frame["function"], frame["line"]) for frame in main["frames"]]


def test_who_waits_in_c_without_the_lock_answers_itself(hub: RunningHub, start: Callable[..., Process]) -> None:
    process = start(0)
    process.say(b"wait\n")
    assert process.hears() == b"reading\n"
    assert places(stack_of(hub, process)) == [("step", LINES["return reads"]), ("<module>", LINES["step(line), flush"])]


def test_who_holds_the_lock_in_c_is_seen_by_a_neighbour_and_goes_on(
    hub: RunningHub, start: Callable[..., Process]
) -> None:
    holder, _neighbour = start(0), start(1)
    holder.say(b"hold\n")
    assert holder.hears() == b"reading\n"
    for _ in range(2):  # the second dump is not put behind the first
        found = stack_of(hub, holder)
        assert places(found) == [
            ("reads", LINES["PyDLL"]), ("step", LINES["return reads"]), ("<module>", LINES["step(line), flush"])
        ]  # fmt: skip
        assert len(found["threads"]) == 1, "our own threads are not shown"
    holder.say(b".")
    assert holder.hears() == b"went on with 1\n", "the call of the system was not cut short"


def test_a_driver_is_sent_no_signal_and_told_to_hold_the_lock(
    hub: RunningHub, start: Callable[..., Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_looks, "LATE_SECONDS", 0.1)  # it won't answer itself
    driver, _neighbour = start(0, "driver"), start(1)
    driver.say(b"hold\n")
    assert driver.hears() == b"reading\n"
    held = "a C call holds its Python lock (the GIL); install py-spy to see it"
    # On a busy machine a thread that waits for the lock is not given a core as often as is looked for.
    eventually(lambda: stack_of(hub, driver)["error"] == held)
    driver.say(b".")
    assert driver.hears() == b"went on with 1\n"


def test_a_process_that_is_stopped_is_sent_nothing(
    hub: RunningHub, start: Callable[..., Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_looks, "LATE_SECONDS", 0.1)
    frozen, _neighbour = start(0), start(1)
    frozen.process.send_signal(signal.SIGSTOP)
    assert "not waiting for a Python lock" in stack_of(hub, frozen)["error"]
    frozen.process.send_signal(signal.SIGCONT)
    frozen.say(b"wait\n.")
    assert frozen.hears() + frozen.hears() == b"reading\nwent on with 1\n"


def test_an_answer_that_is_late_counts_where_nobody_else_can_look(hub: RunningHub) -> None:
    threads = [{"name": "MainThread", "frames": [], "stopped": False}]
    asked = threading.Event()

    def late(_request: Document) -> Document:
        assert asked.wait(stretched(20))
        return {"threads": threads}

    def blind(_request: Document) -> Document:
        asked.set()  # a neighbour is asked once the process is late
        return {"error": "py-spy is not installed"}

    FakeAgent(hub, identity("w1"), {"stacks": late})
    FakeAgent(hub, identity("w2", rank=1), {"stacks": {"threads": []}, "spy": blind})
    with hub.client() as client:
        ranks = client.call("stacks", timeout=stretched(15.0))["ranks"]
    assert [rank["threads"] for rank in ranks if rank["rank"] == 0] == [threads]


# ---- the signal

OFFERS = "from devkit.debug.inworker import offering as o, dumping as d; import os, signal, sys, threading\n"


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", OFFERS + code], capture_output=True, text=True, timeout=stretched(60))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_signal_that_the_program_has_a_use_for_is_left_to_it() -> None:
    said = python(
        "heard = []\n"
        "signal.signal(55, lambda *_: heard.append(55)); signal.signal(54, signal.SIG_IGN)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [53])\n"
        "o.offer(True); print(d.find(os.getpid()).signal)\n"
        "signal.raise_signal(55); print(heard)"
    )
    assert said == "52\n[55]\n"


def test_a_signal_that_the_program_takes_later_is_sent_no_more() -> None:
    said = python(
        "o.offer(True); number = d.find(os.getpid()).signal; o.look_again(); print(d.find(os.getpid()) is not None)\n"
        "heard = []; signal.signal(number, lambda *_: heard.append(1)); o.look_again()\n"
        "print(d.find(os.getpid())); signal.raise_signal(number); print(heard)"
    )
    assert said == "True\nNone\n[1]\n"


def test_a_child_does_not_offer_what_its_parent_offers_until_it_does_so_itself() -> None:
    said = python(
        "o.offer(True); parent = d.find(os.getpid())\n"
        "if os.fork() == 0:\n"
        "    print(d.find(os.getpid()), flush=True); o.offer(True); found = d.find(os.getpid())\n"
        "    print(found.signal == parent.signal, found.thread != parent.thread, flush=True); os._exit(0)\n"
        "os.wait(); print(d.find(os.getpid()) == parent)"
    )
    assert said == "None\nTrue True\nTrue\n"


def test_a_file_of_the_programs_under_our_number_is_not_closed() -> None:
    said = python("o.offer(True); os.dup2(1, o._file); o.withdraw(); os.write(1, b'open')")
    assert said == "open"


def test_a_process_that_offers_nothing_is_told_so() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        with pytest.raises(dumping.NoDumpError, match="does not answer"):
            dumping.ask(process.pid)
        process.communicate(b"\n")
    with pytest.raises(dumping.NoDumpError, match="can't be reached"):
        dumping.ask(process.pid)


# Makes a file, and answers the signal by what stands in it of a dump; then it waits, or is gone.
ANSWERS = """
import os, signal, sys
def answer(*_):
    os.write(file, b'Thread 0x01 (most recent call first):\\n  File "job.py", line 1 in step\\n')
    if sys.argv[2] == "gone":
        os._exit(0)
file = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY | os.O_APPEND)
signal.signal(signal.SIGUSR1, answer)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def answering(tmp_path: Path) -> Iterator[Callable[[str], tuple[int, dumping.Offer]]]:
    with ExitStack() as stack:

        def begin(then: str) -> tuple[int, dumping.Offer]:
            path = tmp_path / "dump"
            process = subprocess.Popen(
                [sys.executable, "-c", ANSWERS, str(path), then], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            stack.callback(process.communicate)
            stack.callback(process.kill)
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            handle = os.pidfd_open(process.pid)
            stack.callback(os.close, handle)
            return handle, dumping.Offer(signal.SIGUSR1, 0, path)

        yield begin


def test_a_dump_that_another_asker_reads_is_left_to_it(
    answering: Callable[[str], tuple[int, dumping.Offer]], monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    monkeypatch.setattr(dumping, "ASK_SECONDS", 0.1)
    process, offered = answering("waits")
    offered.path.write_text("the other's dump")
    with offered.path.open("r+b") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(dumping.NoDumpError, match="another tool is inspecting it right now"):
            dumping._dump(process, offered)
    assert offered.path.read_text() == "the other's dump"


@pytest.mark.parametrize("then", ["gone", "late"])
def test_half_a_dump_is_none(
    then: str, answering: Callable[[str], tuple[int, dumping.Offer]], monkeypatch: pytest.MonkeyPatch
) -> None:
    if then == "late":  # the time is over at the first look
        monkeypatch.setattr(dumping, "ASK_SECONDS", 0.5)
        monkeypatch.setattr(dumping, "LOOK_SECONDS", 0.5)
    with pytest.raises(dumping.NoDumpError, match="no dump came"):
        dumping._read(dumping._dump(*answering(then)))


frame_lines = st.builds('  File "{}", line {} in {}'.format, st.text(), st.integers() | st.just("???"), st.text())
heads = st.sampled_from(["Thread 0x01 (most recent call first):", "Current thread 0x02 (most recent call first):"])


@given(st.lists(frame_lines | heads | st.text()).map("\n".join))
def test_whatever_stands_in_a_dump_it_is_read_or_refused(text: str) -> None:
    with suppress(dumping.NoDumpError):
        assert dumping._read(text) is not None
