"""Who has failed before, and may be the one that others wait for: named, and sure of ranks only."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from devkit.debug.stack_groups import Frame
from devkit.hang.facts import CrashFacts
from tests.hang.jobs import NOW, TRAIN, driver, facts, process, verdict
from tests.hang.test_calls import RUNNING, actor, calls, task_id, wait

Document = dict[str, Any]
CRASH = CrashFacts("c1", "gone", "Engine", None, "ValueError: no such kind", Frame(TRAIN, 70, "load"), NOW - 30, None)
RAISED = "raised ValueError: no such kind at /job/train.py:70 in load"


def meeting(number: int, role: str, rank: int | None = None) -> Document:
    known = facts(rank, 17, "join", call={"op": "init_process_group", "world_size": 3, "rank": number})
    made = process(known, rank, role)
    made["identity"] |= {"worker_id": f"{role}-{number}", "pid": 1050 + number}
    return made


def test_one_of_the_class_that_is_gone_may_be_missing_in_a_meeting() -> None:
    there = [driver(), meeting(0, "Trainer"), meeting(1, "Engine")]
    found = verdict(there, patience=1.0, crashes=[CRASH])
    assert found.kind == "missing" and found.sentence.startswith(
        f"another Engine {RAISED} 32 s ago, and is gone: it may be one that is missing; "
        "Engine pid 1051 and Trainer pid 1050 wait in init_process_group at"
    ), found.sentence
    assert "only 2 have arrived" in found.sentence and found.evidence[0].startswith("crash c1: ")
    assert sum("crash c1" in line for line in found.evidence) == 1
    for other in (
        {"role": "Judge"},
        {"root": "c0"},
        {"kind": "driver"},
        {"worker_id": "Engine-1"},
        {"worker_id": "0a-17"},
    ):
        assert RAISED not in verdict(there, patience=1.0, crashes=[replace(CRASH, **other)]).sentence


def test_the_missing_rank_itself_is_blamed() -> None:
    there = [driver(), meeting(0, "Engine", 0), meeting(1, "Engine", 1)]
    found = verdict(there, patience=1.0, crashes=[replace(CRASH, rank=2), replace(CRASH, worker_id="x", time=NOW)])
    assert (found.kind, found.culprit and found.culprit.line) == ("raised", 70)
    assert found.sentence.startswith(f"Engine rank 2 {RAISED}, and ranks 0,1 wait in init_process_group"), found
    anew = verdict(there, patience=1.0, crashes=[replace(CRASH, rank=1)])  # its rank has come, in another process
    assert anew.kind == "missing" and RAISED not in anew.sentence


def test_a_smaller_group_counts_its_ranks_anew() -> None:
    """Its rank 2 is not the process that is known as rank 2."""
    inner = [driver(), meeting(0, "Engine", 4), meeting(1, "Engine", 5)]
    found = verdict(inner, patience=1.0, crashes=[replace(CRASH, rank=2)])
    assert found.kind == "missing" and "it may be one that is missing" in found.sentence, found.sentence


def test_of_peers_that_do_not_come_the_one_that_raised_is_named() -> None:
    there = [driver(), meeting(0, "Engine", 0)]
    rest = [process(facts(rank, 0), rank, "Engine") for rank in (1, 2)]
    found = verdict([*there, *rest], patience=1.0, crashes=[replace(CRASH, worker_id="Engine-2", rank=2)])
    assert found.kind == "raised" and found.sentence.startswith(f"Engine rank 2 {RAISED}, and "), found.sentence


ONE, TWO = task_id("one", "c"), task_id("two", "c")
TABLE = calls((ONE, "Coordinator.start", RUNNING, "c"), (TWO, "Coordinator.start", RUNNING, "c"))


def waiting(what: str, *rest: Document, **crash: Any) -> str:
    at = {"file": TRAIN, "line": 43, "function": "Coordinator.start"}
    inner = {"thread": "MainThread", "call": "start", "at": at, "what": what, "count": 2, "free": False}
    keeper = actor("c", role="Coordinator", concurrency=8)
    keeper["facts"] |= facts(None, 43, "Coordinator.start", primitives=[inner])
    workers = [actor("a", wait(ONE), role="Train"), actor("b", wait(TWO), role="Train")]
    found = replace(CRASH, **{"role": "Train", "worker_id": "d", **crash})
    return verdict([driver(), keeper, *workers, *rest], patience=1.0, calls=TABLE, crashes=[found]).sentence


def test_one_of_those_that_call_a_coordinator() -> None:
    idle = actor("d", role="Train")
    text = waiting("a threading.Condition to be notified", idle)
    assert text.startswith(
        f"no progress: Train pid 3100 {RAISED} 32 s ago, and is idle now: it may be one that the others wait "
        "for; Coordinator pid 3099 waits for a threading.Condition to be notified"
    ), text
    assert "another Train raised" in waiting("a threading.Barrier for 3, at which 2 have arrived")
    assert "raised" not in waiting("an item from a queue.Queue that is empty", idle)
    assert "raised" not in waiting("a threading.Condition to be notified", idle, role="Judge")
    at_work = actor("d", wait(ONE), role="Train")  # it has begun anew
    assert "raised" not in waiting("a threading.Condition to be notified", at_work)
