"""Actors that wait for each other's calls: a circle is told, and never where a call can still be taken."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from devkit.debug.inworker import waits as waits_inside
from devkit.hang.answers import read_sample
from devkit.hang.facts import Call, Holder, NodeFacts, Pending
from devkit.hang.records import Verdict
from tests.hang.jobs import (
    NOW,
    RAY,
    TRAIN,
    answer,
    driver,
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
JOB = "01000000"
QUEUED, RUNNING = "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY", "RUNNING"


def actor_id(name: str) -> str:
    return (name.encode().hex() * 12)[:24] + JOB


def task_id(name: str, of: str = "") -> str:
    return (name.encode().hex() * 8)[:16] + (actor_id(of) if of else "f" * 24 + JOB)


def wait(*tasks: str, line: int = 6, call: str = "Node.ask", thread: str = "MainThread", **changes: Any) -> Document:
    at = {"file": TRAIN, "line": line, "function": call}
    found = {
        "thread": thread,
        "call": call,
        "at": at,
        "tasks": list(tasks),
        "needed": len(tasks),
        "ends": False,
        "side": False,
    }
    return {**found, **changes}


def actor(name: str, *waits: Document, concurrency: int = 1, role: str = "Node", **changes: Any) -> Document:
    """A process that waits for Ray, or is idle."""
    line, call = (waits[0]["at"]["line"], waits[0]["call"]) if waits else (0, "")
    known = facts(None, line, call, inner=[(RAY, 7, "get")], **changes)
    known |= {"waits": list(waits), "actor_id": actor_id(name) if role != "worker" else "", "concurrency": concurrency}
    made = process(known, None, role)
    made["identity"] |= {"worker_id": name, "pid": 3000 + ord(name[0])}
    return made


def calls(*rows: tuple[str, str, str, str]) -> dict[str, Call]:
    """Rows of Ray's table: task, name, state, and who runs it."""
    return {row[0]: Call(row[0], row[1], row[2], worker=row[3]) for row in rows}


ASK_A, ASK_B = task_id("askA", "a"), task_id("askB", "b")
ANSWER_A, ANSWER_B = task_id("ansA", "a"), task_id("ansB", "b")
TWO = [actor("a", wait(ANSWER_B)), actor("b", wait(ANSWER_A, line=9))]
TABLE = calls((ANSWER_A, "Node.answer", QUEUED, "a"), (ANSWER_B, "Node.answer", QUEUED, "b"))
BEGUN = ("Node.ask",)
ONE_EACH = {actor_id("a"): BEGUN, actor_id("b"): BEGUN}


def is_deadlock(found: Verdict) -> bool:
    return found.kind == "deadlock" and found.hang and found.decided


def told(
    processes: Iterable[Document],
    table: dict[str, Call] | None,
    running: dict[str, tuple[str, ...]] | None,
    **more: Any,
) -> Verdict:
    tables = {} if table is None else {"calls": table, "running": running or {}}
    return verdict([driver(), *processes], patience=1.0, **tables, **more)


def test_two_actors_that_wait_for_each_other() -> None:
    found = told(TWO, TABLE, ONE_EACH)
    assert is_deadlock(found)
    assert found.sentence == (
        "deadlock: Node pid 3097 waits at /job/train.py:6 in Node.ask for Node.answer, queued at Node pid 3098; "
        "Node pid 3098 waits at /job/train.py:9 in Node.ask for Node.answer, queued at Node pid 3097"
    )
    assert found.culprit is not None and (found.culprit.pid, found.culprit.line) == (3097, 6)
    assert any("driver" in line for line in found.evidence)


def test_without_ray_s_table_single_slots_tell() -> None:
    found = told(TWO, None, None)
    assert is_deadlock(found) and "for a call to Node pid 3098" in found.sentence
    busy = process(facts(5, 70, call_in="", cpu=1.0), 5, "Loader")
    later = process(facts(5, 71, call_in="", cpu=9.0), 5, "Loader")
    first, last = [driver(), *TWO, busy], [driver(), *TWO, later]
    assert verdict(first, last, patience=1.0).kind == "moves"  # a call may wait for an argument that is being made


def test_an_actor_that_waits_for_itself() -> None:
    inner = task_id("inner", "a")
    found = told(
        [actor("a", wait(inner, call="Me.outer"), role="Me")],
        calls((inner, "Me.inner", QUEUED, "a")),
        {actor_id("a"): BEGUN},
    )
    assert is_deadlock(found)
    assert found.sentence == "deadlock: Me pid 3097 waits at /job/train.py:6 in Me.outer for Me.inner, queued at itself"


def test_a_circle_through_a_task() -> None:
    through, answer_ = task_id("through"), task_id("answer", "a")
    processes = [
        actor("a", wait(through, call="Tasker.go"), role="Tasker"),
        actor("w", wait(answer_, line=15, call="through"), role="worker"),
    ]
    table = calls((through, "through", RUNNING, "w"), (answer_, "Tasker.answer", "SUBMITTED_TO_WORKER", "a"))
    found = told(processes, table, {actor_id("a"): BEGUN})
    assert is_deadlock(found)
    assert found.sentence == (
        "deadlock: Tasker pid 3097 waits at /job/train.py:6 in Tasker.go for through, which runs in worker pid 3119; "
        "worker pid 3119 waits at /job/train.py:15 in through for Tasker.answer, queued at Tasker pid 3097"
    )


def test_three_in_a_circle_and_a_fourth_that_waits_for_one() -> None:
    tasks = {name: task_id(f"t{name}", name) for name in "abc"}
    processes = [
        actor("a", wait(tasks["b"])),
        actor("b", wait(tasks["c"])),
        actor("c", wait(tasks["a"])),
        actor("d", wait(task_id("td", "a")), role="Onlooker"),
    ]
    table = calls(
        *((tasks[name], "Node.answer", QUEUED, name) for name in "abc"), (task_id("td", "a"), "Node.see", QUEUED, "a")
    )
    found = told(processes, table, {actor_id(name): BEGUN for name in "abcd"})
    assert is_deadlock(found) and found.sentence.count("waits at") == 3 and "Onlooker" not in found.sentence


def test_an_async_actor_of_one_slot() -> None:
    processes = [actor("a", wait(ANSWER_B, thread="task Task-2")), actor("b", wait(ANSWER_A, thread="task Task-7"))]
    assert is_deadlock(told(processes, TABLE, ONE_EACH))


