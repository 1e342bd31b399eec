"""Who is at the other end of the pipe or the connection that a process waits on."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from devkit.debug.inworker import connected, far_ends
from devkit.hang.answers import read_sample
from devkit.hang.diagnose import diagnose
from devkit.hang.gather import Diagnosis
from devkit.hang.view import page
from tests.debug.conftest import eventually
from tests.hang.jobs import NOW, TRAIN, Document, answer, driver, facts, frames, idle, process, verdict


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


def test_a_pipe_whose_other_end_several_have_is_said_to_be_of_others_too() -> None:
    """A forked child has what its parent had open; it is not known which of them was to write."""
    reads = waits(1, "read", "a pipe", 22, pipe="70", pipes={"70": "r"})
    both = [rests(3, pipes={"70": "w"}), waits(2, "futex", "", 30, pipes={"70": "w"})]
    found = verdict([driver(), reads, *both], patience=1.0)
    assert "; its other end is Worker pid 1002's (and that of others), which waits for" in found.sentence, (
        found.sentence
    )
    found = verdict([driver(), reads, both[1]], patience=1.0)
    assert "; its other end is Worker pid 1002's, which waits for" in found.sentence, found.sentence


def test_the_end_that_a_child_has_is_said_to_belong_to_it() -> None:
    server = waits(2, "write", "a pipe", 22, pipe="70", pipes={"70": "w"}, sockets=["127.0.0.1:80"])
    server["identity"] |= {"worker_id": "0a-17", "parent": 1003, "rank": None}
    found = verdict([driver(), waits(1, **CLIENT), server, rests(3, pipes={"70": "r"})], patience=1.0)
    assert (
        "; 127.0.0.1:80 belongs to a child of Worker pid 1003, pid 1002, which waits to write to a pipe"
        in found.sentence
    ), found.sentence


def test_a_pipe_whose_write_end_only_those_have_who_wait_themselves() -> None:
    """Children inherit what their parent has open: the one that has ended has left its end with the others."""
    loader = waits(1, "read", "a pipe", 53, pipe="70", pipes={"70": "r", "71": "r", "72": "r"})
    second = waits(2, "write", "a pipe", 26, pipe="71", pipes={"70": "rw", "71": "rw"})
    third = waits(3, "write", "a pipe", 26, pipe="72", pipes={"70": "rw", "71": "rw", "72": "rw"})
    found = verdict([driver(), loader, second, third], patience=1.0)
    assert (
        found.kind == "deadlock"
        and (
            "its other end is open only in Worker pid 1002 and Worker pid 1003, which wait to write to a pipe at "
            "/job/train.py:26 in run, and nobody else has the other end of that: they wait for each other"
        )
        in found.sentence
    ), found.sentence
    # somebody who is at work may still write to the first one's pipe, or read from the second one's
    for pipes in ({"70": "w"}, {"71": "r"}):
        works = waits(4, "futex", "", 30, pipes=pipes)
        works["facts"]["process"]["cpu"] = 1.0
        assert "only in" not in verdict([driver(), loader, second, third, works], patience=1.0).sentence


def test_a_pipe_whose_other_end_a_program_without_devkit_has() -> None:
    reads = waits(1, "poll", "a pipe", 22, pipe="70", pipes={"70": "r"})
    far = [{"pid": 77, "command": "tail -c 9", "orphan": True}]
    reads["facts"]["threads"][0]["wait"]["far"] = far
    found = verdict([driver(), reads], patience=1.0)
    assert "in run; its other end is open in `tail -c 9` (pid 77), which lives on though its parent has ended" in (
        found.sentence
    ), found.sentence
    second = waits(2, "poll", "a pipe", 22, pipe="71", pipes={"71": "r"})
    sentence = verdict([driver(), reads, second], patience=1.0).sentence
    assert "wait on a pipe (poll) at /job/train.py:22 in run; of Worker pid 1001, the other end is open in" in sentence
    known = waits(2, "futex", "", 30, pipes={"70": "w"})
    known["identity"]["pid"] = 77
    assert "tail" not in verdict([driver(), reads, known], patience=1.0).sentence


def test_who_has_the_other_end_of_a_pipe_is_found_also_where_the_shell_that_started_it_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(far_ends, "SECONDS", 60.0)  # on a busy machine the look at all processes takes longer
    command = "sleep 600 & echo $!; exec >&-"
    with subprocess.Popen(["/bin/sh", "-c", command], stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout is not None
        sleeper = int(shell.stdout.readline())
        try:
            shell.wait()
            # Its number comes from the shell, which goes on while the child still is a copy of it.
            words = Path(f"/proc/{sleeper}/cmdline")
            eventually(lambda: words.read_bytes() == b"sleep\x00600\x00", words.read_text)
            inode = str(os.fstat(shell.stdout.fileno()).st_ino)
            found = far_ends.of({"call": "read", "pipes": [inode]})
            orphan = Path(f"/proc/{sleeper}/status").read_text().split("PPid:\t")[1].split()[0] == "1"
            assert found is not None
            assert found["far"] == [{"pid": sleeper, "command": "sleep 600", "orphan": orphan}], found
        finally:
            os.kill(sleeper, signal.SIGKILL)


def test_a_pipe_of_which_a_process_has_both_ends_itself_is_nobody_elses() -> None:
    reader, writer = os.pipe()
    try:
        wait = {"call": "read", "pipes": [str(os.fstat(reader).st_ino)]}
        assert far_ends.of(wait) == wait
    finally:
        os.close(reader)
        os.close(writer)


def test_a_server_whose_thread_hears_another_client() -> None:
    """One thread, and a client that keeps its connection without asking for anything."""
    server = rests(2, sockets=["127.0.0.1:80"])
    heard = {"call": "recvfrom", "target": "TCP 127.0.0.1:80 to 127.0.0.1:6", "pipes": []}
    server["facts"]["threads"] = [{"name": "http", "frames": [], "stopped": False, "wait": heard}]
    found = verdict([driver(), waits(1, **CLIENT), server, rests(3, sockets=["127.0.0.1:6"])], patience=1.0)
    assert (
        "127.0.0.1:80 is Worker pid 1002's, whose thread http waits for data from Worker pid 1003" in found.sentence
    ), found.sentence


@pytest.mark.parametrize(("inner", "alone"), [("BaseServer.finish_request", True), ("select", False)])
def test_a_server_that_has_one_thread_serves_no_other_connection_meanwhile(inner: str, alone: bool) -> None:
    lib, server = "/usr/lib/python3.11/socketserver.py", rests(2, sockets=["127.0.0.1:80"])
    heard = {"call": "recvfrom", "target": "TCP 127.0.0.1:80 to 127.0.0.1:6", "pipes": []}
    rows = frames((lib, 347, inner), (lib, 235, "BaseServer.serve_forever"))
    server["facts"]["threads"].append({"name": "http", "frames": rows, "stopped": False, "wait": heard})
    found = verdict([driver(), waits(1, **CLIENT), server, rests(3, sockets=["127.0.0.1:6"])], patience=1.0)
    assert ("from Worker pid 1003, and serves no other connection meanwhile" in found.sentence) is alone, found.sentence


def test_a_thread_that_the_verdict_names_is_shown_though_it_is_in_libraries_alone() -> None:
    lib = "/usr/lib/python3.11"
    stack = [(f"{lib}/socket.py", 707, "readinto"), (f"{lib}/http/server.py", 400, "handle_one_request")]
    stack += [(f"{lib}/http/server.py", 424, "handle"), (f"{lib}/socketserver.py", 235, "serve_forever")]
    server = rests(2, sockets=["127.0.0.1:80"])
    server["identity"]["role"] = "Server"
    heard = {"call": "recvfrom", "target": "TCP 127.0.0.1:80 to 127.0.0.1:6", "pipes": []}
    http = {"name": "http", "frames": frames(*stack, (f"{lib}/threading.py", 9, "run")), "wait": heard}
    server["facts"]["threads"] += [{**http, "stopped": False}]
    raw = answer([driver(), waits(1, **CLIENT), server, rests(3, sockets=["127.0.0.1:6"])])
    first, last = read_sample(raw), read_sample({**raw, "time": NOW + 2.0})
    found = Diagnosis(diagnose(first, last, 1.0), first, last, raw)
    text = page(found).plain
    assert (
        "Server pid 1002  10.0.0.0\n  thread http\n    readinto  socket.py:707\n"
        "    handle  http/server.py:424  (+1 more)\n    serve_forever  socketserver.py:235\n  + 1 idle thread"
    ) in text, text
    assert "1 process idle: Worker pid 1003" in text and re.search(r"^Server +1002 +io$", text, re.MULTILINE), text
    assert "threads" not in found.verdict.to_json()


def test_two_that_wait_for_each_other() -> None:
    other = waits(2, "recvfrom", "TCP 127.0.0.1:80 to 127.0.0.1:5", 22)
    found = verdict([driver(), waits(1, **CLIENT), other], patience=1.0)
    assert found.kind == "deadlock" and found.culprit is not None and found.culprit.line == 11
    assert "in run; 127.0.0.1:80 is Worker pid 1002's, which waits for data from TCP" in found.sentence
    assert "at /job/train.py:22 in run: they wait for each other" in found.sentence, found.sentence


@pytest.mark.parametrize(("call", "kind"), [("write", "deadlock"), ("read", "io")])
def test_a_program_of_somebody_elses_that_writes_while_it_is_written_to(call: str, kind: str) -> None:
    """`subprocess.Popen`, whose output nobody reads before all of its input is written."""
    asks = waits(1, "write", "a pipe", 36, pipe="70", pipes={"70": "w", "71": "r"})
    wait = {"call": call, "target": "a pipe", "pipes": ["71" if call == "write" else "70"]}
    child = rests(2, pipes={"70": "r", "71": "w"})
    child["facts"] |= {"threads": [], "main": {"state": "S", "cpu": 1.0, "wait": wait}}
    child |= {"command": "python -S -c ..."}
    found = verdict([driver(), asks, child], patience=1.0)
    assert found.kind == kind and found.culprit is not None and found.culprit.line == 36, found
    if kind == "deadlock":
        assert "which waits to write to a pipe: they wait for each other" in found.sentence, found.sentence
    else:
        assert "which is idle" in found.sentence, found.sentence


@pytest.mark.parametrize("reads", ["70", "72"], ids=["its pipe", "another one"])
def test_two_that_wait_for_data_from_each_other(reads: str) -> None:
    """A child whose answer lies in the buffer of its output."""
    asks = waits(1, "read", "a pipe", 36, pipe="71", pipes={"70": "w", "71": "r"})
    child = rests(2, pipes={reads: "r", "71": "w"})
    wait = {"call": "read", "target": "a pipe", "pipes": [reads]}
    child["facts"] |= {"threads": [], "main": {"state": "S", "cpu": 1.0, "wait": wait}}
    child |= {"command": "python -I -c ..."}
    said = verdict([driver(), asks, child], patience=1.0).sentence
    silent = "which waits for data from it, too: what either has written may still lie in a buffer of its own"
    assert (silent in said) is (reads == "70") and ("which is idle" in said) is (reads != "70"), said


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


def beside(line: int, cpu: float, call: str = "read", file: str = "/job/train.py", **changes: Any) -> Document:
    """A process whose main thread waits while a thread of the program's own computes, in code of that file."""
    known = facts(None, line, "run", call_in=call, target="a pipe" if call == "read" else "", **changes)
    stack = [{"file": file, "line": 40, "function": "flush"}]
    starter = {"file": "/usr/lib/python3.11/threading.py", "line": 1002, "function": "Thread._bootstrap"}
    known["threads"].append(
        {"name": "metrics", "frames": [*stack, starter], "stopped": False, "state": "R", "cpu": cpu, "wait": None}
    )
    known["process"] = {"state": "S", "cpu": cpu, "children_cpu": 0.0, "io": int(cpu * 1e9)}
    found = process(known, 1)
    found["identity"]["rank"] = None
    return found


