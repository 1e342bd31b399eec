"""The verdict, from facts alone: each class, the first divergent rank and its line."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from devkit.debug.stack_groups import Frame
from devkit.hang.answers import read_sample
from devkit.hang.diagnose import diagnose
from devkit.hang.facts import Call, CrashFacts, Holder, NodeFacts, Pending, Room, Sample
from devkit.hang.gather import Diagnosis
from devkit.hang.records import RankProgress, Verdict
from devkit.hang.view import page, table
from devkit.hang.watchdog import Watch, look
from tests.hang import jobs
from tests.hang.jobs import (
    NOW,
    RAY,
    TRAIN,
    answer,
    driver,
    elsewhere,
    entry,
    facts,
    frames,
    group,
    idle,
    in_collective,
    process,
    verdict,
)

Document = dict[str, Any]


def waiting(*ranks: int, world: int = 3, **changes: Any) -> list[Document]:
    return [in_collective(rank, world, **changes) for rank in ranks]


def is_about(found: Verdict, kind: str, rank: int | None, line: int) -> None:
    assert (found.kind, found.culprit and (found.culprit.rank, found.culprit.line)) == (kind, (rank, line)), found


LOOP = {"file": TRAIN, "line": 50, "function": "load"}
LOCKS = [
    {
        "thread": "MainThread",
        "lock": "lock 1",
        "at": {**LOOP, "line": 51},
        "holder": "loader",
        "held_at": {**LOOP, "line": 60},
    },
    {
        "thread": "loader",
        "lock": "lock 2",
        "at": {**LOOP, "line": 61},
        "holder": "MainThread",
        "held_at": {**LOOP, "line": 50},
    },
]
ONE_LOCK = [{**LOCKS[0], "holder": "MainThread"}]
FROZEN = process(None, 1, process={"state": "T", "cpu": 1.0, "children_cpu": 0.0}, threads=[])
GONE = {"identity": process(None, 1)["identity"], "reason": "the process died: without a word", "time": NOW}

HOLDS = [{"name": "MainThread", "frames": frames((TRAIN, 45, "hold"))}]
SILENT = process(None, 1, process={"state": "R", "cpu": 1.0}, threads=HOLDS)
ABSENTEES = {
    "sleeps": (elsewhere(1, 3, 41, call_in="clock_nanosleep"), "missing", 41, "it sleeps at"),
    "waits for an event": (elsewhere(1, 3, 42), "missing", 42, "waits for a condition"),
    "reads": (elsewhere(1, 3, 43, call_in="read", target="a pipe"), "io", 43, "waits for data from a pipe at"),
    "asks a host": (
        elsewhere(1, 3, 43, call_in="poll", target="TCP 10.0.0.1:9 to 10.0.0.2:80"),
        "io",
        43,
        "TCP 10.0.0.1",
    ),
    "waits for a child": (elsewhere(1, 3, 44, call_in="wait4"), "io", 44, "the end of a child process"),
    "deadlock": (elsewhere(1, 3, 51, locks=LOCKS), "deadlock", 51, "thread loader"),
    "waits for itself": (elsewhere(1, 3, 51, locks=ONE_LOCK), "deadlock", 51, "took itself"),
    "frozen": (FROZEN, "frozen", 0, "kill -CONT 1001"),
    "silent": (SILENT, "silent", 45, "does not respond"),
    "dead": (process(None, 1, process=None, threads=[]), "dead", 0, "is dead"),
    "its node is lost": (process(None, 1, fate="the node was lost"), "dead", 0, "the node was lost"),
    "its node does not answer": (process(None, 1), "unreachable", 0, "nothing on its node 10.0.0.0 responds"),
    "is idle": (idle(1, 3), "missing", 0, "is idle"),
}


@pytest.mark.parametrize("name", ABSENTEES)
def test_why_a_rank_does_not_come(name: str) -> None:
    odd, kind, line, said = ABSENTEES[name]
    found = verdict([driver(), *waiting(0, 2), odd])
    is_about(found, kind, 1, line)
    assert said in found.sentence and found.hang and found.exit_code == 1
    assert "\n" not in found.sentence


def test_which_two_do_not_hear_each_other() -> None:
    ranks = [in_collective(rank, 24) for rank in range(24)]
    ranks[1]["facts"]["unanswered"] = [{"peer": "10.0.0.2", "tries": 7}, {"peer": "10.9.9.9", "tries": 9}]
    found = verdict(ranks)
    assert found.kind == "network", found
    assert found.sentence.startswith("no data gets through between 10.0.0.0 and 10.0.0.2: ranks 0-23 are in all_reduce")
    expected = "Worker rank 1 on 10.0.0.0: 10.0.0.2 does not acknowledge data sent to it (7 tries)"
    assert found.evidence[0] == expected and "10.9.9.9" not in str(found.evidence), "no rank is there"
    # without such connections nobody can say which two it is
    found = verdict([in_collective(rank, 24) for rank in range(24)])
    assert "is there a route between 10.0.0.0, 10.0.0.1, 10.0.0.2?" in found.sentence


def test_what_all_have_begun_and_only_one_has_ended() -> None:
    # given rank 0, which has what it needed and waits in the next one, while the others still wait in this one
    found = verdict([in_collective(0, 3, seq=7), *waiting(1, 2, seq=6)])
    assert found.kind == "network" and "all_reduce #6" in found.sentence, found


def test_a_job_of_which_nothing_is_left() -> None:
    found = verdict([])
    assert found.kind == "idle" and "no process of the job is left" in found.sentence


def test_an_actor_waits_for_room_in_its_placement_group() -> None:
    """Though the nodes have free what it asks for: none of that is for it."""
    nodes = [NodeFacts("a", "a", {"CPU": 8.0}, {"CPU": 6.0})]
    held = (("actor p0", {"CPU": 1.0}), ("actor p1", {"CPU": 1.0}))
    pending = [Pending("actor", "p2", "1", ({"CPU": 1.0},), inside=Room("A", {"CPU": 2.0}, held))]
    found = verdict([driver()], pending=pending, nodes=nodes)
    assert found.kind == "resource" and found.sentence == (
        "the actor p2 waits for room in the placement group A: it requests 1 CPU, and 0 of 2 CPU are free; "
        "the actor p0 and the actor p1 hold all of it"
    )
    room = replace(pending[0], inside=Room("A", {"CPU": 2.0}, held[:1]))
    assert verdict([driver()], pending=[room], nodes=nodes).kind == "moves"


def test_a_task_that_needs_room_in_the_group_of_the_actor_that_waits_for_it() -> None:
    room = Room("A", {"CPU": 2.0}, (("actor Trainer", {"CPU": 1.0}), ("actor Rollout", {"CPU": 1.0})))
    pending = [Pending("task", "score", "1", ({"CPU": 1.0},), inside=room)]
    task = "ab" * 8 + "f" * 24 + "01000000"
    at = {"file": TRAIN, "line": 28, "function": "Trainer.fit"}
    wait = {
        "thread": "MainThread",
        "call": "Trainer.fit",
        "at": at,
        "tasks": [task],
        "needed": 1,
        "ends": False,
        "side": False,
    }
    trainer = process(facts(None, 28, "Trainer.fit", inner=[(RAY, 7, "get")], waits=[wait]), None, "Trainer")
    calls = {task: Call(task, "score", "PENDING_NODE_ASSIGNMENT")}
    found = verdict(
        [driver(), trainer], pending=pending, nodes=[NodeFacts("a", "a", {"CPU": 8.0}, {"CPU": 6.0})], calls=calls
    )
    assert found.sentence.endswith(
        "; the actor Trainer waits for it in that very group, where with placement_group_capture_child_tasks its "
        "tasks go, too"
    ), found.sentence


def test_who_holds_what_is_asked_for() -> None:
    nodes = [NodeFacts(ip, ip, {"GPU": 1.0}, {"GPU": free}) for ip, free in (("a", 1.0), ("b", 0.0))]
    pending = [Pending("placement group", "", "0123", ({"GPU": 1.0},) * 2)]
    keeper, reader = Holder("Keeper", "01", True, {"GPU": 1.0}), Holder("Reader", "02", False, {"CPU": 1.0})
    found = verdict([driver()], pending=pending, nodes=nodes, holders=[keeper, reader])
    assert found.kind == "resource" and found.sentence.endswith(
        "the actor Keeper of job 01, which has ended, still holds 1 GPU"
    )
    assert "Reader" not in str(found)
    found = verdict([driver()], pending=pending, nodes=nodes, holders=[Holder("Other", "03", False, {"GPU": 1.0})])
    assert found.sentence.endswith("; the actor Other of job 03 holds 1 GPU") and len(found.evidence) > 1


def test_groups_in_which_nothing_is_say_so() -> None:
    nodes = [NodeFacts("n", "n", {"CPU": 4.0}, {"CPU": 1.0})]
    pending = [Pending("placement group", "", "0123", ({"CPU": 2.0},))]
    left = [Holder(f"engines_{at}", "01", False, {"CPU": 1.0}, "placement group", empty=True) for at in range(2)]
    found = verdict([driver()], pending=pending, nodes=nodes, holders=left)
    assert found.sentence.endswith(
        "; the placement group engines_0 of job 01, in which no actor and no task is, holds 1 CPU; "
        "the placement group engines_1 of job 01, in which no actor and no task is, holds 1 CPU"
    ), found.sentence


def test_holders_that_have_nothing_to_do_are_counted_with_their_pids() -> None:
    """Old actors whose handles somebody keeps hold what a new one asks for."""
    old = [process(facts(None, 0, actor_id=f"a{at}"), None, "Worker") for at in range(2)]
    for at, each in enumerate(old):
        each["identity"] |= {"worker_id": f"Worker-{at}", "pid": 70 + at}
    at_work = process(facts(None, 42, actor_id="b"), None, "Trainer")
    nodes = [NodeFacts("n", "n", {"CPU": 3.0}, {"CPU": 0.0})]
    held = [Holder("Worker", "01", False, {"CPU": 1.0}, "actor", f"a{at}") for at in range(2)]
    held.append(Holder("Trainer", "01", False, {"CPU": 1.0}, "actor", "b"))
    pending = [Pending("actor", "Worker", "a9", ({"CPU": 1.0},))]
    found = verdict([driver(), *old, at_work], pending=pending, nodes=nodes, holders=held)
    assert found.sentence.endswith(
        "; 2 idle actors Worker (pids 70, 71) of job 01 hold 1 CPU each; the actor Trainer of job 01 holds 1 CPU"
    ), found.sentence
    for at, each in enumerate(old):
        each["facts"]["keeps"] = {"generation": str(at)}
    found = verdict([driver(), *old, at_work], pending=pending, nodes=nodes, holders=held)
    assert found.evidence[-1] == "Worker pid 70 | pid 71 have generation = 0 | 1", found.evidence
    called = {"Worker-0": frozenset({"t"})}
    found = verdict([driver(), *old, at_work], pending=pending, nodes=nodes, holders=held, tasks=called)
    assert "the idle actor Worker (pid 71) of job 01 holds 1 CPU" in found.sentence and "pids" not in found.sentence


def test_a_rank_that_left_the_job() -> None:
    found = verdict([driver(), *waiting(0, 2)], left=[GONE])
    assert found.kind == "dead" and "rank 1 is dead (the process died: without a word)" in found.sentence
    assert found.culprit is not None and found.culprit.pid == 1001


def test_a_rank_that_raised_is_told_with_its_line() -> None:
    crash = CrashFacts("c1", "Worker-1", "Worker", 1, "ValueError: bad", Frame(TRAIN, 70, "load"), NOW - 9, None)
    found = verdict([driver(), *waiting(0, 2), idle(1, 3)], crashes=[crash])
    is_about(found, "raised", 1, 70)
    why = "the embedding `self.wte` has 8 rows, and its ids are 9: 1 of 1 have no row"
    told = verdict([driver(), *waiting(0, 2), idle(1, 3)], crashes=[replace(crash, misfit=why)]).evidence[0]
    assert told.endswith(f" in load: {why} (variables: devkit crashes show c1)"), told
    # but one that goes on after a crash is judged by what it does
    found = verdict([driver(), *waiting(0, 2), ABSENTEES["sleeps"][0]], crashes=[crash])
    is_about(found, "missing", 1, 41)


def test_a_crash_that_a_rank_has_got_over_is_no_reason() -> None:
    """It failed once, was called again, and has begun collectives since."""
    old = CrashFacts("c1", "Worker-1", "Worker", 1, "ValueError: bad", Frame(TRAIN, 70, "load"), NOW - 100, None)
    found = verdict([driver(), *waiting(0, 2), idle(1, 3)], crashes=[old])
    assert found.kind == "missing" and "rank 1 has not reached all_reduce #6" in found.sentence, found


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        ({"op": "broadcast", "line": 33}, "broadcast [8, 4]"),
        ({"line": 34, "call": {"src": 1}, "op": "broadcast"}, "broadcast"),
    ],
)
def test_another_collective(odd: Document, said: str) -> None:
    found = verdict([driver(), *waiting(0, 2), in_collective(1, 3, **odd)])
    is_about(found, "mismatch", 1, odd["line"])
    assert said in found.sentence and "ranks 0,2 are in all_reduce [8, 4]" in found.sentence


def test_another_source() -> None:
    odd = in_collective(1, 3, op="broadcast", line=35, call={"src": 1})
    found = verdict([*waiting(0, 2, op="broadcast", call={"src": 0}), odd])
    is_about(found, "mismatch", 1, 35)
    assert "(src=1)" in found.sentence and "(src=0)" in found.sentence


def test_other_sizes() -> None:
    odd = in_collective(1, 3, line=36)
    odd["facts"]["groups"][0]["entries"][-1]["sizes"] = [[8, 5]]
    is_about(verdict([*waiting(0, 2), odd]), "mismatch", 1, 36)
    # of all_gather each rank may have its own
    odd = in_collective(1, 3, op="all_gather")
    odd["facts"]["groups"][0]["entries"][-1]["sizes"] = [[8, 5]]
    assert verdict([*waiting(0, 2, op="all_gather"), odd]).kind == "network"


def test_two_ranks_of_two_the_lower_is_right() -> None:
    is_about(verdict([in_collective(0, 2), in_collective(1, 2, op="broadcast", line=37)]), "mismatch", 1, 37)


def test_groups_in_different_orders() -> None:
    odd = elsewhere(1, 3, 38)
    odd["facts"]["groups"].append(group([entry(3, done=False, age=20.0)], range(3), "1", "tp"))
    others = waiting(0, 2)
    for each in others:
        each["facts"]["groups"].append(group([entry(2)], range(3), "1", "tp"))
    is_about(verdict([*others, odd]), "mismatch", 1, 38)


def test_blame_goes_to_the_last_of_a_chain() -> None:
    """Rank 0 waits for rank 1, which waits in another group for rank 2, which sleeps."""
    first = in_collective(0, 2)
    second = elsewhere(1, 2, 39)
    second["facts"]["groups"].append(group([entry(4, done=False, age=18.0)], [1, 2], "1", "pair"))
    third = elsewhere(2, 0, 40, call_in="clock_nanosleep")
    third["facts"]["groups"] = [group([entry(3)], [1, 2], "1", "pair")]
    is_about(verdict([first, second, third]), "missing", 2, 40)


def test_of_two_that_are_behind_the_one_that_is_missed_first() -> None:
    """Some collectives let a rank run ahead: rank 3 is late in #7, rank 2 in #6."""
    sleeps = {"call_in": "clock_nanosleep"}
    behind = [elsewhere(2, 4, 41, seq=5, **sleeps), elsewhere(3, 4, 42, seq=6, **sleeps)]
    found = verdict([in_collective(0, 4, 7), in_collective(1, 4, 6), *behind])
    is_about(found, "missing", 2, 41)
    assert "more rank" not in found.sentence