def test_a_threaded_actor_all_of_whose_threads_wait() -> None:
    more = task_id("more", "b")
    both = [wait(ANSWER_B, thread="Dummy-1"), wait(more, thread="Dummy-2")]
    table = {**TABLE, **calls((more, "Node.answer", QUEUED, "b"))}
    processes = [actor("a", *both, concurrency=2), TWO[1]]
    assert is_deadlock(told(processes, table, {actor_id("a"): BEGUN * 2, actor_id("b"): BEGUN}))


# ---- what is no deadlock


def test_a_call_that_runs_already() -> None:
    table = {**TABLE, **calls((ANSWER_A, "Node.answer", RUNNING, "a"))}
    processes = [actor("a", wait(ANSWER_B), concurrency=2), TWO[1]]
    assert told(processes, table, {actor_id("a"): BEGUN * 2, actor_id("b"): BEGUN}).kind != "deadlock"


@pytest.mark.parametrize("concurrency", [2, 1000])
def test_an_actor_that_can_still_take_the_call(concurrency: int) -> None:
    processes = [actor("a", wait(ANSWER_B), concurrency=concurrency), TWO[1]]
    assert told(processes, TABLE, ONE_EACH).kind != "deadlock"
    assert told(processes, None, None).kind != "deadlock"


def test_another_group_of_calls_that_is_at_work() -> None:
    """Two calls run, and one of them waits: a group of the actor's own, with slots of its own, is busy."""
    processes = [actor("a", wait(ANSWER_B)), TWO[1]]
    assert told(processes, TABLE, {actor_id("a"): BEGUN * 2, actor_id("b"): BEGUN}).kind != "deadlock"


@pytest.mark.parametrize(
    "state", ["FINISHED", "FAILED", "PENDING_ARGS_AVAIL", "PENDING_NODE_ASSIGNMENT", "PENDING_ACTOR_TASK_ARGS_FETCH"]
)
def test_a_call_that_waits_for_something_else(state: str) -> None:
    table = {**TABLE, **calls((ANSWER_A, "Node.answer", state, "a"))}
    assert told(TWO, table, ONE_EACH).kind != "deadlock"


def test_a_wait_that_ends_by_itself() -> None:
    assert told([actor("a", wait(ANSWER_B, ends=True)), TWO[1]], TABLE, ONE_EACH).kind != "deadlock"


def test_a_wait_for_one_of_several() -> None:
    other = task_id("other")
    table = {**TABLE, **calls((other, "load", RUNNING, "w"))}
    processes = [actor("a", wait(ANSWER_B, other, needed=1)), TWO[1]]
    assert told(processes, table, ONE_EACH).kind != "deadlock"
    assert is_deadlock(told([actor("a", wait(ANSWER_B, other, needed=2)), TWO[1]], table, ONE_EACH))


def test_another_wait_than_before() -> None:
    first = [driver(), actor("a", wait(task_id("old", "b"))), TWO[1]]
    found = verdict(first, [driver(), *TWO], patience=1.0, calls=TABLE, running=ONE_EACH)
    assert found.kind != "deadlock"


def test_a_process_that_is_at_work_or_stopped() -> None:
    moved = [driver(), actor("a", wait(ANSWER_B), cpu=1.0), TWO[1]]
    last = [driver(), actor("a", wait(ANSWER_B), cpu=9.0), TWO[1]]
    assert verdict(moved, last, patience=1.0, calls=TABLE, running=ONE_EACH).kind != "deadlock"
    stopped = [driver(), actor("a", wait(ANSWER_B), stops=["s1"]), TWO[1]]
    assert verdict(stopped, patience=1.0, calls=TABLE, running=ONE_EACH).kind == "paused"


def test_a_thread_of_the_actor_s_own_has_no_slot() -> None:
    """What a thread of the program's waits for keeps no call from being taken."""
    processes = [actor("a", wait(ANSWER_B, side=True, thread="Thread-3")), TWO[1]]
    assert told(processes, TABLE, {actor_id("a"): (), actor_id("b"): BEGUN}).kind != "deadlock"
    beside = [actor("a", wait(ANSWER_B), wait(task_id("x"), side=True, thread="Thread-3")), TWO[1]]
    assert is_deadlock(told(beside, TABLE, ONE_EACH))


def test_a_young_wait_is_not_decided() -> None:
    found = verdict([driver(), *TWO], patience=10.0, calls=TABLE, running=ONE_EACH)
    assert found.kind == "deadlock" and not found.decided


def test_an_older_agent_tells_no_waits() -> None:
    bare = [driver(), process(facts(None, 6, "Node.ask", inner=[(RAY, 7, "get")]), 1)]
    assert verdict(bare).kind == "stuck"
    sample = read_sample(answer(bare), calls=TABLE)
    assert sample.processes[0].waits == () and sample.time == NOW and replace(sample) == sample
    assert frames((TRAIN, 1, "f"))


# ---- no circle: where the waits lead

STANDS = facts(None, 0)  # idle to the eye: what it runs is a library's
RUNS_A = calls((ANSWER_A, "Signal.wait", RUNNING, "a"))
LAST_WAITS = {
    "runs in a library's code": (RUNS_A, actor("a"), "Signal.wait, which runs in Node pid 3097, in no line"),
    "runs out of sight": (RUNS_A, None, "Signal.wait, which runs in a process that devkit has not seen"),
    "queued": (calls((ANSWER_A, "Node.answer", QUEUED, "")), actor("a"), "Node.answer, queued at Node pid 3097"),
    "arguments": (calls((ANSWER_A, "f", "PENDING_ARGS_AVAIL", "")), None, "f, whose arguments are not there yet"),
    "unknown": (None, None, "a result of which Ray does not say who computes it"),
}


@pytest.mark.parametrize("name", LAST_WAITS)
def test_what_the_last_of_those_who_wait_waits_for(name: str) -> None:
    table, holder, said = LAST_WAITS[name]
    processes = [actor("b", wait(ANSWER_A, line=9)), *([holder] if holder else [])]
    found = told(processes, table, {})
    assert found.kind == "stuck" and found.sentence.startswith("no progress: Node pid 3098 waits at"), found
    assert said in found.sentence and "nobody" not in found.sentence


