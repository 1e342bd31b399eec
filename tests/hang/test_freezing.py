"""Processes that a signal has stopped: all of them, who waits for one, and who has sent that."""

from __future__ import annotations

from typing import Any

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
