"""Children that a process has forked, as a look for a hang sees them: real processes, no Ray and no hub."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from tests.debug.conftest import eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere children are not asked")

Document = dict[str, Any]
# A process that prepares as a worker does, forks a child that runs what it is told, and prints what `look` finds.
PROGRAM = """
import json, os, signal, subprocess, sys, threading, time, warnings
warnings.simplefilter("error")
from devkit.debug.inworker import boot, children, forked, offering
from devkit.debug.inworker.agent import Agent
from devkit.debug.inworker.settings import Settings

guard, ready = threading.Lock(), threading.Event()
inner, outer = os.pipe()

def keeper():
    with guard:  # @keeper
        ready.set()
        time.sleep(600)

def child(how):
    if how == "lock":
        with guard:  # @lock
            pass
    elif how == "reads":
        os.read(inner, 1)  # @reads
    elif how == "sleeps":
        time.sleep(600)
    elif how == "spins":
        while True:
            pass
    elif how == "execs":
        os.execvp("sleep", ["sleep", "600"])
    elif how == "logs in":
        os.execvp("sh", ["sh", "-c", "sleep 600; true", "login", "--password", "correct-horse-7"])
    elif how == "ignores":
        signal.signal(forked.number, signal.SIG_DFL)
        time.sleep(600)
    elif how == "closes":
        os.closerange(3, 100)
        time.sleep(600)
    elif how == "forks":
        if os.fork() == 0:
            time.sleep(600)
        time.sleep(600)

boot._prepare_forks(Agent(Settings(), lambda: None))
if "--offer" in sys.argv:
    sys.executable = "/nowhere/python"  # where no py-spy is beside it
    offering.offer(at_a_signal=True)
threading.Thread(target=keeper, name="keeper", daemon=True).start()
ready.wait()
born = os.fork()  # @fork
if born == 0:
    child(sys.argv[1])
    os._exit(0)
print(born, flush=True)
for _ in sys.stdin:
    print(json.dumps(children.look()), flush=True)
os.kill(born, signal.SIGKILL)
print(os.waitstatus_to_exitcode(os.waitpid(born, 0)[1]), flush=True)
"""
LINES = {
    line.partition("# @")[2].strip(): number for number, line in enumerate(PROGRAM.splitlines(), 1) if "# @" in line
}


class Family:
    """A process, its child, and those of that."""

    def __init__(self, how: str, *options: str, path: str | None = None) -> None:
        pipe = subprocess.PIPE
        environ = {**os.environ, "PYTHONPATH": os.getcwd()} | ({} if path is None else {"PATH": path})
        command = [sys.executable, "-c", PROGRAM, how, *options]
        self.process = subprocess.Popen(command, env=environ, stdin=pipe, stdout=pipe, start_new_session=True)
        self.child = int(self._line())

    def _line(self) -> bytes:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def look(self) -> list[Document]:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        found: list[Document] = json.loads(self._line())
        return found

    def seen(self, until: Callable[[list[Document]], bool]) -> list[Document]:
        """Looks again, as a young child is not asked."""
        for _ in range(40):
            if until(found := self.look()):
                return found
            time.sleep(0.1)
        raise AssertionError(found)

    def end(self) -> int:
        """How the child ends that is killed now: with something else if it had ended before."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.stdin = None
        return int(self._line())

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, 9)  # a child that a failed test has left
        with suppress(BrokenPipeError):
            self.process.communicate()


@pytest.fixture
def start() -> Iterator[Callable[..., Family]]:
    with ExitStack() as stack:

        def begin(how: str, *options: str, path: str | None = None) -> Family:
            family = Family(how, *options, path=path)
            stack.callback(family.close)
            return family

        yield begin


def answered(found: list[Document]) -> bool:
    """From inside; a young one is only looked at."""
    return bool(found) and all("locks" in each["facts"] for each in found)


def has_stack(found: list[Document]) -> bool:
    return len(found) == 1 and bool(found[0]["facts"]["threads"])


def place(one: Document) -> tuple[str, int]:
    [main] = [each for each in one["facts"]["threads"] if each["name"] == "MainThread"]
    return main["frames"][0]["function"], main["frames"][0]["line"]