def test_a_driver_alone_is_told_what_runs_for_it() -> None:
    waits = [wait(ANSWER_A, line=12, call="main")]
    found = verdict([driver(waits=waits), actor("a")], patience=1.0, calls=RUNS_A, running={})
    assert "the driver waits at" in found.sentence and "which runs in Node pid 3097" in found.sentence, found
    assert found.culprit and found.culprit.pid == 3097


def test_of_those_who_stand_who_runs_what_others_wait_for_is_blamed() -> None:
    # given an actor that waits for an event of its own and serves nobody, and one that runs what the driver waits for
    bystander, asked = actor("c", role="Store"), actor("a")
    for each in (bystander, asked):
        each["facts"] |= {"threads": facts(None, 30, "run")["threads"]}
    bystander["identity"]["rank"] = bystander["facts"]["rank"] = 0
    waits = [wait(ANSWER_A, line=12, call="main")]
    found = verdict([driver(waits=waits), bystander, asked], patience=1.0, calls=RUNS_A, running={})
    assert found.culprit and found.culprit.pid == 3097, found


# ---- resources that are held by who waits for those who ask for them

INNER = task_id("inner")
NODE = [NodeFacts("n", "10.0.0.1", {"CPU": 4.0, "sim": 2.0}, {"CPU": 4.0, "sim": 0.0})]
ASKED = [Pending("task", "inner", INNER, ({"CPU": 1.0, "sim": 1.0},))]


def outer(name: str, *tasks: str) -> Document:
    return actor(name, wait(*tasks, line=11, call="outer"), role="worker")


def holding(*names: str) -> list[Holder]:
    return [Holder("outer", JOB, False, {"sim": 1.0}, "task", name) for name in names]


def test_tasks_that_hold_what_their_own_tasks_ask_for() -> None:
    table = calls((INNER, "inner", "PENDING_NODE_ASSIGNMENT", ""))
    processes = [outer("a", INNER), outer("b", INNER)]
    found = told(processes, table, {}, pending=ASKED, nodes=NODE, holders=holding("a", "b"))
    assert is_deadlock(found)
    assert "it requests 1 CPU, 1 sim, and 4 of 4 CPU, 0 of 2 sim are free" in found.sentence
    assert "2 sim are held by 2 x task outer, which wait at /job/train.py:11 in outer for inner" in found.sentence
    assert found.culprit and found.culprit.line == 11


@pytest.mark.parametrize("name", ["one works", "one waits for something else", "only CPUs"])
def test_where_one_of_the_holders_may_end_it_is_no_deadlock(name: str) -> None:
    other, asked, holders = outer("b", task_id("else")), ASKED, holding("a", "b")
    if name == "one works":
        other = process(facts(None, 30, "outer", call_in="clock_nanosleep"), None, "worker")
        other["identity"]["worker_id"] = "b"
    if name == "only CPUs":
        asked = [Pending("task", "inner", INNER, ({"CPU": 9.0},))]
    found = told([outer("a", INNER), other], {}, {}, pending=asked, nodes=NODE, holders=holders)
    assert found.kind == "resource", found


def awaiting(name: str) -> Document:
    """A task that runs an event loop, in which it awaits something."""
    at = {"file": TRAIN, "line": 43, "function": "Agent.step"}
    inner = {"thread": "task 1", "call": "episode", "at": at, "what": "asyncio.gather", "count": 1, "free": False}
    made = process(facts(None, 43, "Agent.step", primitives=[inner]), None, "worker")
    made["identity"] |= {"worker_id": name, "pid": 3000 + ord(name)}
    return made


def test_calls_that_are_gathered_lead_to_who_has_them() -> None:
    """Given an actor that takes four calls at once, all of which wait for a permit, and a fifth that gives one back."""
    got = [task_id(f"get{at}", "b") for at in range(6)]
    at = {"file": TRAIN, "line": 6, "function": "Node.ask"}
    gathers = {"thread": "task 1", "call": "Node.ask", "at": at, "what": "asyncio.gather, of which 6 of 6 are not done"}
    asks = actor("a", wait(*got, thread="task 1"), primitives=[{**gathers, "count": 1, "free": False}])
    asks["facts"]["threads"][0]["wait"] = {"call": "epoll_wait"}
    permit = {"thread": "task 2", "call": "Gate.get", "at": {**at, "line": 22, "function": "Gate.get"}, "count": 4}
    permit |= {"what": "an asyncio.Semaphore with no permit left", "free": False}
    gate = actor("b", concurrency=4, primitives=[permit])
    gate["facts"] |= facts(None, 22, "Gate.get", primitives=[permit])
    gate["facts"] |= {"concurrency": 4, "actor_id": actor_id("b")}
    table = calls(*((task, "Gate.get", "RUNNING" if task in got[:4] else QUEUED, "b") for task in got))
    found = told([asks, gate], table, {})
    assert found.culprit is not None and found.culprit.line == 22, found.sentence
    assert (
        "waits for an asyncio.Semaphore with no permit left at /job/train.py:22 in Gate.get; all 4 calls that it"
        in (found.sentence)
    )


LOOP_AT = {"file": TRAIN, "line": 60, "function": "Node.run"}


def waits_for_notice(**changes: Any) -> Document:
    """An actor whose call waits for a condition that another call of it notifies."""
    place = {"file": TRAIN, "line": 26, "function": "Node.ask"}
    what = "an asyncio.Condition to be notified"
    inner = {"thread": "task 1", "call": "Node.ask", "at": place, "what": what, "count": 1, "free": False}
    ends = {"what": "self.cond", "how": "notified", "at": [{"line": 22, "function": "Node.publish"}]}
    line = {"at": place, "text": "await self.cond.wait()", "values": {}, "ends": ends | changes.pop("ends", {})}
    stacks = [{"thread": "task 1", "lines": [line]}, *changes.pop("beside", ())]
    made = actor("b", concurrency=1000)
    made["facts"] |= facts(None, 26, "Node.ask", primitives=[inner], statements=stacks)
    made["facts"] |= {"concurrency": 1000, "actor_id": actor_id("b"), **changes}
    return made


NO_CALL = "; no call of Node.publish, where it is notified, runs or is queued"