def test_all_are_there_and_nothing_comes_through() -> None:
    found = verdict(waiting(0, 1, 2))
    assert found.kind == "network" and "no rank is missing" in found.sentence


def test_who_waits_for_ray_may_be_seen_as_it_looks_around() -> None:
    """`ray.get` wakes up every second; it computes next to nothing then."""
    waits = driver(call_in="")
    waits["facts"]["threads"][0]["state"] = "R"
    found = verdict([waits, *waiting(0, 2), elsewhere(1, 3, 46, call_in="clock_nanosleep")])
    assert any(line.startswith("driver: waits for a Ray result") for line in found.evidence), found.evidence


def test_an_engine_in_a_group_of_its_own_is_at_work_for_the_rank_that_waits_for_it() -> None:
    """As vLLM's, which has a process group of one."""
    owner = elsewhere(0, 3, 41, inner=[(RAY, 2700, "get")])
    engine = facts(0, 42, groups=[group([entry(1)], [0], world="h:9")], call_in="", cpu=9.0)
    loads = process(engine, 0, "Engine")
    loads["facts"]["threads"][0]["state"] = "R"
    found = verdict([owner, *waiting(1, 2), loads])
    assert found.kind == "moves" and "Worker rank 0 is working" in found.sentence, found


def test_who_polls_may_be_seen_as_it_looks_around() -> None:
    """Who wants a core at both looks is at work, on a busy machine; who does at one of them is not."""
    rests, looks = (elsewhere(1, 3, 46, call_in=call) for call in ("clock_nanosleep", ""))
    looks["facts"]["threads"][0]["state"] = "R"
    assert verdict([driver(), rests], [driver(), looks]).kind != "moves"
    assert verdict([driver(), looks], [driver(), looks]).kind == "moves"


def test_a_child_that_serves_a_worker_is_blamed_last() -> None:
    """It waits for ever for the next thing to do, at a pipe."""
    late, owner = process(facts(1, 41, call_in="clock_nanosleep"), 1), process(facts(0, 0), 0)
    child = process(facts(0, 42, call_in="read", target="a pipe"), 0)
    child["identity"].update(worker_id=owner["identity"]["worker_id"] + "-4711", pid=4711)
    is_about(verdict([owner, child, late]), "stuck", 1, 41)
    assert verdict([owner, child]).kind == "io"


