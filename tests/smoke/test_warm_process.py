"""The process that builds the tiny model: what the smoke test says when it fails."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from devkit.errors import DeadlineError, DevkitError
from devkit.smoke import warm, warm_process
from devkit.smoke.last_words import LINES, last_words
from devkit.smoke.warm_process import WarmProcess
from tests.pace import stretched


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[WarmProcess]]:
    """Puts a program in the place of `devkit.smoke.warm`; ends what was started."""
    started: list[WarmProcess] = []
    yield started
    for process in started:
        process.close()


def start(program: str, folder: Path, started: list[WarmProcess], monkeypatch: pytest.MonkeyPatch) -> WarmProcess:
    popen = subprocess.Popen

    def other(command: list[str], **options: object) -> subprocess.Popen[bytes]:
        return popen([sys.executable, "-c", program, command[-1]], **options)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(warm_process.subprocess, "Popen", other)
    process = WarmProcess(folder / "warm.log")
    started.append(process)
    return process


ECHO = "import sys\nfor line in sys.stdin: sys.stdout.write(line); sys.stdout.flush()"


def test_an_answer(stand_in: list[WarmProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = start(ECHO, tmp_path, stand_in, monkeypatch)
    process.tell("build", texts=["é\n"])
    assert process.answer() == {"do": "build", "texts": ["é\n"]}


def test_it_dies_before_it_answers(
    stand_in: list[WarmProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start("import sys; sys.exit('no torch here')", tmp_path, stand_in, monkeypatch)
    with pytest.raises(DevkitError, match="failed: it has ended") as caught:
        process.answer()
    assert "no torch here" in caught.value.hint
    assert str(tmp_path / "warm.log") in caught.value.hint


def test_it_is_dead_when_it_is_told(
    stand_in: list[WarmProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start("", tmp_path, stand_in, monkeypatch)
    process._process.wait(stretched(10))
    with pytest.raises(DevkitError, match="it has ended"):
        process.tell("build")
    process.close()
    process.close()  # may be called twice


def test_it_is_killed_while_it_works(
    stand_in: list[WarmProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start("import signal; signal.pause()", tmp_path, stand_in, monkeypatch)
    process.tell("build")
    os.kill(process._process.pid, signal.SIGKILL)
    with pytest.raises(DevkitError, match="it has ended"):
        process.answer()


def test_no_answer_in_time(stand_in: list[WarmProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_process, "ANSWER_S", 0.2)
    monkeypatch.setattr(warm_process, "LEAVE_S", 0.1)
    process = start("import signal; signal.pause()", tmp_path, stand_in, monkeypatch)
    with pytest.raises(DeadlineError, match="did not answer within"):
        process.answer()


def test_close_ends_a_process_that_does_not_listen_and_removes_its_folder(
    stand_in: list[WarmProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start("import signal; signal.pause()", tmp_path, stand_in, monkeypatch)
    monkeypatch.setattr(warm_process, "LEAVE_S", 0.1)
    process.close()
    assert process._process.returncode == -signal.SIGKILL
    assert not Path(process.socket).parent.exists()


@pytest.mark.parametrize(
    "program", ["import signal; signal.pause()", "", ECHO], ids=["does not listen", "has ended", "leaves"]
)
def test_close_ends_whatever_ray_left(
    stand_in: list[WarmProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    """An agent that was started while its node was being ended is nobody's child."""
    process = start(program, tmp_path, stand_in, monkeypatch)
    monkeypatch.undo()
    command = [sys.executable, "-c", "import signal; print('here', flush=True); signal.pause()"]
    env = {**os.environ, "DEVKIT_WARM_SOCKET": process.socket}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, start_new_session=True) as agent:
        assert agent.stdout is not None and agent.stdout.readline() == b"here\n"
        try:
            process.close()
            assert agent.wait(stretched(10)) == -signal.SIGKILL
        finally:
            agent.kill()