def test_that_no_call_runs_or_is_queued_that_would_end_a_wait() -> None:
    running = {actor_id("b"): ("Node.ask",)}
    found = verdict([driver(), waits_for_notice()], patience=1.0, running=running)
    assert f"at {TRAIN}:26 in Node.ask{NO_CALL}" in found.sentence, found.sentence
    queued = {actor_id("b"): ("Node.publish", "Node.publish")}
    found = verdict([driver(), waits_for_notice()], patience=1.0, running=running, queued=queued)
    assert "; 2 calls of Node.publish, where it is notified, are queued there" in found.sentence, found.sentence


@pytest.mark.parametrize(
    ("changes", "running"),
    [
        ({}, {}),
        ({}, {actor_id("b"): ()}),
        ({}, {actor_id("b"): ("Node.ask", "Node.publish")}),
        ({"ends": {"at": [{"line": 22, "function": "Node._publish"}]}}, {actor_id("b"): ("Node.ask",)}),
        ({"ends": {"at": [{"line": 22, "function": "Other.publish"}]}}, {actor_id("b"): ("Node.ask",)}),
        (
            {"beside": [{"thread": "t", "lines": [{"at": {**LOOP_AT}, "text": "x", "values": {}}]}]},
            {actor_id("b"): ("Node.ask",)},
        ),
    ],
    ids=[
        "nothing is known of its calls",
        "Ray has not its own call",
        "one runs",
        "not for others to call",
        "of another class",
        "a thread beside",
    ],
)
def test_of_what_may_end_it_otherwise_nothing_is_said(changes: Document, running: Any) -> None:
    found = verdict([driver(), waits_for_notice(**changes)], patience=1.0, running=running)
    assert "asyncio.Condition" in found.sentence and "runs or is queued" not in found.sentence, found.sentence


def test_of_an_actor_with_concurrency_groups_nobody_says_that_it_is_full() -> None:
    """Calls of another group may begin."""
    permit = {"thread": "t", "call": "Node.get", "at": {"file": TRAIN, "line": 22, "function": "Node.get"}, "count": 2}
    permit |= {"what": "a Semaphore with no permit left", "free": False}
    gate = actor("b", primitives=[permit])
    gate["facts"] |= facts(None, 22, "Node.get", primitives=[permit])
    gate["facts"] |= {"concurrency": 2, "actor_id": actor_id("b")}
    full = "; all 2 calls that it takes at once (max_concurrency) are there"
    assert full in verdict([driver(), gate], patience=1.0).sentence
    gate["facts"]["grouped"] = True
    assert full not in verdict([driver(), gate], patience=1.0).sentence


def test_tasks_that_have_started_others_and_rest_are_no_deadlock() -> None:
    """They may go on by themselves: as they stand, nobody knows that they wait for what they have started."""
    nodes = [NodeFacts("n", "10.0.0.1", {"CPU": 2.0}, {"CPU": 0.0})]
    holders = [Holder("episode", JOB, False, {"CPU": 1.0}, "task", name) for name in "ab"]
    asked = [Pending("task", "tool", f"p{at}", ({"CPU": 1.0},)) for at in range(2)]
    found = told([awaiting("a"), awaiting("b")], {}, {}, pending=asked, nodes=nodes, holders=holders)
    assert found.kind == "resource" and "deadlock" not in found.sentence, found
    assert found.sentence.endswith(
        "; 2 tasks episode of job 01000000 hold 1 CPU each; of these tasks, worker pid 3097 waits for asyncio.gather "
        f"at {TRAIN}:43 in Agent.step (1 more at the same line)"
    ), found.sentence


def test_what_a_holder_has_started_is_named_before_others_of_its_queue() -> None:
    nodes = [NodeFacts("n", "10.0.0.1", {"CPU": 2.0}, {"CPU": 0.0})]
    holders = [Holder("episode", JOB, False, {"CPU": 1.0}, "task", name, f"t{name}") for name in "ab"]
    asked = [Pending("task", "episode", "p0", ({"CPU": 1.0},), parent="driver")]
    asked.append(Pending("task", "tool", "p1", ({"CPU": 1.0},), parent="tb"))
    found = told([awaiting("a"), awaiting("b")], {}, {}, pending=asked, nodes=nodes, holders=holders)
    assert found.sentence.startswith("the task tool waits for resources that are in use: it requests 1 CPU, and 0 of 2")
    assert found.sentence.endswith("the task episode, which has started it, holds 1 CPU, and 1 more holds some, too")
    assert any("not while it awaits" in line for line in found.evidence)


def test_an_actor_whose_call_waits_for_an_actor_that_gets_no_place() -> None:
    born = actor_id("z")
    asked = [Pending("actor", "Judge", born, ({"GPU": 1.0},))]
    nodes = [NodeFacts("n", "10.0.0.1", {"GPU": 1.0}, {"GPU": 0.0})]
    holder = Holder("Node", JOB, False, {"GPU": 1.0}, "actor", actor_id("a"))
    waits = actor("a", wait(task_id("score", "z"), line=9))
    found = told([waits], None, None, pending=asked, nodes=nodes, holders=[holder])
    assert is_deadlock(found)
    assert "1 GPU is held by the actor Node, which waits at /job/train.py:9 in Node.ask for Judge" in found.sentence


def test_a_ray_get_in_a_coroutine_holds_up_the_loop_of_its_actor() -> None:
    waits = wait(ANSWER_A, call="Buffer.report", blocks=True)
    table = calls((ANSWER_A, "Buffer.size", QUEUED, ""))
    found = told([actor("a", waits, concurrency=1000)], table, {actor_id("a"): BEGUN})
    assert is_deadlock(found)
    assert found.sentence.endswith(
        "for Buffer.size, queued at itself, whose event loop a ray.get in a coroutine holds up"
    )
    # Ray lists what a loop has not come to as running, too
    scorer = actor("b", wait(ANSWER_A, line=9, call="Scorer.score"), role="Scorer")
    waits_for_it = wait(ANSWER_B, call="Buffer.run", blocks=True)
    both = calls((ANSWER_A, "Buffer.size", "RUNNING", ""), (ANSWER_B, "Scorer.score", "RUNNING", ""))
    begun = {actor_id("a"): ("Buffer.run", "Buffer.size"), actor_id("b"): ("Scorer.score",)}
    found = told([actor("a", waits_for_it, concurrency=1000), scorer], both, begun)
    assert is_deadlock(found) and "for Buffer.size, queued at Node pid 3097, whose event loop" in found.sentence, found
    awaits = {**waits, "blocks": False, "thread": "task 1"}
    assert not is_deadlock(told([actor("a", awaits, concurrency=1000)], table, {actor_id("a"): BEGUN}))