def test_the_installed_trainer_is_the_program() -> None:
    """Given nobody but a rank of it that sleeps, it is named with its line."""
    known = facts(1, 41, call_in="clock_nanosleep")
    for frame in known["threads"][0]["frames"]:
        frame["file"] = frame["file"].replace(TRAIN, "/v/lib/python3.11/site-packages/trainer/roles.py")
    found = verdict([process(known, 1, "PPOWorker")])
    assert found.kind == "stuck" and "PPOWorker rank 1 sleeps at trainer/roles.py:41" in found.sentence, found


def test_two_worlds_of_one_name_are_kept_apart() -> None:
    """Each has a rank 0; those of the other are not missing here."""
    first = [in_collective(rank, 2) for rank in (0, 1)]
    other = [elsewhere(rank, 2, 41, call_in="clock_nanosleep") for rank in (0, 1)]
    for each in other:
        each["facts"]["groups"][0]["world"] = "h:2"
        each["identity"]["worker_id"] += "-other"
    assert verdict([*first, *other]).kind == "network"


def test_who_opened_the_meeting_place_at_all_its_addresses_is_of_the_group() -> None:
    """As a store at 0.0.0.0 has it: the others know its node's address."""
    behind = elsewhere(2, 3, 41, call_in="clock_nanosleep")
    ranks = [*waiting(0, 1), behind]
    for each, world in zip(ranks, ("0.0.0.0:7", "10.0.0.0:7", "10.0.0.0:7"), strict=True):
        each["facts"]["groups"][0]["world"] = world
    found = verdict(ranks)
    is_about(found, "missing", 2, 41)
    assert "ranks 0,1 wait" in found.sentence


def test_a_transfer_between_two() -> None:
    known = facts(
        0, 21, groups=[group([entry(1, "recv", done=False, p2p=True)], [0, 1])], call={"op": "recv", "src": 1}
    )
    found = verdict([process(known, 0), elsewhere(1, 2, 22, call_in="clock_nanosleep")])
    is_about(found, "missing", 1, 22)


def test_without_the_recorder_the_calls_tell() -> None:
    """An older torch, or one that was told not to record."""
    there = [process(facts(rank, 88, call={"op": "all_reduce"}), rank) for rank in (0, 2)]
    found = verdict([driver(), *there, process(facts(1, 41, call_in="clock_nanosleep"), 1)])
    is_about(found, "missing", 1, 41)
    assert "has not reached all_reduce" in found.sentence
    assert verdict([driver(), *there, process(facts(1, 88, call={"op": "all_reduce"}), 1)]).kind == "network"


# ---- no hang


def test_what_moves_is_no_hang() -> None:
    before, after = [driver(), *waiting(0, 1, 2)], [driver(), *waiting(0, 1, 2, seq=7)]
    found = verdict(before, after)
    assert (found.kind, found.hang, found.exit_code) == ("moves", False, 0)


def at_work(cpu: float) -> Document:
    return elsewhere(1, 3, 46, cpu=cpu, call_in="")


def test_a_rank_at_work_is_waited_for() -> None:
    found = verdict([*waiting(0, 2), at_work(1.0)], [*waiting(0, 2), at_work(2.9)])
    assert found.kind == "moves" and "rank 1 is working" in found.sentence and found.decided


def test_a_rank_that_is_far_behind_is_slow() -> None:
    late = waiting(0, 2, age=95.0)
    found = verdict([*late, at_work(1.0)], [*late, at_work(2.9)])
    is_about(found, "slow", 1, 46)


def test_a_short_wait_is_not_decided() -> None:
    sleeps = elsewhere(1, 3, 41, call_in="clock_nanosleep")
    assert not verdict([*waiting(0, 2, age=3.0), sleeps]).decided
    assert verdict([*waiting(0, 2, age=12.0), sleeps]).decided


def test_a_debugger_s_stop_is_no_hang() -> None:
    found = verdict([driver(), *waiting(0, 2), elsewhere(1, 3, 41, stops=["s1"])])
    assert (found.kind, found.hang) == ("paused", False)


def test_nobody_has_anything_to_do() -> None:
    sleeping = process(facts(None, 12, "main", call_in="clock_nanosleep"), None, "driver")
    assert verdict([sleeping, idle(0, 1)]).kind == "idle"


# ---- what Ray has not given

NODES = (NodeFacts("a", "10.0.0.1", {"CPU": 8.0}, {"CPU": 0.0}), NodeFacts("b", "10.0.0.2", {"CPU": 8.0}, {"CPU": 3.0}))
PENDING = {
    "a GPU": (Pending("actor", "Worker", "a1", ({"GPU": 1.0},)), "resource", "no node has any GPU"),
    "too many": (Pending("placement group", "pg", "p1", ({"CPU": 9.0},)), "resource", "no node has more than 8 CPU"),
    "together": (
        Pending("placement group", "pg", "p1", ({"CPU": 6.0},) * 3),
        "resource",
        "all nodes together have 16 CPU",
    ),
    "busy": (Pending("task", "f", "t1", ({"CPU": 4.0},)), "resource", "3 of 16 CPU are free"),
    "starting": (Pending("actor", "Worker", "a1", ({"CPU": 2.0},)), "moves", "Ray is starting actor Worker"),
}


@pytest.mark.parametrize("name", PENDING)
def test_what_ray_has_not_given(name: str) -> None:
    pending, kind, said = PENDING[name]
    found = verdict([driver()], pending=(pending,), nodes=NODES)
    assert found.kind == kind and said in found.sentence


def test_what_nothing_keeps_from_starting_and_does_not_start() -> None:
    pending = (Pending("task", "f", "t1", ({"CPU": 1.0},)), Pending("actor", "Worker", "a1", ({"CPU": 1.0},)))
    nodes = [replace(node, said=("a first line", "error: no such package")) for node in NODES]
    found = verdict([driver()], pending=pending, nodes=nodes, seconds=12.0)
    assert (found.kind, found.hang, found.decided) == ("stuck", True, True)
    assert "Ray has been starting actor Worker, task f for 12 s, but no process for it comes up" in found.sentence
    assert found.sentence.endswith("wrote: error: no such package")
    # when there is a process that is in the actor's __init__, it is told by the line where it stands
    begun = elsewhere(1, 3, 41, call_in="read", target="a pipe")
    begun["facts"]["actor_id"] = "a1"
    found = verdict([driver(), begun], pending=pending[1:], nodes=nodes, seconds=12.0)
    assert found.kind == "io" and "train.py:41" in found.sentence, found


def test_a_lock_that_a_coroutine_keeps_over_an_await_is_a_deadlock_of_its_loop() -> None:
    at = {"file": TRAIN, "function": "put"}
    lock = {
        "thread": "AsyncIO Thread: default", "lock": "lock 0x1", "at": at | {"line": 34}, "call": "put",
        "holder": "AsyncIO Thread: default", "held_at": at | {"line": 34}, "kept_at": at | {"line": 41},
    }  # fmt: skip
    found = verdict([driver(), process(facts(1, 34, locks=[lock]), 1)])
    assert (found.kind, found.hang) == ("deadlock", True)
    assert found.sentence == (
        f"deadlock in Worker rank 1: the event loop stands at {TRAIN}:34 in put, which waits for a lock that a "
        f"coroutine of the same loop took at {TRAIN}:34 in put and keeps while it awaits something at {TRAIN}:41 in put"
    ), found.sentence


@pytest.mark.parametrize(("loop", "kind"), [("while len(rows) < wanted", "stuck"), ("while not self.over", "idle")])
def test_a_driver_that_sleeps_in_a_loop_that_counts_is_no_rest(loop: str, kind: str) -> None:
    """A notebook's rests, and so does one that serves until it is told to end."""
    lines = [
        {"at": {"file": TRAIN, "line": 72, "function": "collect"}, "text": "sleep(1)", "values": {}, "loop": None},
        {
            "at": {"file": TRAIN, "line": 85, "function": "run"}, "text": "collect()", "values": {},
            "loop": {"loop": loop, "values": {"rows": "list of 7", "wanted": "8"}, "whole": "7 8"},
        },
    ]  # fmt: skip
    sleeps = process(facts(None, 72, "collect", call_in="clock_nanosleep"), None, "driver")
    sleeps["facts"]["statements"] = [{"thread": "MainThread", "lines": lines}]
    found = verdict([sleeps, idle(1, 1)], seconds=12.0)
    assert found.kind == kind and f"the driver sleeps at {TRAIN}:72 in collect" in found.sentence, found
    assert f"in the loop `{loop}` (rows = list of 7, wanted = 8)" in found.sentence, found


