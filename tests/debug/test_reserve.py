"""A process that has no file descriptor left still leaves its crash, which says what is open."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from devkit.debug.crash_page import clues_of
from devkit.debug.inworker import open_objects, reserve
from devkit.debug.inworker.lineage import places_of

# @leak is the program's own `open`, which is told that there are no more; nothing that a snapshot needs is loaded yet.
PROGRAM = """
import resource, socket, sys
from pathlib import Path
from types import SimpleNamespace
from devkit.debug.inworker import crashes, hooks, reserve
from devkit.debug.inworker.settings import Settings

hooks.crash_folder = lambda: Path(sys.argv[1], "crashes")
reserve.hold()
keeper = crashes.Crashes(SimpleNamespace(settings=Settings(), connection=None, wake=lambda: None))
keeper.joined.set()
resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
clients = [socket.socketpair() for _ in range(10)]
files = []
try:
    while True:
        files.append(open(__file__))  # @leak
except OSError as error:
    keeper.happened(error, "task")
    keeper.happened(ValueError("the next one"), "task")
print(len(files))
"""


def test_a_crash_for_want_of_descriptors_is_kept_with_what_is_open(tmp_path: Path) -> None:
    program = tmp_path / "leaks.py"
    program.write_text(PROGRAM)
    done = subprocess.run([sys.executable, program, tmp_path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    found = [json.loads(path.read_text()) for path in (tmp_path / "crashes").iterdir()]
    first = next(each for each in found if each["exception"]["type"] == "OSError")
    assert len(found) == 2, "the reserve is there again for the next one"
    other = next(each for each in found if each is not first)
    assert other["descriptors"]["open"] >= 60, "its want may have been swallowed before"
    assert first["frames"][0]["source"]["lines"][-1 - 4].endswith("# @leak")
    opened = first["descriptors"]
    assert opened["open"] == 64 == sum(opened["kinds"].values())
    assert opened["limit"] == 64 and opened["kinds"]["Unix socket"] == 20
    assert opened["often"] == {str(program): int(done.stdout)}
    lines = list(clues_of(first))
    assert lines[0].startswith("open: ") and " of 64 file descriptors: " in lines[0] and "20 Unix sockets" in lines[0]
    assert lines[1:3] == [f"{done.stdout.strip()} open at files[...]", "20 open at clients[...][...]"]
    assert lines[3] == f"open {done.stdout.strip()} times: {program}"


def test_a_number_that_the_program_has_taken_over_is_left_alone(tmp_path: Path) -> None:
    program = (
        "import os\n"
        "from devkit.debug.inworker import reserve\n"
        "reserve.hold()\n"
        "os.closerange(3, 100)\n"  # as a program does that makes a daemon of itself
        "mine = [os.open('/dev/null', os.O_RDONLY) for _ in range(20)]\n"
        "with reserve.lent() as free:\n"
        "    assert free == 0\n"
        "    assert all(os.fstat(each) for each in mine)\n"
        "with reserve.lent() as free:\n"
        "    assert free == reserve.KEPT\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_many_files_of_one_folder_are_told_by_that(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        for number in range(reserve.MANY):
            stack.enter_context((tmp_path / f"answer-{number}").open("w"))
        assert reserve.what_is_open()["folders"] == {str(tmp_path): reserve.MANY}


def test_what_a_process_has_open_stays_open() -> None:
    before = set(os.listdir("/proc/self/fd"))
    assert reserve.what_is_open()["open"] > 0
    assert set(os.listdir("/proc/self/fd")) == before


def test_where_what_is_open_is_kept_is_told() -> None:
    """Given sessions whose `close` closes nothing, a loop over others, and one socket that is closed."""

    class Session:
        def __init__(self) -> None:
            self.agent, self.tool = socket.socketpair()
            self.closed = False

    class Service:
        def __init__(self) -> None:
            self.sessions = {at: Session() for at in range(4)}
            self.me, self.log = self, Path(__file__).open()  # noqa: SIM115

    def fails(self: Service) -> None:
        raise OSError(24, "Too many open files")

    service = Service()
    for each in service.sessions.values():
        each.closed = True
    service.sessions[0].tool.close()
    with pytest.raises(OSError, match="Too many") as caught:
        fails(service)
    frames = [frame for frame, _ in places_of(caught.value.__traceback__)][:1]
    assert open_objects.said(frames) == [
        "4 open at self.sessions[...].agent, each of an object that has closed = True",
        "3 open at self.sessions[...].tool, each of an object that has closed = True",
    ]
    service.sessions[1].closed = False
    assert "3 of them of objects that have closed = True" in open_objects.said(frames)[0]
    service.log.close()
    for one in service.sessions.values():
        one.agent.close()
        one.tool.close()
    assert open_objects.said(frames) == []