@pytest.mark.parametrize(("thread", "blocks"), [("AsyncIO Thread: default", True), ("loader", False)])
def test_which_waits_block_an_event_loop(thread: str, blocks: bool) -> None:
    ray: dict[str, Any] = {}
    code = "def get(object_refs, *, timeout=None):\n    return object_refs[0].look()\n"
    exec(compile(code, "/v/site-packages/ray/_private/worker.py", "exec"), ray)

    class Reference:
        def task_id(self) -> bytes:
            return bytes.fromhex(ANSWER_A)

        def look(self) -> Document | None:
            return waits_inside.of_thread(sys._getframe(1), thread)

    found = ray["get"]([Reference()])
    assert (found["tasks"], found["blocks"], found["side"]) == ([ANSWER_A], blocks, False)


@pytest.mark.parametrize(("timeout", "ends"), [(None, False), (9.0, True)])
def test_which_waits_end_by_themselves(timeout: float | None, ends: bool) -> None:
    """`ray.wait` makes a number of no time-out."""
    ray: dict[str, Any] = {}
    code = "def wait(ray_waitables, *, num_returns=1, timeout=None):\n"
    code += "    timeout = timeout if timeout is not None else 10**6\n"
    exec(compile(code + "    return ray_waitables[0].look()\n", "/v/site-packages/ray/_private/worker.py", "exec"), ray)

    class Reference:
        def task_id(self) -> bytes:
            return bytes.fromhex(ANSWER_A)

        def look(self) -> Document | None:
            return waits_inside.of_thread(sys._getframe(1), "MainThread")

    assert ray["wait"]([Reference()], timeout=timeout)["ends"] is ends


QUEUE_TASK = task_id("put", "a")


@pytest.mark.parametrize(
    ("method", "said"), [("put", "ray.util.queue.Queue that is full"), ("get", "ray.util.queue.Queue that is empty")]
)
def test_ray_s_own_queue_is_called_by_its_name(method: str, said: str) -> None:
    table = calls((QUEUE_TASK, f"_QueueActor.{method}", "RUNNING", ""))
    found = told([actor("b", wait(QUEUE_TASK, line=9)), actor("a", role="_QueueActor")], table, {})
    assert "waits at /job/train.py:9" in found.sentence and said in found.sentence, found


def test_a_queue_that_is_read_in_a_coroutine_blocks_the_loop_of_its_reader() -> None:
    """Whoever fills it waits for another call of the reader, which Ray lists as running."""
    reads = actor("b", wait(QUEUE_TASK, line=40, call="Node.fit", blocks=True), concurrency=1000)
    reads["facts"]["phase"] = "fit"
    done = task_id("begin", "b")
    fills = actor("c", wait(done, ANSWER_B, line=9, call="Filler.run"), role="Filler")
    table = calls((QUEUE_TASK, "_QueueActor.get", "RUNNING", ""), (ANSWER_B, "Node.version", "RUNNING", "b"))
    table |= calls((done, "Node.begin", "FINISHED", "b"))
    found = told([reads, fills, actor("a", role="_QueueActor")], table, {})
    assert (
        "for something from a ray.util.queue.Queue that is empty; that blocks the event loop of its actor, where "
        in (found.sentence)
    ), found
    assert found.sentence.endswith("waits for Node.version"), found
    assert any("for Node.version, queued at Node pid 3098, whose event loop is blocked" in e for e in found.evidence)


def test_what_a_process_says_that_it_waits_for_is_what_is_waited_for_at_its_line() -> None:
    """Of two threads, one of which waits for a call that runs, and the other one for one that is queued."""
    both = actor("b", wait(ANSWER_A, line=31, call="Tool.acquire"))
    at = both["facts"]["waits"][0]["at"]
    other = wait(task_id("release", "a"), line=36, call="Tool.release")
    both["facts"]["waits"] = [both["facts"]["waits"][0], {**other, "thread": "thread 2"}]
    both["facts"]["threads"][0]["frames"] = frames((TRAIN, 36, "Tool.release"))
    table = calls((ANSWER_A, "Bucket.acquire", "RUNNING", ""), (task_id("release", "a"), "Bucket.release", QUEUED, ""))
    found = told([both, actor("a", role="Bucket"), driver()], table, {})
    line = next(each for each in found.evidence if each.startswith("Node"))
    assert "Bucket.release, queued at" in line and ":36" in line, (at, line)


def test_a_generator_that_nobody_reads_keeps_its_actor() -> None:
    begun = {actor_id("a"): ("Node.stream",)}
    found = told([actor("b", wait(ANSWER_A, line=9)), actor("a")], calls((ANSWER_A, "Node.answer", QUEUED, "")), begun)
    assert "queued at Node pid 3097 behind Node.stream, which has begun and is in no line" in found.sentence, found


def test_a_call_of_an_actor_that_has_not_started() -> None:
    table = calls((ANSWER_A, "Node.answer", "PENDING_NODE_ASSIGNMENT", ""))
    found = told([actor("b", wait(ANSWER_A, line=9))], table, {})
    assert found.sentence.endswith("for Node.answer, whose actor is not running"), found


def test_who_waits_in_a_circle_that_is_not_proved_is_told_what_it_waits_for() -> None:
    table = calls((ANSWER_A, "Node.answer", "RUNNING", ""), (ANSWER_B, "Node.answer", "RUNNING", ""))
    found = told(TWO, table, {actor_id("a"): BEGUN * 2, actor_id("b"): BEGUN * 2})
    assert found.kind == "stuck" and "for Node.answer, which runs in Node pid 309" in found.sentence, found


def test_of_several_results_that_are_waited_for_one_that_is_there_is_no_cause() -> None:
    table = calls((ANSWER_A, "Node.answer", "FINISHED", "a"), (ANSWER_B, "Node.answer", QUEUED, "b"))
    both = [actor("c", wait(ANSWER_A, ANSWER_B)), actor("a"), actor("b")]
    found = told(both, table, {})
    assert "queued at Node pid" in found.sentence and "which has ended" not in found.sentence, found.sentence