def test_a_librarys_thread_that_computes_beside_who_waits_for_another_process_is_no_progress() -> None:
    idly = {"file": "/usr/lib/python3.11/multiprocessing/pool.py"}
    found = verdict([driver(), beside(11, 1.0, **idly)], [driver(), beside(11, 20.0, **idly)], seconds=20.0)
    assert found.kind == "io" and "Worker pid 1001 waits for data from a pipe" in found.sentence, found.sentence
    assert any(line.endswith("in run; its thread metrics is working") for line in found.evidence), found.evidence


@pytest.mark.parametrize("call", ["read", "futex"])
def test_a_thread_of_the_programs_code_may_be_what_the_others_wait_for(call: str) -> None:
    found = verdict([driver(), beside(11, 1.0, call)], [driver(), beside(11, 20.0, call)], seconds=20.0)
    assert found.kind == "moves", found.sentence
    assert call == "futex" or "Worker pid 1001 is working in its thread metrics" in found.sentence


def helper(parent: Document, line: int, **connections: Any) -> Document:
    """A child at work, which its parent's last call has left behind."""
    known = facts(None, line, "poll", cpu=1.0, connected=connections)
    found = process(known, 5)
    found["identity"] |= {**parent["identity"], "worker_id": f"{parent['identity']['worker_id']}-77", "pid": 77}
    return found


