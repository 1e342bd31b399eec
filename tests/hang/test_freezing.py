"""Processes that a signal has stopped: all of them, who waits for one, and who has sent that."""

from __future__ import annotations

import os
import subprocess
from typing import Any

from devkit.debug.inworker import operations
from tests.hang.jobs import TRAIN, Document, driver, facts, process, verdict

READS = {"call_in": "read", "target": "a pipe"}
PIPES = {"pipes": {"71": "r"}, "sockets": [], "locks": []}


def pool(**changes: Any) -> Document:
    known = facts(None, 43, "Simulator.step", **READS, connected=PIPES, **changes)
    known["threads"][0]["wait"]["pipes"] = ["71"]
    return process(known, None, "Pool")


def stopped(of: Document, pid: int, *, writes: bool) -> Document:
    known = {"time": 0.0, "threads": [], "forked": None, "process": {"state": "T", "cpu": 1.0, "children_cpu": 0.0}}
    ends = {"pipes": {"71": "w"} if writes else {}, "sockets": [], "locks": []}
    identity = {**of["identity"], "worker_id": f"{of['identity']['worker_id']}-{pid}", "pid": pid, "parent": 1}
    return {
        **of,
        "identity": identity,
        "command": "simulate",
        "facts": {**known, "connected": ends},
        "process": known["process"],
    }


def test_several_that_were_stopped_and_the_one_that_is_waited_for() -> None:
    sent = {"signal": "SIGSTOP", "file": TRAIN, "line": 46, "function": "Simulator.signal"}
    of = pool(halts=[{**sent, "pid": 12}, {**sent, "pid": 13}])
    found = verdict([of, stopped(of, 12, writes=False), stopped(of, 13, writes=True), driver()], seconds=12.0)
    assert found.kind == "frozen" and found.culprit is not None and found.culprit.pid == 13
    assert (
        "are frozen: their processes were stopped by a signal such as SIGSTOP; kill -CONT 12 13 resumes"
        in found.sentence
    )
    assert "Pool pid 1900 sent SIGSTOP to pid 13 at /job/train.py:46 in Simulator.signal" in found.sentence
    assert found.sentence.endswith(
        "Pool pid 1900 waits for data from a pipe at /job/train.py:43 in Simulator.step, whose other end pid 13 has"
    )


def test_one_that_runs_devkit_itself_and_cannot_answer_is_known_by_its_pipe() -> None:
    of = pool()
    mute = {**of, "facts": None, "error": "no answer within 1.5 s", "process": {"state": "T", "cpu": 1.0, "io": 0}}
    mute |= {"identity": {**of["identity"], "worker_id": "other", "pid": 12, "role": "Simulator"}, "threads": []}
    found = verdict([of, {**mute, "connected": {"pipes": {"71": "w"}, "sockets": [], "locks": []}}], seconds=12.0)
    assert found.sentence.startswith("Simulator pid 12 is frozen: its process was stopped by a signal")
    assert found.sentence.endswith("in Simulator.step, whose other end it has")


def test_what_a_neighbour_sees_of_one_that_does_not_answer() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as cat:
        assert cat.stdout is not None
        seen = operations.look(None, {"pid": cat.pid})
        assert seen["process"]["state"] in "RSD"
        assert seen["connected"]["pipes"][str(os.fstat(cat.stdout.fileno()).st_ino)] == "w"
        cat.kill()
    assert operations.look(None, {"pid": 2**30}) == {"process": None, "connected": {}}