ENDED = {
    "thread": ({"kind": "thread", "name": "prefetch", "said": "", "at": None}, "; its thread prefetch ended before"),
    "failed": (
        {"kind": "thread", "name": "_handle_results", "said": "TypeError: no", "at": None},
        "; its thread _handle_results ended with TypeError: no",
    ),
    "task": (
        {"kind": "task", "name": "Server.apply", "said": "KeyError: 'a'", "at": LOOP},
        "; its background task Server.apply has failed, and nobody has awaited it: KeyError: 'a' "
        "at /job/train.py:50 in load",
    ),
    "tasks": (
        {"kind": "task", "name": "feed", "said": "E: a", "at": LOOP, "count": 4, "alike": False, "open": 0},
        "; 4 of its background tasks, feed, have failed, no other of that name is under way, and nobody has awaited "
        "them: one by E: a at /job/train.py:50 in load",
    ),
    "one of them": (
        {"kind": "task", "name": "feed", "said": "E: a", "at": LOOP, "count": 1, "alike": True, "open": 3},
        "; its background task feed has failed (3 others of that name are not done), and nobody has awaited it: E: a "
        "at /job/train.py:50 in load",
    ),
}


def test_a_background_task_that_has_failed_in_another_process_is_told() -> None:
    """It may be the one that was to fill what they wait for, in an actor that is idle now."""
    filler = process(facts(2, 0, ended=[ENDED["task"][0]]), 2)
    found = verdict([driver(), process(facts(1, 42), 1), filler], patience=1.0)
    said = (
        "; a background task of Worker rank 2, Server.apply, has failed, and nobody has awaited it: KeyError: 'a' at "
    )
    assert found.kind == "stuck" and found.sentence.endswith(f"{said}/job/train.py:50 in load"), found
    moving = verdict([driver(), filler], [driver(), filler, process(facts(1, 42, cpu=9.0, state="R"), 1)])
    assert not moving.hang and "has failed" not in moving.sentence


@pytest.mark.parametrize("name", ENDED)
def test_what_has_ended_in_a_process_that_waits_is_told(name: str) -> None:
    known, said = ENDED[name]
    found = verdict([driver(), process(facts(1, 42, ended=[known]), 1)], patience=1.0)
    assert found.kind == "stuck" and said in found.sentence, found
    assert found.sentence.endswith(f"{said}, and the driver waits for Worker rank 1"), found.sentence


def test_of_tasks_that_are_gone_their_number_is_told_all_the_same() -> None:
    """Six have kept a permit each, and of five nothing is left but what was counted when they failed."""
    by = {"file": "/v/lib/python3.12/asyncio/__init__.py", "line": 0, "function": "Task"}
    row = {"kind": "KeyError", "text": "'a'", "at": LOOP, "by": by, "count": 6, "seconds": 9.0, "ago": 60.0}
    known, said = ENDED["task"]
    for count, more in ((6, ", where 6 tasks have failed in all"), (1, "")):
        waits = process(facts(1, 42, ended=[known], caught=[{**row, "count": count}]), 1)
        assert f"{said}{more}, and the driver" in verdict([driver(), waits], patience=1.0).sentence
    other = process(facts(1, 42, ended=[known], caught=[{**row, "at": {**LOOP, "line": 3}}]), 1)
    assert f"{said}, and the driver" in verdict([driver(), other], patience=1.0).sentence


def test_a_background_task_that_is_to_end_the_wait_and_has_failed_comes_first() -> None:
    """Who waits for what it would have completed is a victim."""
    known, _ = ENDED["task"]
    waits = waits_inside("an asyncio.Future that is not done", ended=[known], count=3)
    at = {"file": TRAIN, "line": 42, "function": "step"}
    ends = {"what": "done", "how": "completed", "at": [{"line": 50, "function": "Server.apply"}]}
    line = {"at": at, "text": "return await done", "values": {}, "ends": ends}
    waits["facts"]["statements"] = [{"thread": "MainThread", "lines": [line]}]
    found = verdict([driver(), waits], patience=1.0)
    assert found.sentence == (
        "no progress: the background task Server.apply of Worker rank 1 has failed, and nobody has awaited it: "
        "KeyError: 'a' at /job/train.py:50 in load; Worker rank 1 waits for an asyncio.Future that is not done at "
        "/job/train.py:42 in step; 3 of its calls wait there, and the driver waits for it"
    )
    ends["at"][0]["function"] = "Server.other"
    assert verdict([driver(), waits], patience=1.0).sentence.startswith("no progress: Worker rank 1 waits for")


def test_a_driver_that_waits_although_its_thread_has_failed() -> None:
    failed = {"kind": "thread", "name": "reader", "said": "TypeError: no", "at": None}
    alone = process(facts(None, 12, "main", ended=[failed]), None, "driver")
    found = verdict([alone], patience=1.0)
    assert found.kind == "stuck" and found.sentence == (
        "no progress: the driver waits for a condition, an event or a call of C at /job/train.py:12 in main; "
        "its thread reader ended with TypeError: no"
    )
    assert verdict([process(facts(None, 12, "main"), None, "driver")], patience=1.0).kind == "idle"


def waits_inside(what: str, line: int = 42, **changes: Any) -> Document:
    """A process that waits for something of its own at that line."""
    at = {"file": TRAIN, "line": line, "function": "step"}
    inner = {"thread": "MainThread", "call": "Client.score", "at": at, "what": what, "count": 1, "free": False}
    concurrency = changes.pop("concurrency", 1)
    ended = changes.pop("ended", [])
    return process(facts(1, line, primitives=[{**inner, **changes}], concurrency=concurrency, ended=ended), 1)


JOINED = "worked off (task_done)"


def waits_for_a_join(*ended: Document, by: str = "Pipeline.dispatch", stands: str = "", how: str = JOINED) -> Document:
    what = "154 items of an asyncio.Queue to be done (task_done)"
    waits = waits_inside(what, ended=list(ended))
    at = {"file": TRAIN, "line": 42, "function": "step"}
    ends = {"what": "self.events", "how": how, "at": [{"line": 58, "function": by}]}
    line = {"at": at, "text": "await self.events.join()", "values": {}, "ends": ends}
    other = {"at": {**at, "line": 50, "function": stands}, "text": "await call", "values": {}}
    stacks = [{"thread": "MainThread", "lines": [line]}, {"thread": "task Task-2", "lines": [other]}]
    waits["facts"]["statements"] = stacks[: 2 if stands else 1]
    return waits


CONSUMER = {
    "kind": "cancelled", "name": "Pipeline.dispatch", "said": "", "at": {**LOOP, "file": TRAIN, "line": 35}, "open": 0
}  # fmt: skip
REACHES = {"file": TRAIN, "names": ["ask"]}


def test_a_background_task_that_alone_would_end_the_wait_and_was_cancelled_comes_first() -> None:
    failed = {**ENDED["tasks"][0], "reaches": REACHES}
    found = verdict([driver(), waits_for_a_join(failed, CONSUMER)], patience=1.0)
    assert found.sentence == (
        f"no progress: the background task Pipeline.dispatch (made at {TRAIN}:35) of Worker rank 1 was cancelled, and "
        f"nothing else in {TRAIN} would have self.events worked off (task_done); Worker rank 1 waits for 154 items of "
        f"an asyncio.Queue to be done (task_done) at {TRAIN}:42 in step, and the driver waits for it"
    )
    others = (
        waits_for_a_join({**CONSUMER, "open": 1}),
        waits_for_a_join(CONSUMER, by="Pipeline.other"),
        waits_for_a_join(CONSUMER, stands="Pipeline.dispatch"),
        waits_for_a_join({**CONSUMER, "count": 2}, how="set"),
        waits_for_a_join(CONSUMER, how="released"),
    )
    for other in others:
        assert "cancelled" not in verdict([driver(), other], patience=1.0).sentence


def test_background_tasks_that_come_to_no_line_that_would_end_the_wait_are_not_blamed() -> None:
    failed = {**ENDED["tasks"][0], "reaches": REACHES}
    found = verdict([driver(), waits_for_a_join(failed)], patience=1.0)
    assert "have failed" not in found.sentence and any("4 of its background tasks" in each for each in found.evidence)
    blamed = (
        waits_for_a_join(ENDED["tasks"][0]),
        waits_for_a_join({**failed, "reaches": {**REACHES, "names": ["ask", "dispatch"]}}),
        waits_for_a_join({**failed, "reaches": {**REACHES, "file": "/job/other.py"}}),
        waits_for_a_join(failed, how="released"),  # which it may have kept
        waits_for_a_join(failed, stands="Pipeline.dispatch"),  # it may wait for what has failed
    )
    for each in blamed:
        assert "have failed" in verdict([driver(), each], patience=1.0).sentence