def later(document: Document) -> Document:
    """The same, at work in another line."""
    known = document["facts"]
    top = {**known["threads"][0]["frames"][0], "line": 99}
    thread = {**known["threads"][0], "frames": [top, *known["threads"][0]["frames"][1:]], "cpu": 3.0}
    return {**document, "facts": {**known, "threads": [thread], "process": {**known["process"], "cpu": 3.0}}}


def test_a_child_that_nobody_waits_for_is_no_progress_where_others_are_blocked() -> None:
    parent = named(rests(2))
    busy = helper(parent, 30, locks=["/cache.lock"])
    wants = waits(1, "flock", "/cache.lock", 11)
    found = verdict([driver(), parent, wants, busy], [driver(), parent, wants, later(busy)], seconds=12.0)
    assert found.kind == "io" and "waits for the lock of /cache.lock" in found.sentence, found.sentence
    assert "pid 77 holds it, which is working" in found.sentence, found.sentence


def test_a_child_at_work_is_progress_for_who_waits_for_it_and_for_who_only_looks_now_and_then() -> None:
    parent = named(rests(2))
    busy = helper(parent, 30, pipes={"70": "w"})
    reader = waits(1, "read", "a pipe", 11, pipe="70", pipes={"70": "r"})
    assert (
        verdict([driver(), parent, reader, busy], [driver(), parent, reader, later(busy)], seconds=12.0).kind == "moves"
    )
    looks = process(facts(None, 12, "main", call_in="clock_nanosleep"), None, "driver")
    assert verdict([looks, parent, busy], [looks, parent, later(busy)], seconds=12.0).kind == "moves"


def named(document: Document) -> Document:
    document["identity"]["worker_id"] = "0a"
    return document


def test_the_child_for_whose_end_a_process_waits_is_said_to_stand() -> None:
    parent = waits(1, "wait4", "", 83)
    line = {"at": {"file": TRAIN, "line": 83, "function": "run"}, "text": "self.proc.wait()", "loop": None}

    def seen(child: Document, value: str) -> str:
        values = {"self.proc": value}
        parent["facts"]["statements"] = [{"thread": "MainThread", "lines": [{**line, "values": values}]}]
        return verdict([driver(), parent, child], patience=1.0).sentence

    child = waits(2, "futex", "", 31)
    child["identity"] |= {"role": "child of Worker pid 1001", "worker_id": "Worker-1-1002"}
    said = seen(child, "<Popen pid 1002, running>")
    assert (
        f"waits for the end of a child process at {TRAIN}:83 in run; that is a child of Worker pid 1001, pid 1002, "
        "which waits for"
    ) in said, said
    assert "that is" not in seen(child, "<Popen pid 1003, running>")
    assert "that is" not in seen(child, "<Popen pid 1002>"), "it may have ended"