def test_a_child_tells_the_lock_that_was_held_when_it_was_forked(start: Callable[..., Family]) -> None:
    family = start("lock")
    for _ in range(2):  # it can be asked again
        [one] = family.seen(answered)
        assert (one["pid"], one["command"], place(one)) == (family.child, "", ("child", LINES["lock"]))
        assert one["facts"]["forked"]["at"]["line"] == LINES["fork"]
        [lock] = one["facts"]["locks"]
        assert lock["holder"] is None and lock["at"]["line"] == LINES["lock"]
        assert (lock["then"]["thread"], lock["then"]["at"]["line"]) == ("keeper", LINES["keeper"])
        [main] = one["facts"]["threads"]
        assert main["state"] == "S" and main["wait"]["call"] == "futex", "nothing of ours stays behind"
    eventually(lambda: len(os.listdir(f"/proc/{family.child}/task")) == 1, "the end of our thread", 20)
    assert family.end() == -9


@pytest.mark.parametrize("how", ["sleeps", "spins"])
def test_a_child_that_is_asked_goes_on(how: str, start: Callable[..., Family]) -> None:
    family = start(how)
    [one] = family.seen(answered)
    assert place(one)[0] == "child"
    assert family.end() == -9


@pytest.mark.parametrize("offers", [False, True], ids=["py-spy", "dump"])
def test_a_read_is_not_cut_short(offers: bool, start: Callable[..., Family]) -> None:
    """Where there is no py-spy by Python's own dump, after which the call goes on."""
    family = start("reads", *(["--offer"] if offers else []), path="/nowhere" if offers else None)
    for _ in range(2):
        [one] = family.seen(lambda found: has_stack(found) and "wait" in found[0]["facts"]["threads"][0])
        assert place(one) == ("child", LINES["reads"])
        [main] = one["facts"]["threads"]  # just after py-spy's look, the kernel may call it running
        assert main["wait"]["call"] == "read" and main["wait"]["target"].startswith("a pipe")
    assert family.end() == -9


def _sleeps(facts: Document) -> bool:
    return "wait" in facts["main"] and facts["process"]["state"] == "S"


def test_another_program_is_sent_nothing_and_told_with_its_command(start: Callable[..., Family]) -> None:
    family = start("execs")
    # The kernel may call it running for a moment when it sleeps already.
    [one] = family.seen(lambda found: bool(found and found[0]["command"] and _sleeps(found[0]["facts"])))
    assert one["command"] == "sleep 600" and one["facts"]["threads"] == [] and one["facts"]["forked"] is None
    assert one["facts"]["main"]["wait"]["call"] == "clock_nanosleep" and one["facts"]["process"]["state"] == "S"
    assert family.end() == -9


def test_the_command_of_another_program_is_told_without_its_secrets(start: Callable[..., Family]) -> None:
    family = start("logs in")
    one, *_ = family.seen(lambda found: bool(found and found[0]["command"].startswith("sh ")))
    assert one["command"] == "sh -c sleep 600; true login --password <redacted>"
    family.end()


@pytest.mark.parametrize("how", ["ignores", "closes"])
def test_a_child_that_has_given_up_the_handler_or_the_file_is_sent_nothing(
    how: str, start: Callable[..., Family]
) -> None:
    family = start(how)
    for _ in range(3):
        [one] = family.look()
        assert one["pid"] == family.child
    assert family.end() == -9


def test_a_grandchild_answers_too(start: Callable[..., Family]) -> None:
    family = start("forks")
    found = family.seen(lambda found: len(found) == 2 and answered(found))
    assert {each["facts"]["forked"]["at"]["function"] for each in found} == {"<module>", "child"}
    assert family.end() == -9


def test_a_child_of_whom_nobody_asks_has_nothing_of_ours(start: Callable[..., Family]) -> None:
    family = start("sleeps")
    eventually(lambda: len(os.listdir(f"/proc/{family.child}/task")) == 1, "the end of our thread", 20)
    assert family.end() == -9