def test_a_call_that_is_queued_behind_the_collective_that_waits_for_its_caller_is_a_deadlock() -> None:
    check = task_id("check", "e")
    engine = in_collective(1, 2, op="broadcast")
    engine["identity"] |= {"worker_id": "e", "role": "Engine"}
    engine["facts"] |= {"actor_id": actor_id("e"), "concurrency": 1}
    known = facts(0, 52, "Trainer.check", inner=[(RAY, 7, "get")], waits=[wait(check, line=52, call="Trainer.check")])
    known["groups"] = [group([entry(each) for each in range(1, 6)], range(2))]
    trainer = process(known, 0, "Trainer")
    found = told([trainer, engine], calls((check, "Engine.check", QUEUED, "e")), {})
    assert found.kind == "deadlock" and found.sentence == (
        f"deadlock: Trainer rank 0 waits at {TRAIN}:52 in Trainer.check for Engine.check, queued at Engine rank 1, "
        "and Engine rank 1 waits for it in broadcast #6 of group default_pg, for 20 s"
    ), found.sentence
    runs = told([trainer, engine], calls((check, "Engine.check", RUNNING, "e")), {})
    assert runs.kind == "missing" and "it waits for Engine.check, which runs in Engine rank 1, at" in runs.sentence


def loops_beside(**changes: Any) -> Document:
    """An async actor that sleeps in a background loop, at another line than the call that the other one waits for."""
    known = facts(None, 39, "Engine.run", call_in="clock_nanosleep", **changes)
    known |= {"actor_id": actor_id("b"), "concurrency": 1000}
    made = process(known, None, "Engine")
    made["identity"] |= {"worker_id": "b", "pid": 3098}
    return made


def test_a_loop_that_sleeps_beside_the_awaited_call_is_not_the_place() -> None:
    at = {"file": TRAIN, "line": 18, "function": "Engine.generate"}
    event = {"thread": "task 4", "call": "Engine.generate", "at": at, "what": "an asyncio.Event that is not set"}
    one = loops_beside(primitives=[{**event, "count": 3, "free": False}])
    asked = task_id("gen", "b")
    table = calls((asked, "Engine.generate", RUNNING, "b"))
    found = verdict([actor("a", wait(asked)), one], seconds=20.0, calls=table)
    assert found.sentence.startswith(
        f"no progress: Engine pid 3098 waits for an asyncio.Event that is not set at {TRAIN}:18 in Engine.generate; "
        "3 of its calls wait there"
    ), found.sentence
    other = verdict([actor("a", wait(asked)), one], seconds=20.0, calls=calls((asked, "Engine.run", RUNNING, "b")))
    assert f"Engine pid 3098 sleeps at {TRAIN}:39 in Engine.run" in other.sentence


def test_of_one_whose_awaited_call_waits_for_a_third_the_chain_goes_on() -> None:
    asked, further = task_id("gen", "b"), task_id("score", "c")
    one = loops_beside(waits=[wait(further, line=18, call="Engine.generate", thread="task 4")])
    idle = process({**facts(None, 0), "actor_id": actor_id("c"), "concurrency": 1}, None, "Scorer")
    table = calls((asked, "Engine.generate", RUNNING, "b"), (further, "Scorer.score", "PENDING_ARGS_AVAIL", ""))
    found = verdict([actor("a", wait(asked)), one, idle], seconds=20.0, calls=table)
    assert f"Engine pid 3098 waits at {TRAIN}:18" in found.sentence and "Scorer.score" in found.sentence, found.sentence


def test_a_rank_that_has_done_its_call_is_told_to_have_returned_from_it() -> None:
    ranks = [idle(0, 3), in_collective(1, 3), in_collective(2, 3)]
    ranks[0]["facts"] |= {"actor_id": actor_id("a")}
    done = task_id("upd", "a")
    table = calls((done, "Worker.update_policy", "FINISHED", "Worker-0"))
    found = verdict([*ranks, driver(waits=[wait(done, line=12, call="main")])], calls=table)
    assert "it has returned from Worker.update_policy and is idle, and" in found.sentence, found.sentence
    other = verdict([*ranks, driver()])
    assert "it is idle, with no call under way, and" in other.sentence, other.sentence


def in_coroutine(made: Document, task: str, line: int, call: str) -> Document:
    """An actor that is in a coroutine there, and whose event loop is idle."""
    [thread, *_] = made["facts"]["threads"] or [{"state": "S", "cpu": 0.0}]
    told = {"name": f"task {task}", "call": "", "frames": frames((TRAIN, line, call))}
    made["facts"]["threads"] = [{**thread, **told}]
    return made


def test_a_coroutine_that_awaits_another_actor_waits_for_that_and_not_for_itself() -> None:
    """The one to blame is at the end of the chain, as where a thread asks."""
    takes = in_coroutine(actor("a", wait(ANSWER_B, thread="task Task-2")), "Task-2", 6, "Node.ask")
    gives = in_coroutine(actor("b"), "Task-3", 22, "Node.answer")
    empty = {"what": "an item from an asyncio.Queue that is empty", "count": 1, "free": False}
    at = {"file": TRAIN, "line": 22, "function": "Node.answer"}
    gives["facts"] |= {"primitives": [{"thread": "task Task-3", "call": "Node.answer", "at": at, **empty}]}
    table = calls((ANSWER_B, "Node.answer", RUNNING, "b"))
    found = told([takes, gives], table, {actor_id("b"): ("Node.answer",)}, seconds=12.0)
    assert found.hang and found.culprit is not None and found.culprit.pid == 3098, found.sentence
    assert "Node pid 3098 waits for an item from an asyncio.Queue that is empty" in found.sentence
    assert "and Node pid 3097 and the driver wait for it" in found.sentence


def empty(made: Document, line: int) -> Document:
    """An async actor in a call that waits for something of its own."""
    at = {"file": TRAIN, "line": line, "function": "Node.answer"}
    waits = {"thread": "task Task-3", "call": "Node.answer", "at": at, "what": "an asyncio.Event that is not set"}
    made["facts"]["primitives"] = [{**waits, "count": 1, "free": False}]
    return in_coroutine(made, "Task-3", line, "Node.answer")