def test_a_module_whose_body_waits_for_who_imports_it_is_a_deadlock() -> None:
    body, reads = {"file": TRAIN, "line": 22, "function": "<module>"}, {"file": TRAIN, "line": 15, "function": "read"}
    what = "the import of module rules, which thread MainThread has begun"
    imports = {"thread": "pool_0", "lock": what, "what": what, "at": reads, "holder": "MainThread", "held_at": body}
    what = "a concurrent.futures.Future that thread pool_0 computes"
    waits = {"thread": "MainThread", "lock": what, "what": what, "at": body, "holder": "pool_0", "held_at": None}
    each = process(facts(1, 22, "<module>", locks=[imports, waits]), 1)
    found = verdict([driver(), each], patience=1.0)
    assert found.sentence == (
        f"deadlock in Worker rank 1: thread pool_0 waits at {TRAIN}:15 in read for the import of module rules, which "
        f"thread MainThread has begun, and which is at {TRAIN}:22 in <module>; thread MainThread waits at {TRAIN}:22 "
        "in <module> for a concurrent.futures.Future that thread pool_0 computes"
    )
    alone = verdict([driver(), process(facts(1, 15, "read", locks=[imports]), 1)], patience=1.0)
    assert "; that is the import of module rules, which thread MainThread has begun" in alone.sentence, alone


def test_what_a_process_waits_for_of_its_own_is_named() -> None:
    found = verdict([driver(), waits_inside("an item from a queue.Queue that is empty")], patience=1.0)
    assert found.sentence.startswith(
        "no progress: Worker rank 1 waits for an item from a queue.Queue that is empty at "
    )
    assert any("waits for an item from" in line for line in found.evidence)


def test_for_what_the_calls_wait_that_are_gathered() -> None:
    what = "a free connection of an aiohttp.TCPConnector: all 4 are in use (limit=4)"
    gathers = waits_inside("asyncio.gather, of which 8 of 12 are not done")
    at = {"file": TRAIN, "line": 46, "function": "Client._ask"}
    asks = {"thread": "task Task-9", "call": "Client.score", "at": at, "what": what, "count": 8, "free": False}
    gathers["facts"]["primitives"].append(asks)
    sentence = verdict([driver(), gathers], patience=1.0).sentence
    assert (
        f"; 8 of its calls wait for {what} at /job/train.py:46 in Client._ask, and the driver waits for it" in sentence
    )


@pytest.mark.parametrize(
    ("known", "says"),
    [
        ({"free": True, "count": 48}, "; 48 of its calls wait there; no call that is under way is seen to hold "),
        (
            {"holder": "t", "holder_call": "W.publish", "held_at": {"file": TRAIN, "line": 7, "function": "publish"}},
            "; W.publish holds it at /job/train.py:7 in publish",
        ),
    ],
    ids=["nobody", "somebody"],
)
def test_who_holds_what_a_process_waits_for(known: Document, says: str) -> None:
    assert says in verdict([driver(), waits_inside("an asyncio.Semaphore", **known)], patience=1.0).sentence


def test_a_barrier_for_more_than_an_actor_takes_at_once() -> None:
    barrier = "a threading.Barrier for 6, at which 4 have arrived"
    found = verdict([driver(), waits_inside(barrier, count=4, concurrency=4)], patience=1.0)
    assert (
        "; all 4 calls that it takes at once (max_concurrency) are there, so the others cannot come" in found.sentence
    )
    assert "takes at once" not in verdict([driver(), waits_inside(barrier, count=4)], patience=1.0).sentence


def test_a_sleep_in_a_loop_says_what_it_looks_at() -> None:
    at = {"file": TRAIN, "line": 42, "function": "step"}
    poll = {"thread": "MainThread", "at": at, "by": at, "loop": "while not ready", "values": {"ready": "False"}}
    found = verdict([driver(), process(facts(1, 42, call_in="clock_nanosleep", polls=[poll]), 1)], patience=1.0)
    assert "sleeps at /job/train.py:42 in step, in the loop `while not ready` (ready = False), and" in found.sentence


@pytest.mark.parametrize(("sums", "kind"), [(("a", "b"), "moves"), (("a", "a"), "stuck"), (("", ""), "stuck")])
def test_a_loop_that_adds_something_up_moves_however_long_it_sleeps(sums: tuple[str, str], kind: str) -> None:
    at = {"file": TRAIN, "line": 42, "function": "step"}
    poll = {"thread": "MainThread", "at": at, "by": at, "loop": "while not ready", "values": {"ready": "False"}}
    first, last = (
        read_sample(
            answer([driver(), process(facts(1, 42, call_in="clock_nanosleep", polls=[{**poll, "sums": each}]), 1)], now)
        )
        for each, now in zip(sums, (NOW - 2.0, NOW), strict=True)
    )
    assert diagnose(first, last, 1.0).kind == kind


def in_the_loop_thread(running: str) -> Document:
    known = facts(None, 13, "score", call_in="clock_nanosleep", coroutines={"count": 0, "running": [running]})
    known["threads"][0]["name"] = "AsyncIO Thread: default"
    return process(known, None, "Judge")


def test_another_call_at_the_same_line_is_progress_and_what_blocks_the_loop_is_told() -> None:
    found = verdict([driver(), in_the_loop_thread("Task-7")], [driver(), in_the_loop_thread("Task-9")])
    assert not found.hang and found.sentence.endswith(
        ", but Judge pid 1900 sleeps at /job/train.py:13 in score; that blocks the event loop of its actor"
    ), found.sentence
    found = verdict([driver(), in_the_loop_thread("Task-7")], patience=1.0)
    assert found.kind == "stuck" and "; that blocks the event loop of its actor, and the driver waits" in found.sentence


def test_another_task_of_ray_at_the_same_line_is_progress() -> None:
    sleeps = process(facts(None, 13, "load", call_in="clock_nanosleep"), None, "worker")
    first, last = (
        read_sample(answer([driver(), sleeps], at), tasks={"worker-900": frozenset({task})})
        for at, task in ((NOW, "t1"), (NOW + 2.0, "t2"))
    )
    assert diagnose(first, last, 1.0).kind == "moves"
    assert diagnose(replace(first, tasks=last.tasks), last, 1.0).kind == "stuck"
    others = {"other": frozenset({"t"})}  # Ray's table has the new one a little later
    assert diagnose(first, replace(last, tasks=others), 1.0).kind == "moves"
    assert diagnose(replace(first, tasks=others), last, 1.0).kind == "stuck"


def failed(count: int, every: float, ended: float = 0.0, said: str = "KeyError: 'a'") -> tuple[CrashFacts, ...]:
    """Crashes of one kind, the last one `ended` seconds before the later sample."""
    at, last = Frame(TRAIN, 17, "Env.step"), NOW + 2.0 - ended
    times = [last - every * back for back in reversed(range(count))]
    return tuple(CrashFacts(f"c{n}", "w", "Env", None, f"{said}{n}", at, time, None) for n, time in enumerate(times))


def test_what_fails_again_and_again_is_why_the_others_wait() -> None:
    found = verdict([driver()], crashes=failed(12, 0.5), patience=1.0)
    assert (found.kind, found.hang) == ("failing", True)
    assert found.sentence.startswith(
        "no progress: Env fails again and again, 12 times in 5.5 s: KeyError: 'a'11 at /job/train.py:17 in Env.step; "
    ), found
    assert found.evidence[0].endswith("(variables: devkit crashes show c11)")


def test_what_fails_again_and_again_while_others_work_is_told_and_no_hang() -> None:
    first, last = (process(facts(0, line, "robust"), 0, "Trainer") for line in (26, 27))
    found = verdict([first], [last], crashes=failed(12, 0.5))
    assert not found.hang and ", but Env fails again and again, 12 times" in found.sentence


def test_who_is_started_anew_again_and_again_makes_no_progress_by_that() -> None:
    crashes = tuple(replace(each, kind="exit") for each in failed(9, 3.0, said="SystemExit: os._exit(1)"))
    new = process(facts(None, 47, "run"), 1, "Env")
    found = verdict([driver()], [new, driver()], crashes=crashes)
    assert found.kind == "failing" and found.sentence.startswith("no progress: Env fails again and again, 9 times")
    first, last = (process(facts(0, line, "robust"), 0, "Trainer") for line in (26, 27))
    assert not verdict([first, driver()], [last, new, driver()], crashes=crashes).hang, "another one moves, too"


def test_a_driver_that_tries_again_and_again_gets_nowhere() -> None:
    sleeps = process(facts(None, 26, "robust", call_in="clock_nanosleep"), None, "driver")
    found = verdict([sleeps], crashes=failed(12, 0.5))
    assert found.kind == "failing" and found.sentence.startswith("no progress: Env fails again and again, 12 times")
    assert found.sentence.endswith("; no process has anything to do: the driver sleeps at /job/train.py:26 in robust")


def catching(count: int = 20, seconds: float = 10.0, ago: float = 0.5, line: int = 30) -> Document:
    """A worker that catches the same error again and again, and sleeps in between."""
    at = {"file": TRAIN, "line": 12, "function": "score"}
    row = {"kind": "KeyError", "text": "'x'", "at": at, "by": {**at, "line": 20}}
    caught = [{**row, "count": count, "seconds": seconds, "ago": ago}]
    return process(facts(1, line, "run", call_in="clock_nanosleep", caught=caught), 1)


