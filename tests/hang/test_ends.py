"""Who is at the other end of the pipe or the connection that a process waits on."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import Any

import pytest

from devkit.debug.inworker import connected
from tests.hang.jobs import Document, driver, facts, idle, process, verdict


def waits(number: int, call: str, target: str, line: int, **connections: Any) -> Document:
    """A process that waits in a call; `pipe` is the one that it waits on."""
    pipe = connections.pop("pipe", None)
    known = facts(None, line, "run", call_in=call, target=target, connected=connections)
    if pipe:
        known["threads"][0]["wait"]["pipes"] = [pipe]
    found = process(known, number)
    found["identity"]["rank"] = None
    return found


def rests(number: int, **connections: Any) -> Document:
    found = idle(number, 1)
    found["facts"] |= {"groups": [], "rank": None, "connected": connections}
    found["identity"]["rank"] = None
    return found


CLIENT = {"call": "recvfrom", "target": "TCP 127.0.0.1:5 to 127.0.0.1:80", "line": 11}


def test_a_server_that_waits_to_write_to_a_pipe_which_nobody_reads() -> None:
    server = waits(2, "write", "a pipe", 22, pipe="70", pipes={"70": "w"}, sockets=["127.0.0.1:80"])
    found = verdict([driver(), waits(1, **CLIENT), server, rests(3, pipes={"70": "r"})], patience=1.0)
    assert found.kind == "io" and found.culprit is not None and found.culprit.line == 22
    assert (
        "Worker pid 1001 waits for data from TCP 127.0.0.1:5 to 127.0.0.1:80 at /job/train.py:11 in run; "
        "127.0.0.1:80 is Worker pid 1002's, which waits to write to a pipe at /job/train.py:22 in run; "
        "its other end is Worker pid 1003's, which is idle"
    ) in found.sentence, found.sentence


def test_two_that_wait_for_each_other() -> None:
    other = waits(2, "recvfrom", "TCP 127.0.0.1:80 to 127.0.0.1:5", 22)
    found = verdict([driver(), waits(1, **CLIENT), other], patience=1.0)
    assert found.kind == "deadlock" and found.culprit is not None and found.culprit.line == 11
    assert "in run; 127.0.0.1:80 is Worker pid 1002's, which waits for data from TCP" in found.sentence
    assert "at /job/train.py:22 in run: they wait for each other" in found.sentence, found.sentence


@pytest.mark.parametrize(
    "others",
    [
        [rests(2, pipes={"71": "w"})],
        [rests(2, pipes={"70": "r"})],
        [rests(2, pipes={"70": "w"}), rests(3, pipes={"70": "w"})],
        [rests(20, pipes={"70": "w"})],  # on another node
    ],
    ids=["another pipe", "the same end", "one of two", "another node"],
)
def test_nobody_is_named_who_is_not_known_to_be_there(others: list[Document]) -> None:
    reader = waits(1, "read", "a pipe", 11, pipe="70", pipes={"70": "r"})
    assert "other end" not in verdict([driver(), reader, *others], patience=1.0).sentence


def test_what_a_process_is_connected_by() -> None:
    reader, writer = os.pipe()
    inode = str(os.fstat(reader).st_ino)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=reader, pass_fds=[server.fileno()]) as child,
    ):
        os.close(reader)
        address = "{}:{}".format(*server.getsockname())
        ours, theirs = connected.of_process(), connected.of_process(child.pid)
        assert (ours["pipes"][inode], theirs["pipes"][inode]) == ("w", "r")
        assert address in ours["sockets"] and address in theirs["sockets"]
        os.write(writer, b"\n")
        os.close(writer)
    assert connected.of_process(2**30) == {"pipes": {}, "sockets": [], "locks": []}


def beside(line: int, cpu: float, call: str = "read", **changes: Any) -> Document:
    """A process whose main thread waits while a thread of the program's own computes."""
    known = facts(None, line, "run", call_in=call, target="a pipe" if call == "read" else "", **changes)
    stack = [{"file": "/job/train.py", "line": 40, "function": "flush"}]
    starter = {"file": "/usr/lib/python3.11/threading.py", "line": 1002, "function": "Thread._bootstrap"}
    known["threads"].append(
        {"name": "metrics", "frames": [*stack, starter], "stopped": False, "state": "R", "cpu": cpu, "wait": None}
    )
    known["process"] = {"state": "S", "cpu": cpu, "children_cpu": 0.0, "io": int(cpu * 1e9)}
    found = process(known, 1)
    found["identity"]["rank"] = None
    return found


def test_a_thread_that_computes_beside_the_one_that_waits_for_another_process_is_no_progress() -> None:
    found = verdict([driver(), beside(11, 1.0)], [driver(), beside(11, 20.0)], seconds=20.0)
    assert found.kind == "io" and "Worker pid 1001 waits for data from a pipe" in found.sentence, found.sentence
    assert any(line.endswith("in run; its thread metrics is working") for line in found.evidence), found.evidence
    waits_for_it = verdict([driver(), beside(11, 1.0, "futex")], [driver(), beside(11, 20.0, "futex")], seconds=20.0)
    assert waits_for_it.kind == "moves", "it may be that thread that it waits for"
