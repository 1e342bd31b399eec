"""SIGTERM to `devkit run`: the program gets it once, has its own time to end, and how it ended is told."""

from __future__ import annotations

import ctypes
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from devkit import cli
from devkit.debug.forwarding import Forwarding
from tests.pace import stretched

# Ends as a Ray driver may, by abort(), when it has done what it has to do at SIGTERM: wait for a word from the test.
# A signal between "begun" and a read would be seen by Python only when there is something to read, and one during the
# print of "begun" finds stdout taken.
PROGRAM = """
import os, select, signal, sys
asked = []
came, comes = os.pipe()
os.set_blocking(comes, False)
signal.set_wakeup_fd(comes)
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: (asked.append(1), os.write(1, b"asked %d\\n" % len(asked))))
signal.signal(signal.SIGABRT, signal.SIG_DFL)
print("begun", flush=True)
while 0 not in select.select([0, came], [], [])[0]:
    os.read(came, 1)
sys.stdin.readline()
END
"""
Begin = Callable[..., subprocess.Popen[str]]
PR_SET_CHILD_SUBREAPER = 36


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """`begin(end, *options)`: `devkit run` of the program, which has begun; or of a `script`, in which it is {}."""
    begun: list[subprocess.Popen[str]] = []

    def run(end: str, *options: str, script: str = "") -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PROGRAM.replace("END", end)]
        if script:
            command = ["bash", "-c", script.format(shlex.join(command))]
        process = subprocess.Popen(
            [sys.executable, "-m", "devkit", "run", *options, "--", *command],
            env={**os.environ, "DEVKIT_HOME": str(tmp_path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        begun.append(process)
        assert process.stdout is not None and process.stdout.readline() == "begun\n"
        return process

    yield run
    for process in begun:
        process.kill()
        process.communicate()


def test_it_is_told_as_what_it_was_and_the_program_has_its_own_time(begin: Begin) -> None:
    process = begin("os.abort()")
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None and process.stdout.readline() == "asked 1\n"
    assert process.poll() is None
    _, said = process.communicate("go\n", timeout=stretched(60))
    assert process.returncode == 128 + signal.SIGTERM
    assert said.startswith("error: the command was ended by SIGTERM\nhint: ")


def test_who_ends_well_after_it_has_not_failed(begin: Begin) -> None:
    process = begin("sys.exit(0)")
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None and process.stdout.readline() == "asked 1\n"
    said = process.communicate("go\n", timeout=stretched(60))[1]
    assert "error" not in said and "started no Ray" in said  # as of any program without it that ends well
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("came", "passed_on"),
    [
        ([(0.0, signal.SIGTERM), (0.9, signal.SIGTERM)], 1),
        ([(0.0, signal.SIGTERM), (0.9, signal.SIGTERM), (1.1, signal.SIGTERM)], 2),
        ([(0.0, signal.SIGINT), (0.1, signal.SIGINT)], 2),
    ],
)
def test_one_that_comes_twice_at_once_is_one(
    came: list[tuple[float, signal.Signals]], passed_on: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`timeout` sends it to us and then to our process group: to who gives it a grace, a second one is an order."""
    got: list[signal.Signals] = []
    forwarding, clock = Forwarding(), [0.0]
    monkeypatch.setattr("devkit.debug.forwarding.time", SimpleNamespace(monotonic=lambda: clock[0]))
    child = SimpleNamespace(pid=os.getpid(), send_signal=got.append)
    for clock[0], number in came:
        forwarding._pass_on(child, number)  # type: ignore[arg-type]
    assert len(got) == passed_on


def test_a_second_one_is_not_passed_on(begin: Begin) -> None:
    process = begin("sys.exit(7)", "--json")
    for _ in range(2):
        process.send_signal(signal.SIGTERM)
    assert process.stdout is not None and process.stdout.readline() == "asked 1\n"
    out, _ = process.communicate("go\n", timeout=stretched(60))
    assert process.returncode == 128 + signal.SIGTERM
    document = json.loads(out)  # nothing else: it was asked once
    assert (document["returncode"], document["exit_code"]) == (-signal.SIGTERM, 143)


@pytest.mark.parametrize(
    ("number", "code", "after"), [(signal.SIGTERM, 143, ""), (signal.SIGINT, 0, "the next command\n")]
)
def test_what_a_script_runs_gets_it_too(begin: Begin, number: signal.Signals, code: int, after: str) -> None:
    """A shell passes nothing on: gone by SIGTERM, it would leave its trainer. At Ctrl-C it does as its program does."""
    process = begin("sys.exit(7)", script="{}\necho 'the next command'")
    process.send_signal(number)
    assert process.stdout is not None and process.stdout.readline() == "asked 1\n"
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)  # it has not left its program behind
    assert process.communicate("go\n", timeout=stretched(60))[0] == after
    assert process.returncode == code


@pytest.fixture
def no_init() -> Iterator[None]:
    """Orphans come to this process, which reaps none of them, as a program that is PID 1 of a container."""
    before = {each.pid for each in psutil.Process().children()}
    prctl = ctypes.CDLL(None).prctl
    assert prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    yield
    prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    for each in psutil.Process().children():
        if each.pid not in before and each.status() == psutil.STATUS_ZOMBIE:
            os.waitpid(each.pid, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for its orphans")
@pytest.mark.usefixtures("no_init")
def test_what_nobody_reaps_is_not_waited_for(begin: Begin) -> None:
    process = begin("sys.exit(7)", script="{}\necho 'the next command'")
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None and process.stdout.readline() == "asked 1\n"
    process.communicate("go\n", timeout=stretched(30))
    assert process.returncode == 128 + signal.SIGTERM


def test_what_a_script_runs_in_the_background_ends_at_an_interruption(begin: Begin) -> None:
    """It ignores SIGINT, as a shell has it; the shell does not, and would leave it behind."""
    process = begin("", script="exec 3<&0; sleep 3600 & {} <&3 & wait")
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None and process.stdout.readline() == "asked 1\n"
    _, said = process.communicate("go\n", timeout=stretched(60))
    assert process.returncode == 130 and said.count("error: ") <= 1


def test_who_was_ended_by_somebody_else_is_told_so(begin: Begin) -> None:
    process = begin("os.kill(os.getpid(), signal.SIGKILL)")
    _, said = process.communicate("go\n", timeout=stretched(60))
    assert process.returncode == 137 and said.startswith("error: the command was ended by SIGKILL\n")


def test_a_signal_without_a_name_is_told_by_its_number(begin: Begin) -> None:
    process = begin("os.kill(os.getpid(), 40)")
    _, said = process.communicate("go\n", timeout=stretched(60))
    assert process.returncode == 128 + 40 and said.startswith("error: the command was ended by signal 40\n")


@pytest.mark.parametrize("address", ["", "127.0.0.1:1"], ids=["no cluster", "one that does not answer"])
@pytest.mark.parametrize("code", [1, 2, 75, 143, 255])
def test_the_exit_code_is_the_commands_own(
    code: int, address: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a scheduler is told by one, to requeue a job for one, must come through."""
    monkeypatch.setenv("DEVKIT_HOME", str(tmp_path))
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert cli.main(["run", "--json", "--", sys.executable, "-c", f"raise SystemExit({code})"]) == code
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document["exit_code"] == code
    assert "devkit crashes" not in err


def test_it_is_told_where_the_cluster_does_not_answer_too(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    process = begin("sys.exit(7)")
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None and process.stdout.readline() == "asked 1\n"
    _, said = process.communicate("go\n", timeout=stretched(60))
    assert process.returncode == 128 + signal.SIGTERM and "\nerror: the command was ended by SIGTERM\n" in said
    assert said.startswith("devkit: no Ray answers at 127.0.0.1:1: "), "before it begins"


TWICE = """
import os, signal, sys
from devkit.debug.forwarding import Forwarding

class Again:
    def find_spec(self, name, path=None, target=None):
        if name == "psutil._common":  # while psutil is imported
            os.kill(os.getpid(), signal.SIGINT)

forwarding = Forwarding()
with forwarding.installed():
    forwarding.start([sys.executable, "-c", "import time; time.sleep(100)"], os.environ)
    sys.meta_path.insert(0, Again())
    os.kill(os.getpid(), signal.SIGINT)
    print(forwarding.wait())
"""


def test_a_second_ctrl_c_finds_nothing_half_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TWICE], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=stretched(60)
    )
    assert (done.stdout, done.returncode) == ("130\n", 0), done.stderr