def test_what_a_process_catches_again_and_again_is_why_the_others_wait() -> None:
    found = verdict([driver(), catching()], patience=1.0)
    assert (found.kind, found.hang) == ("failing", True)
    assert found.sentence.startswith(
        "no progress: Worker rank 1 catches the same error again and again, 20 times in 10 s: "
        "KeyError: 'x' at /job/train.py:12 in score, caught at /job/train.py:20 in score; "
    ), found
    places = "at /job/train.py:12 in score, caught at /job/train.py:20 in score"
    assert found.evidence[0] == f"Worker rank 1 has caught KeyError: 'x' 20 times {places}"


TASKS = {"file": "/v/lib/python3.12/asyncio/__init__.py", "line": 0, "function": "Task"}
POOLS = {"file": "/v/lib/python3.12/concurrent/futures/thread.py", "line": 58, "function": "_WorkItem.run"}
KEPT = {  # by whom, what is known of its tasks, how often; and what is said
    "unheard": (TASKS, 1, 1, "once", "its asyncio task, which nobody has awaited"),
    "all unheard": (TASKS, 4, 4, "4 times", "asyncio tasks, which nobody has awaited"),
    "some heard": (TASKS, 1, 4, "4 times", "asyncio tasks"),
    "gathered": (TASKS, 0, 1, "once", "its asyncio task"),
    "future": (POOLS, 0, 1, "once", "its Future"),
}


@pytest.mark.parametrize("case", KEPT)
def test_what_no_handler_has_caught_is_said_to_be_kept(case: str) -> None:
    by, unheard, count, times, keeper = KEPT[case]
    at = {"file": TRAIN, "line": 12, "function": "feed"}
    row = {"kind": "KeyError", "text": "'x'", "at": at, "by": by, "count": count, "seconds": 1.0, "ago": 60.0}
    failed = {"kind": "task", "name": "feed", "said": "KeyError: 'x'", "at": at, "count": unheard}
    known = {"caught": [{**row, "how": "kept"}], "ended": [failed] if unheard else []}
    found = verdict([driver(), process(facts(1, 42, **known), 1)], patience=1.0)
    place = "/job/train.py:12 in feed"
    assert found.evidence[0] == f"Worker rank 1: KeyError: 'x' was raised {times} at {place} and kept by {keeper}"
    assert "caught" not in str(found)
    assert ("where 4 tasks have failed in all" in found.sentence) is (case == "some heard"), found.sentence
    again = {**row, "count": 9, "seconds": 9.0, "ago": 0.1}
    found = verdict([driver(), process(facts(1, 42, caught=[again]), 1)], patience=1.0)
    said = "no progress: Worker rank 1 raises the same error again and again, 9 times in 9.0 s: KeyError: 'x' at "
    assert found.sentence.startswith(f"{said}{place}, kept by ") and "caught" not in str(found)


def test_of_a_future_that_may_have_been_asked_nothing_more_is_said() -> None:
    at = {"file": TRAIN, "line": 12, "function": "feed"}
    row = {"kind": "KeyError", "text": "'x'", "at": at, "by": POOLS, "count": 1, "seconds": 0.0, "ago": 60.0}
    found = verdict([driver(), process(facts(1, 42, caught=[row]), 1)], patience=1.0)
    assert found.evidence[0].endswith("was raised once at /job/train.py:12 in feed and kept by its Future")


def test_what_is_caught_while_the_job_moves_is_evidence_and_no_news() -> None:
    found = verdict([driver(), catching()], [driver(), catching(line=31)])
    assert not found.hang and "again and again" not in found.sentence and "KeyError" in found.evidence[0]


@pytest.mark.parametrize(
    ("keeper", "how", "said"),
    [
        ("concurrent/futures/thread.py", "", "Futures"),
        ("concurrent/futures/thread.py", "kept", "Futures"),
        ("asyncio/__init__.py", "kept", "asyncio tasks"),
    ],
    ids=["not followed", "followed", "task"],
)
def test_what_is_kept_is_called_unasked_only_where_that_is_known(keeper: str, how: str, said: str) -> None:
    """Up to Python 3.11 nothing tells that `future.result()` has raised it, and the program may have handled that."""
    waits = catching(3, ago=60.0)
    by = {"file": f"/v/lib/python3.12/{keeper}", "line": 0, "function": "Task" if "asyncio" in keeper else "run"}
    waits["facts"]["caught"][0] |= {"by": by, "how": how}
    found = verdict([driver(), waits], patience=1.0)
    raised = "KeyError: 'x' was raised 3 times at /job/train.py:12 in score"
    assert found.evidence[0] == f"Worker rank 1: {raised} and kept by {said}"


@pytest.mark.parametrize("caught", [catching(2), catching(ago=60.0)], ids=["twice", "no more"])
def test_what_was_caught_before_explains_nothing_and_is_evidence(caught: Document) -> None:
    found = verdict([driver(), caught], patience=1.0)
    assert found.kind == "stuck" and "KeyError" not in found.sentence
    times = "2 times" if caught["facts"]["caught"][0]["count"] == 2 else "20 times"
    places = "at /job/train.py:12 in score, caught at /job/train.py:20 in score"
    assert found.evidence[0] == f"Worker rank 1 has caught KeyError: 'x' {times} {places}"


@pytest.mark.parametrize("crashes", [failed(2, 0.5), failed(5, 0.5, ended=60.0)], ids=["twice", "no more"])
def test_what_has_failed_before_explains_nothing(crashes: tuple[CrashFacts, ...]) -> None:
    assert "again and again" not in verdict([driver()], crashes=crashes, patience=1.0).sentence


def test_an_idle_worker_that_has_to_wait_for_a_core_is_idle() -> None:
    """Given a busy machine, where Ray's loop wants a core again and again, and does not get one at once."""

    def wanting(seconds: float) -> Document:
        loop = frames((RAY, 900, "main_loop"))
        return idle(0, 1, threads=[{"name": "MainThread", "frames": loop, "state": "S", "cpu": seconds}])

    pending = [Pending("placement group", "pg", "p1", ({"GPU": 1.0},))]
    assert verdict([driver(), wanting(1.0)], [driver(), wanting(1.9)], pending=pending, nodes=NODES).kind == "resource"


def test_a_rank_that_is_never_started_is_missed_by_those_who_meet() -> None:
    meeting = process(facts(0, 20, "join", call={"op": "init_process_group", "world_size": 2}), None)
    pending = PENDING["a GPU"][0]
    assert verdict([driver(), meeting], pending=(pending,), nodes=NODES).kind == "resource"
    assert "only 1 has arrived" in verdict([driver(), meeting], nodes=NODES).sentence


def meeting(number: int, role: str, **call: Any) -> Document:
    """A process that makes a group, as the rank that it was given."""
    known = facts(None, 17, "join", call={"op": "init_process_group", "world_size": 5, "rank": number, **call})
    return process(known, number + 50, role)


def test_ranks_of_several_roles_come_to_one_group() -> None:
    there = [meeting(0, "Trainer"), *(meeting(rank, "Engine") for rank in (1, 2, 3))]
    found = verdict([driver(), *there], patience=1.0)
    assert (
        found.kind == "missing"
        and "for 5 ranks, but only 4 have arrived: devkit sees no other process of theirs" in found.sentence
    )


def test_a_rank_that_was_given_twice() -> None:
    there = [meeting(0, "Trainer"), *(meeting(rank, "Engine") for rank in (1, 2, 3))]
    twin = meeting(2, "Engine")
    twin["identity"] |= {"worker_id": "Engine-99", "pid": 1099}
    found = verdict([driver(), *there, twin], patience=1.0)
    assert found.kind == "missing" and found.sentence.endswith(
        "for 5 ranks, as ranks 0, 1, 2, 2, 3: rank 2 is taken by Engine pid 1052 and by Engine pid 1099, "
        "and rank 4 is missing"
    ), found.sentence


def on_tcp(rank: int, call: str, local: str, remote: str = "") -> Document:
    target = f"TCP {local} to {remote}" if remote else f"TCP {local} (listening)"
    return process(facts(rank, 24, "serve", call_in=call, target=target), rank)


def test_whoever_waits_for_data_comes_before_a_server_and_is_told_whose_the_other_end_is() -> None:
    server, client = on_tcp(0, "accept4", "0.0.0.0:29671"), on_tcp(1, "recvfrom", "127.0.0.1:5", "127.0.0.1:29671")
    found = verdict([driver(), server, client], patience=1.0)
    assert found.kind == "io" and found.culprit is not None and found.culprit.rank == 1
    assert "; 127.0.0.1:29671 is Worker rank 0's" in found.sentence, found.sentence
    alone = verdict([driver(), server], patience=1.0)
    assert alone.culprit is not None and alone.culprit.rank == 0
    elsewhere_ = on_tcp(1, "recvfrom", "127.0.0.1:5", "127.0.0.1:29672")
    assert "is Worker" not in verdict([driver(), server, elsewhere_], patience=1.0).sentence