@pytest.mark.parametrize(("asked", "pid"), [("a", 3097), ("b", 3098)])
def test_of_two_that_wait_for_something_of_their_own_the_drivers_is_told(asked: str, pid: int) -> None:
    answer_of = {"a": ANSWER_A, "b": ANSWER_B}[asked]
    asks = driver()
    asks["facts"]["waits"] = [wait(answer_of, line=12, call="main")]
    rows = calls((ANSWER_A, "Node.answer", RUNNING, "a"), (ANSWER_B, "Node.answer", RUNNING, "b"))
    running = {actor_id("a"): ("Node.answer",), actor_id("b"): ("Node.answer",)}
    third = actor("c", wait({"a": ANSWER_B, "b": ANSWER_A}[asked], line=31))
    processes = [asks, empty(actor("a"), 22), empty(actor("b"), 24), third]
    found = verdict(processes, patience=1.0, seconds=12.0, calls=rows, running=running)
    assert found.culprit is not None and found.culprit.pid == pid, found.sentence


def test_a_call_that_ray_has_handed_to_a_blocked_event_loop_does_not_run() -> None:
    blocked = actor("b")
    blocked["facts"]["threads"] = [
        {"name": "AsyncIO Thread: default", "state": "S", "cpu": 0.0, "wait": {"call": "clock_nanosleep"}}
        | {"frames": frames((TRAIN, 25, "Node.serve"))}
    ]
    blocked["facts"]["phase"] = "serve"
    found = told(
        [actor("a", wait(ANSWER_B)), blocked], calls((ANSWER_B, "Node.answer", RUNNING, "b")), {}, seconds=12.0
    )
    said = "for Node.answer, queued at Node pid 3098, whose event loop is blocked"
    assert any(said in each for each in found.evidence), (found.sentence, found.evidence)


def test_a_call_that_is_tried_again_says_so() -> None:
    task = task_id("save", "a")
    waits = driver(waits=[wait(task, line=12, call="main")])
    sleeps = actor("a", role="Saver") | {}
    sleeps["facts"] |= facts(None, 30, "Saver.save", call_in="clock_nanosleep") | {"actor_id": actor_id("a")}
    for state, says in (
        ("RUNNING", "for Saver.save, which runs in Saver pid 3097 as its try number 3"),
        ("PENDING_ARGS_AVAIL", "for Saver.save, which Ray is to try again (2 so far failed)"),
    ):
        table = {task: Call(task, "Saver.save", state, "a", attempt=2)}
        found = verdict([waits, sleeps], patience=1.0, calls=table, running={})
        assert any(says in line for line in found.evidence), found.evidence


FLAG = {"loop": "while self.running", "values": {"self.running": "True"}, "by": [{"line": 30, "function": "stop"}]}


def streams(endless: Document | None = FLAG, **changes: Any) -> Document:
    """An actor at work in a loop that its one call is in."""
    at = {"file": TRAIN, "line": 41, "function": "Node.run"}
    line = {"at": at, "text": "time.sleep(0.1)", "values": {}, "loop": None, "endless": endless}
    found = actor("a", statements=[{"thread": "MainThread", "lines": [line]}])
    found["facts"]["threads"][0]["frames"] = frames((TRAIN, 41, "Node.run"))
    found["facts"] |= changes
    return found


def asked(**changes: Any) -> Document:
    found = driver(waits=[wait(ANSWER_A, line=12, call="main", **changes)])
    return found


QUEUED_AT_A = {"calls": calls((ANSWER_A, "Node.set_weights", QUEUED, "")), "running": {actor_id("a"): ("Node.run",)}}


def test_a_call_behind_a_loop_that_only_another_call_ends() -> None:
    jobs = [asked(), streams()], [asked(), streams(process={"state": "R", "cpu": 9.0, "children_cpu": 0.0, "io": 0})]
    found = verdict(*jobs, patience=1.0, **QUEUED_AT_A)
    assert (found.kind, found.hang) == ("stuck", True) and found.culprit is not None and found.culprit.line == 41
    assert found.sentence == (
        f"no progress: the driver waits at {TRAIN}:12 in main for Node.set_weights, queued at Node pid 3097, which "
        "takes one call at a time and is in the loop `while self.running` (self.running = True) at "
        f"{TRAIN}:41 in Node.run: "
        f"only an exception or a call of stop ({TRAIN}:30) would end it, as far as {TRAIN} shows, and that call can't "
        "begin either"
    ), found.sentence
    forever = [asked(), streams({"loop": "while True", "values": {}, "by": []})]
    assert verdict(forever, patience=1.0, **QUEUED_AT_A).sentence.endswith(
        "nothing in that loop ends it, unless something in it raises an exception"
    )


@pytest.mark.parametrize(
    "job",
    [
        [asked(ends=True), streams()],  # the driver's wait has a time-out
        [asked(), streams(concurrency=2)],
        [asked(), streams(None)],
    ],
)
def test_what_may_still_begin_is_told_of_nobody(job: list[Document]) -> None:
    assert "in the loop `while self.running`" not in verdict(job, patience=1.0, **QUEUED_AT_A).sentence


def test_a_call_whose_arguments_do_not_come_says_which_result_is_missing() -> None:
    weights = task_id("w", "a")
    waits = wait(ANSWER_B, line=12, call="main", near={"version": task_id("v", "a"), "weights": weights})
    table = calls(
        (ANSWER_B, "Node.load", "PENDING_ARGS_AVAIL", ""),
        (task_id("v", "a"), "Node.version", "FINISHED", "a"),
        (weights, "Node.get_weights", QUEUED, ""),
    )
    held = {"running": {actor_id("a"): ()}, "held_up": {actor_id("a"): ("Node.update",)}}
    found = verdict([driver(waits=[waits]), actor("a"), actor("b")], patience=1.0, calls=table, **held)
    assert found.kind == "stuck" and found.sentence == (
        f"no progress: the driver waits at {TRAIN}:12 in main for Node.load, whose arguments are not there yet: "
        "weights is a result of Node.get_weights, queued at Node pid 3097 behind Node.update, whose arguments are not "
        "there yet"
    ), found.sentence