REAPS = """
import os, socket, sys
from devkit.smoke import warm
program = f"import os, signal; os.kill(os.getpid(), signal.SIG{sys.argv[1]})" if sys.argv[1] else "raise SystemExit(3)"
child = os.posix_spawn(sys.executable, [sys.executable, "-c", program], os.environ)
here, there = socket.socketpair()
os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
warm._reap({child: here})
print(child, int.from_bytes(there.recv(8), "big"))
"""


@pytest.mark.parametrize(("number", "code"), [("SEGV", 139), ("KILL", 137), ("", 3)])
def test_its_log_says_which_signal_ended_a_worker(number: str, code: int) -> None:
    done = subprocess.run([sys.executable, "-c", REAPS, number], capture_output=True, text=True, check=True)
    child, told = done.stdout.split()
    assert int(told) == code
    assert done.stderr == (f"worker {child} was ended by SIG{number}\n" if number else "")


def test_what_workers_last_said_is_found(tmp_path: Path) -> None:
    logs = tmp_path / "session_2026-11-27_10-00-00_000000_1" / "logs"
    logs.mkdir(parents=True)
    (logs / "worker-aa-01000000-7.err").write_text("".join(f"line {number}\n" for number in range(LINES + 5)))
    (logs / "worker-bb-01000000-8.err").touch()
    (logs / "raylet.err").write_text("a raylet's")
    said = last_words(tmp_path).splitlines()
    assert said[:2] == ["--- worker-aa-01000000-7.err", "line 5"] and len(said) == LINES + 1
    assert last_words(tmp_path / "none") == ""


@pytest.mark.trainer
def test_orders_of_the_real_one(tmp_path: Path) -> None:
    """A bad order is an error and the next one is carried out."""
    process = WarmProcess(tmp_path / "warm.log")
    try:
        process.tell("dance")
        with pytest.raises(DevkitError, match="KeyError: 'dance'"):
            process.answer()
        process.tell("digests", folder=str(tmp_path / "nothing"))
        with pytest.raises(DevkitError, match="failed: "):
            process.answer()
        process.tell("build", folder=str(tmp_path / "m"), like=None, texts=["a b"], seed=0, max_positions=32)
        assert process.answer()["is_like"] is False
        process.tell("digests", folder=str(tmp_path / "m"))
        assert len(process.answer()["digests"]) > 10
    finally:
        process.close()
    assert process._process.returncode == 0


BROKEN = {
    "nothing": (b"", 0, b""),
    "no streams": ((5).to_bytes(8, "big"), 0, b"abcde"),
    "cut off": ((500).to_bytes(8, "big"), 3, b"abcde"),
    "no order": ((5).to_bytes(8, "big"), 3, b"abcde"),
    "no text": ((3).to_bytes(8, "big"), 3, b"\xff\1\1"),
}


@pytest.mark.parametrize(("header", "streams", "rest"), BROKEN.values(), ids=BROKEN)
def test_a_stand_in_that_is_killed_while_it_speaks_ends_nothing(
    tmp_path: Path, header: bytes, streams: int, rest: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    path, children = str(tmp_path / "socket"), dict[int, socket.socket]()
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as stand_in:
        listener.bind(path)
        listener.listen(1)
        stand_in.connect(path)
        if header:
            socket.send_fds(stand_in, [header], [0, 1, 2][:streams])
            stand_in.sendall(rest)
        stand_in.close()
        before = len(os.listdir("/proc/self/fd"))
        warm._fork_worker(listener, children)
        assert children == {} and len(os.listdir("/proc/self/fd")) == before
    assert "no worker was forked" in capfd.readouterr().err


def test_a_stand_in_that_is_killed_before_it_hears_of_its_worker_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm, "_become_worker", lambda *_: os._exit(0))
    path, children = str(tmp_path / "socket"), dict[int, socket.socket]()
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as stand_in:
        listener.bind(path)
        listener.listen(1)
        stand_in.connect(path)
        order = b"python\1A=1\1/"
        socket.send_fds(stand_in, [len(order).to_bytes(8, "big")], [0, 1, 2])
        stand_in.sendall(order)
        stand_in.close()
        warm._fork_worker(listener, children)
        [child] = children
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        warm._reap(children)
    assert children == {}