def test_groups_of_other_sizes_and_at_other_addresses_are_told() -> None:
    here, there = "tcp://127.0.0.1:29500", "tcp://127.0.0.1:29501"
    one, two = meeting(0, "Trainer", init_method=here), meeting(1, "Engine", init_method=there)
    assert (
        "Engine pid 1051 is in init_process_group for 5 ranks at 127.0.0.1:29501"
        in verdict([driver(), one, two]).sentence
    )
    two = meeting(1, "Engine", world_size=4)
    assert (
        "Engine pid 1051 is in init_process_group for 4 ranks"
        in verdict([driver(), meeting(0, "Trainer"), two]).sentence
    )


def told_by_the_environment(number: int, **call: Any) -> Document:
    """As torch calls it for `env://`: -1 for what it has not read yet."""
    return meeting(number, "Worker", **{"world_size": -1, "rank": -1, "init_method": "env://", **call})


def test_a_rank_that_stays_away_from_a_group_whose_size_is_not_known_yet() -> None:
    away = process(facts(None, 41, "load", call_in="clock_nanosleep"), 51)
    found = verdict([driver(), told_by_the_environment(0), away], patience=1.0)
    assert found.kind == "missing"
    assert "Worker pid 1051 has not reached init_process_group: it sleeps" in found.sentence, found.sentence
    known = told_by_the_environment(0, world_size=2, rank=0, place="10.0.0.1:29500")
    assert verdict([driver(), known, away], patience=1.0).sentence == found.sentence
    both = verdict([driver(), known, told_by_the_environment(1)], patience=1.0)
    assert both.kind == "network" and "all 2 ranks are in init_process_group" in both.sentence, both.sentence


def test_of_two_groups_the_one_that_lacks_a_rank_is_told() -> None:
    whole = [meeting(rank, "Engine", world_size=2, init_method="tcp://10.0.0.1:1") for rank in (0, 1)]
    lacks = [meeting(rank, "Trainer", world_size=3, init_method="tcp://10.0.0.1:2") for rank in (0, 1)]
    for every in ([*whole, *lacks], [*lacks, *whole]):
        found = verdict([driver(), *every], patience=1.0)
        assert (
            found.kind == "missing"
            and found.sentence.startswith("Trainer pid 1050 and Trainer pid 1051 wait")
            and "for 3 ranks" in found.sentence
        )


def test_two_ranks_that_were_given_twice() -> None:
    there = [meeting(rank, role, rank=rank % 2) for role in ("Trainer", "Engine") for rank in (0, 1)]
    assert verdict([driver(), *there], patience=1.0).sentence.endswith(
        "as ranks 0, 0, 1, 1: rank 0 is taken by Trainer pid 1050 and by Engine pid 1050; "
        "rank 1 is taken by Trainer pid 1051 and by Engine pid 1051, and ranks 2-4 are missing"
    )


def test_an_address_of_the_node_itself_is_nobodys_on_another_node() -> None:
    server, client = on_tcp(0, "accept4", "127.0.0.1:29671"), on_tcp(20, "recvfrom", "127.0.0.1:5", "127.0.0.1:29671")
    assert server["identity"]["node_ip"] != client["identity"]["node_ip"]
    assert "29671 is" not in verdict([driver(), server, client], patience=1.0).sentence
    at = server["identity"]["node_ip"]
    everywhere = on_tcp(0, "poll", "0.0.0.0:29671")
    client = on_tcp(20, "recvfrom", "10.0.0.9:5", f"{at}:29671")
    found = verdict([driver(), everywhere, client], patience=1.0)
    assert found.culprit is not None and found.culprit.rank == 20 and "is Worker rank 0's" in found.sentence


# ---- large jobs, and the watchdog


@pytest.mark.parametrize("odd", [0, 100, 255])
def test_256_ranks(odd: int) -> None:
    found = verdict(json.loads(json.dumps(jobs.simulated(256, odd))))
    is_about(found, "missing", odd, 41)
    assert len(found.evidence) < 20


def samples(*documents: tuple[float, list[Document]]) -> list[Sample]:
    return [read_sample(answer(ranks, NOW + at)) for at, ranks in documents]


def alarms(found: list[Sample], timeout: float) -> list[tuple[float, str]]:
    watch: Watch | None = None
    told: list[tuple[float, str]] = []
    for sample in found:
        watch, said = look(watch, sample, timeout)
        if said is not None:
            told.append((sample.time - NOW, said.kind))
    return told


def test_the_watchdog_tells_once_and_after_the_time() -> None:
    sleeps = elsewhere(1, 3, 41, call_in="clock_nanosleep")
    hung = [(float(at), [*waiting(0, 2, age=float(at)), sleeps]) for at in range(0, 100, 10)]
    assert alarms(samples(*hung), 40.0) == [(40.0, "missing")]


def test_the_watchdog_lets_a_long_step_and_a_slow_rank_be() -> None:
    busy = [(float(at), [*waiting(0, 2, age=float(at)), at_work(float(at))]) for at in range(0, 300, 10)]
    assert alarms(samples(*busy), 40.0) == []
    one_frame = [
        (float(at), [process(facts(None, 9, "compile", cpu=float(at)), None, "driver")]) for at in range(0, 300, 10)
    ]
    assert alarms(samples(*one_frame), 40.0) == []


def test_the_watchdog_tells_again_of_another_hang() -> None:
    sleeps = elsewhere(1, 3, 41, call_in="clock_nanosleep")
    first = [(float(at), [*waiting(0, 2, age=float(at)), sleeps]) for at in (0, 30, 60)]
    moved = [(float(at), waiting(0, 1, 2, seq=at)) for at in (70, 80)]
    again = [
        (float(at), [*waiting(0, 2, seq=99, age=at - 90.0), elsewhere(1, 3, 41, seq=98, call_in="clock_nanosleep")])
        for at in (90, 120, 150)
    ]
    assert alarms(samples(*first, *moved, *again), 40.0) == [(60.0, "missing"), (150.0, "missing")]


def test_ranks_that_do_the_same_are_blamed_together() -> None:
    # given two ranks that wait at one line for an event, a third that is done, and the driver that waits for them
    def at_event(rank: int) -> Document:
        return process(facts(rank, 14, "train"), rank)

    found = verdict([driver(), at_event(0), at_event(1), process(facts(2, 0), 2)], seconds=12.0)
    assert found.sentence.startswith("no progress: ranks 0,1 wait for a condition, an event or a call of C at"), found
    assert found.sentence.endswith("and the driver waits for them")


def test_ranks_that_are_missing_alike_are_all_named() -> None:
    late = [elsewhere(rank, 4, 41, call_in="clock_nanosleep") for rank in (0, 1)]
    found = verdict([*late, *waiting(2, 3, world=4)])
    is_about(found, "missing", 0, 41)
    assert found.sentence.endswith("; the same holds for rank 1"), found


def test_ranks_that_do_not_come_to_a_meeting_are_all_named() -> None:
    meets = process(facts(0, 20, inner=[(TORCH_FILE, 9, "init_process_group")], call=MEETS), 0)
    late = [process(facts(rank, 41, call_in="clock_nanosleep"), rank) for rank in (1, 2)]
    found = verdict([meets, *late], seconds=12.0)
    is_about(found, "missing", 1, 41)
    assert found.sentence.endswith("; the same holds for rank 2"), found


def met(rank: int, ip: str, *, through: bool = False) -> Document:
    """A rank on a machine of its own that meets two others; one that has come through makes a group of that."""
    call = {"op": "new_group", "ranks": [0, 1, 2]} if through else {**MEETS, "rank": rank, "place": "10.77.0.1:29500"}
    known = [group([], range(3), world="10.77.0.1:29500")] if through else []
    found = process(facts(rank if through else None, 20, "train", call=call, groups=known), rank)
    found["identity"] |= {"node_ip": ip}
    return found


def test_two_that_do_not_hear_each_other_where_a_third_has_come_through() -> None:
    found = verdict(
        [met(0, "10.77.0.1", through=True), met(1, "10.77.0.2"), met(2, "10.77.0.3")], seconds=12.0, patience=1.0
    )
    assert found.kind == "network" and "Worker rank 0 has come through it" in found.sentence, found.sentence
    assert "2 of 3 ranks are in init_process_group" in found.sentence, found.sentence


def test_one_that_comes_a_second_time_is_no_matter_of_the_network() -> None:
    others = [met(rank, f"10.77.0.{rank}", through=True) for rank in (0, 2)]
    found = verdict([*others, met(1, "10.77.0.2")], seconds=12.0, patience=1.0)
    assert found.kind == "missing", found.sentence


def test_those_who_have_not_come_may_be_of_another_role() -> None:
    alone = meeting(0, "PolicyTrainer", world_size=3)
    idles = [process(facts(None, 0), rank, "Engine") for rank in (1, 2)]
    found = verdict([driver(), alone, *idles], patience=1.0)
    assert found.sentence.endswith(
        "devkit sees no other PolicyTrainer process in this job; idle are Engine pid 1001 and Engine pid 1002"
    )


def makes(rank: int, made: int, ranks: list[int]) -> Document:
    call = {"op": "new_group", "ranks": ranks, "made": made}
    return process(facts(rank, 43, "train", call=call, inner=[(jobs.TORCH, 9, "new_group")]), rank)