@pytest.mark.parametrize("shared", [False, True])
def test_a_lock_that_its_holder_wants_again_is_a_deadlock_and_a_permit_may_come_from_others(shared: bool) -> None:
    at = {"file": TRAIN, "line": 9, "function": "Node.load"}
    inner = {"thread": "task 1", "call": "Node.refresh", "at": at, "what": "an asyncio.Lock", "count": 1, "free": False}
    held = {"holder": "task 1", "holder_call": "Node.refresh", "held_at": at | {"line": 5}, "shared": shared}
    stands = actor("a", primitives=[inner | held], concurrency=1000)
    stands["facts"]["threads"][0] |= {"name": "task 1", "frames": frames((TRAIN, 9, "Node.load"))}
    asks, table = driver(waits=[wait(ANSWER_A, line=12, call="main")]), calls((ANSWER_A, "Node.refresh", RUNNING, "a"))
    found = verdict([asks, stands], patience=1.0, calls=table, running={actor_id("a"): ("Node.refresh",)})
    assert is_deadlock(found) is not shared
    if not shared:
        assert found.sentence == (
            f"deadlock: Node pid 3097 waits at {TRAIN}:9 in Node.load for an asyncio.Lock, which Node.refresh holds"
        ), found.sentence


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ("PENDING_ACTOR_TASK_ARGS_FETCH", "whose arguments are still on their way to its process"),
        ("FAILED", "which has failed, and whose error has not come"),
        ("FINISHED", "which has ended"),
    ],
)
def test_how_far_a_call_is_that_neither_waits_for_its_turn_nor_runs(state: str, says: str) -> None:
    table = calls((ANSWER_A, "Node.answer", state, ""))
    found = verdict([driver(waits=[wait(ANSWER_A, line=12, call="main")]), actor("a")], patience=1.0, calls=table)
    assert found.sentence == f"no progress: the driver waits at {TRAIN}:12 in main for Node.answer, {says}"


LOOP = {
    "loop": "while not self.closing.is_set()",
    "values": {"self.closing": "<Event not set>"},
    "by": [{"line": 34, "function": "close"}],
}


def service(**changes: Any) -> Document:
    """An actor whose `run` turns, and sleeps, until somebody calls `close`."""
    at = {"file": TRAIN, "line": 23, "function": "Hub.run"}
    line = {"at": at, "text": "await asyncio.sleep(0.5)", "values": {}, "endless": LOOP}
    polls = [{"thread": "task Task-1", "at": at, "by": at, "loop": LOOP["loop"], "values": LOOP["values"]}]
    known = facts(None, 23, "Hub.run", inner=[(RAY, 7, "sleep")], polls=polls, **changes)
    known |= {"statements": [{"thread": "task Task-1", "lines": [line]}], "actor_id": actor_id("h"), "concurrency": 9}
    made = process(known, None, "Hub")
    made["identity"] |= {"worker_id": "h", "pid": 4000}
    return made


RUN, ROLL = task_id("run", "h"), task_id("roll", "r")
JOINED = calls((RUN, "Hub.run", RUNNING, "h"), (ROLL, "Roll.out", "FINISHED", "r"))


def joins(*more: Document, running: str = "Hub.run", needed: int = 2) -> Verdict:
    """Somebody waits for a service and for a call that has ended, as if both were work."""
    waiter = actor("w", wait(ROLL, RUN, line=70, call="join", needed=needed), role="worker")
    return verdict([waiter, service(), *more], patience=1.0, calls=JOINED, running={actor_id("h"): (running,)})


def test_who_joins_a_service_waits_for_a_call_that_nobody_makes() -> None:
    found = joins()
    assert (found.kind, found.hang, found.culprit and found.culprit.line) == ("stuck", True, 70), found
    assert found.sentence == (
        "no progress: worker pid 3119 waits at /job/train.py:70 in join for Hub.run, which is in the loop "
        "`while not self.closing.is_set()` (self.closing = <Event not set>) at /job/train.py:23 in Hub.run in "
        "Hub pid 4000: only an exception or a call of close (/job/train.py:34) would end it, as far as "
        "/job/train.py shows, and no process of the job is at work that may call it"
    )


@pytest.mark.parametrize("more", [{"running": "Hub.close"}, {"needed": 1}])
def test_a_service_that_is_about_to_end_or_is_not_needed_keeps_nobody(more: dict[str, Any]) -> None:
    assert "no process of the job is at work" not in joins(**more).sentence


def test_how_many_of_several_results_are_there() -> None:
    assert any("Hub.run, which runs in Hub pid 4000 (1 of 2 results is there)" in each for each in joins().evidence)


def test_somebody_who_sleeps_may_call_what_ends_a_service() -> None:
    sleeper = process(facts(5, 70, call_in="clock_nanosleep"), 5, "Timer")
    assert "no process of the job is at work" not in joins(sleeper).sentence


FLUSH = task_id("flush", "b")


def twice(call: str, name: str = "asyncio.Event that is not set") -> Document:
    """An actor two of whose methods wait, and which is said to be in the one that nobody waits for."""
    rows = [("Node.run", 60, "a threading.Condition to be notified"), (call, 26, name)]
    inner = [
        {"thread": f"t{line}", "call": each, "count": 1, "free": False, "what": what}
        | {"at": {"file": TRAIN, "line": line, "function": each}}
        for each, line, what in rows
    ]
    made = actor("b", concurrency=2)
    made["facts"] |= facts(None, 60, "Node.run", primitives=inner) | {"concurrency": 2, "actor_id": actor_id("b")}
    return made


def test_of_two_waits_of_an_actor_that_of_the_call_is_told_for_which_others_wait() -> None:
    waiter = actor("w", wait(FLUSH, line=70, call="join"), role="worker")
    table = calls((FLUSH, "Node.flush", RUNNING, "b"))
    found = told([waiter, twice("Node.flush")], table, {})
    assert f"Node pid 3098 waits for asyncio.Event that is not set at {TRAIN}:26 in Node.flush" in found.sentence
    assert found.culprit is not None and found.culprit.line == 26
    asleep = told([waiter, twice("Node.flush", "asyncio.sleep to end")], table, {})
    assert f"Node pid 3098 sleeps at {TRAIN}:26 in Node.flush" in asleep.sentence, asleep.sentence
    other = told([waiter, twice("Node.check")], table, {})
    assert f"at {TRAIN}:60 in Node.run" in other.sentence, other.sentence