def test_ranks_that_make_a_group_under_different_names() -> None:
    every = [0, 1, 2]
    found = verdict([makes(0, 3, every), makes(1, 2, every), makes(2, 3, every), driver()], seconds=12.0)
    assert found.kind == "mismatch" and found.sentence == (
        "ranks 0-2 are all in new_group at /job/train.py:43 in train, but under different names, since a group is "
        "named by how many its rank has made: ranks 0,2 have made 3 before, Worker rank 1 has made 2 before, the "
        "default one among them; one group not every rank has made, and each has to call every new_group, in the same "
        "order"
    )
    # who does not belong to a group does not wait for it, and goes on to the next one
    apart = verdict([makes(0, 1, [0, 2]), makes(1, 2, every), makes(2, 1, [0, 2]), driver()], seconds=12.0)
    assert apart.kind != "mismatch", apart.sentence
    alike = verdict([makes(0, 2, every), makes(1, 2, every), makes(2, 2, every), driver()], seconds=12.0)
    assert alike.kind == "network", alike.sentence


TORCH_FILE, MEETS = jobs.TORCH, {"op": "init_process_group", "world_size": 3}


@pytest.mark.parametrize(
    ("width", "heads"),
    [
        (None, "who pid doing step phase last collective where"),
        (200, "who pid doing step phase last collective where"),
        (80, "who pid doing phase last collective where"),
        (60, "who pid doing phase where"),
        (40, "who doing where"),
    ],
)
def test_a_table_that_is_too_wide_leaves_out_what_tells_least(width: int | None, heads: str) -> None:
    row = RankProgress(
        "PPOWorker", 0, "h", 301, "stopped", False, None, "score", "all_gather #2 of default_pg", TRAIN, 8, "f"
    )
    lines = [line.plain for line in table([row, replace(row, rank=1)], width=width)]
    assert lines[0].split() == heads.split() and len(lines) == 3
    assert all(len(line) <= (width or 200) and "/job/train.py:8" in line for line in lines[1:])


# ---- how processes are called, and what they wait for


def named(number: int, line: int, function: str, role: str, **changes: Any) -> Document:
    """A process without a rank, at work on a task or as an actor."""
    found = process(facts(None, line, function, **changes), None, role)
    return {**found, "identity": {**found["identity"], "pid": number, "worker_id": f"w{number}"}}


def in_get(number: int, role: str) -> Document:
    return named(number, 40, "update", role, inner=[(RAY, 7, "get")])


def test_several_of_a_role_are_counted_and_a_single_one_has_its_pid() -> None:
    waits = {"call_in": "futex"}
    found = verdict([driver(), in_get(7, "Engine"), in_get(8, "Engine"), named(9, 29, "fetch", "Manager", **waits)])
    assert found.evidence == (
        "2 Engines: wait for a Ray result at /job/train.py:40 in update",
        "Manager pid 9: waits for a condition, an event or a call of C at /job/train.py:29 in fetch",
        "driver: waits for a Ray result at /job/train.py:12 in main",
    )


def test_many_of_a_role_are_counted_in_the_sentence() -> None:
    shards = [in_get(number, "Shard") for number in range(4)]
    found = verdict([*shards, named(9, 29, "arrive", "Rendezvous"), driver()])
    assert found.sentence.endswith("in arrive, and 4 Shards and the driver wait for it"), found
    found = verdict([*shards[:2], named(9, 29, "arrive", "Rendezvous"), driver()])
    assert found.sentence.endswith("in arrive, and Shard pid 0, Shard pid 1 and the driver wait for it"), found


def test_ranks_that_do_the_same_do_it_in_the_plural() -> None:
    at_event = [process(facts(rank, 14, "train"), rank) for rank in (0, 1)]
    found = verdict([driver(), *at_event], seconds=12.0)
    assert "ranks 0,1: wait for a condition" in " ".join(found.evidence).replace("Worker ", "")


def test_those_who_meet_are_many() -> None:
    call = {"inner": [(TORCH_FILE, 9, "init_process_group")], "call": {**MEETS, "world_size": 5}}
    engines = [named(number, 17, "join", "EngineWorker", **call) for number in range(4)]
    found = verdict([*engines, named(9, 17, "join", "Trainer", **call)], seconds=12.0)
    assert "4 EngineWorkers, Trainer pid 9: are creating a process group at /job/train.py:17 in join" in found.evidence


def test_a_task_is_called_by_its_function() -> None:
    sleeps = {"call_in": "clock_nanosleep"}
    tasks = [named(number, 37, "load_kernel", "worker", task="load_kernel", **sleeps) for number in (7, 8)]
    found = verdict(tasks, seconds=12.0)
    said = "no progress: task load_kernel pid 7 and task load_kernel pid 8 sleep at /job/train.py:37 in load_kernel"
    assert found.sentence == said and found.culprit and found.culprit.role == "worker"
    assert found.evidence == ("2 tasks load_kernel: sleep at /job/train.py:37 in load_kernel",)


def test_a_collective_without_sizes_has_no_gap() -> None:
    odd = in_collective(1, 3)
    odd["facts"]["groups"] = [group([entry(6, "barrier", done=False, sizes=())], range(3))]
    found = verdict([*waiting(0, 2), odd])
    assert "group default_pg (3 ranks): rank 1: last is barrier #6, not done" in found.evidence


def test_where_each_of_those_is_that_the_debugger_has_paused() -> None:
    def paused(number: int, line: int, function: str, role: str, **changes: Any) -> Document:
        return named(number, line, function, role, stops=[f"s{number}"], **changes)

    main = paused(1, 38, "train", "driver")
    shards = [paused(number, 26, "shard_loss", "worker", task="shard_loss") for number in (2, 3)]
    assert verdict([main, *shards]).sentence == (
        "no hang: paused by the debugger: the driver at /job/train.py:38 in train; "
        "task shard_loss pid 2 and task shard_loss pid 3 at /job/train.py:26 in shard_loss"
    )
    assert verdict([main]).sentence == "no hang: the driver is paused by the debugger at /job/train.py:38 in train"
    four = [paused(number, number, "f", "Engine") for number in range(1, 6)]
    assert verdict(four).sentence.endswith("; Engine pid 3 at /job/train.py:3 in f; and at 2 more places")


@pytest.mark.parametrize(
    ("call", "target", "said"),
    [
        ("poll", "a pipe", "waits on a pipe (poll) at"),
        ("epoll_wait", "", "waits on file descriptors (epoll_wait) at"),
        ("recvfrom", "TCP a:1 to b:2", "waits for data from TCP a:1 to b:2 at"),
        ("write", "a pipe", "waits to write to a pipe at"),
        ("accept4", "TCP a:1", "waits for a peer to connect to TCP a:1 at"),
        ("connect", "TCP a:1 to b:2", "waits to connect over TCP a:1 to b:2 at"),
        ("openat", "", "waits to open a file at"),
        ("flock", "/job/lock", "waits for the lock of /job/lock at"),
        ("wait4", "", "waits for the end of a child process at"),
    ],
)
def test_what_an_io_wait_is_for(call: str, target: str, said: str) -> None:
    found = verdict([named(7, 9, "fit", "Trainer", call_in=call, target=target), driver()], seconds=12.0)
    assert found.kind == "io" and f"Trainer pid 7 {said}" in found.sentence
    assert f"Trainer pid 7: {said}" in found.evidence[0]


def test_the_page_shows_first_what_the_sentence_is_about() -> None:
    """The page's stack of a process is the one whose line the verdict gives, also where a lock is waited for."""
    names = ("MainThread", "loader")
    at = [{"file": TRAIN, "line": line, "function": name} for line, name in zip((51, 61), names, strict=True)]
    threads = [
        {"name": name, "frames": [place], "stopped": False, "state": "S", "wait": {"call": "futex"}}
        for name, place in zip(names, at, strict=True)
    ]
    locks = [{"thread": "loader", "lock": "a", "at": at[1], "holder": None, "held_at": None}]
    raw = answer([process(facts(None, 51, threads=threads, locks=locks), None, "Trainer")])
    first, last = read_sample(raw), read_sample({**raw, "time": NOW + 12.0})
    found = Diagnosis(diagnose(first, last), first, last, raw)
    text = page(found, cwd="/job").plain
    assert "waits for a lock at /job/train.py:61 in loader" in text.splitlines()[0]
    assert (
        "Trainer pid 1900  10.0.0.112\n  thread loader\n    loader  train.py:61\n  thread MainThread\n    MainThread"
        in text
    )


def test_what_has_failed_before_and_nobody_has_asked_for_is_told_of_a_hang() -> None:
    unread = CrashFacts("c9", "w9", "task learn", None, "KeyError: 'eos'", Frame(TRAIN, 55, "learn"), 90.0, None)
    waiting = process(facts(0, 20, "produce", call_in="clock_nanosleep"), 0)
    found = verdict([waiting, driver()], seconds=20.0, crashes=[unread])
    assert found.hang
    assert any("ago in task learn: crash c9: KeyError: 'eos' at" in line for line in found.evidence), found
