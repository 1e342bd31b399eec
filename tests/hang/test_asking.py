"""A loop that asks Ray again and again while nobody else has anything to do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from devkit.hang import asking
from devkit.hang.answers import read_sample
from devkit.hang.case import case_of
from devkit.hang.diagnose import diagnose
from devkit.hang.watchdog import progressed
from tests.hang.jobs import NOW, RAY, TRAIN, Document, answer, facts, process, verdict

LOOP = {"loop": "while len(batch) < wanted", "values": {"batch": "dict of 3", "wanted": "24"}}


def asker(turns: int, *, values: Document | None = None, line: int = 32, **changes: Any) -> Document:
    asking = {**LOOP, "values": LOOP["values"] if values is None else values}
    at = {"file": TRAIN, "line": line, "function": "collect"}
    said = {"at": at, "text": "time.sleep(0.01)", "values": {}, "asking": asking, "locals": {"ready": "[3]"}}
    known = facts(None, line, "collect", call_in="clock_nanosleep", **changes)
    known["threads"][0]["turns"] = turns
    return process({**known, "statements": [{"thread": "MainThread", "lines": [said]}]}, None, "driver")


def rest() -> list[Document]:
    return [process(facts(rank, 0), rank) for rank in range(2)]


def test_it_is_a_hang_with_the_loop_and_its_values() -> None:
    found = verdict([asker(10), *rest()], [asker(900), *rest()], seconds=12.0)
    assert found.hang and found.kind == "stuck" and found.decided
    assert found.sentence == (
        "no progress: the driver is in the loop `while len(batch) < wanted` (batch = dict of 3, wanted = 24) "
        f"at {TRAIN}:32 in collect, where nothing that this looks at has changed in 12 s; it asks Ray for results, "
        "and no other process is seen at work"
    )
    assert found.evidence[-1] == f"the driver at {TRAIN}:32 in collect: ready = [3]"
    young = verdict([asker(10), *rest()], [asker(900), *rest()], seconds=2.0)
    assert young.hang and not young.decided, "more samples are taken"


@pytest.mark.parametrize(
    "last",
    [
        pytest.param([asker(11), *rest()], id="one long sleep"),
        pytest.param([asker(900, values={"batch": "dict of 4", "wanted": "24"}), *rest()], id="it gets on"),
        pytest.param([asker(900), process(facts(0, 40), 0), *rest()[1:]], id="somebody is at something"),
        pytest.param([asker(900, values={}), *rest()], id="nothing is known of what it looks at"),
    ],
)
def test_what_gets_on_or_sleeps_long_is_none(last: list[Document]) -> None:
    found = verdict([asker(10), *rest()], last, seconds=12.0)
    assert "in the loop `while len(batch)" not in found.sentence, found.sentence


def test_one_that_asks_without_a_sleep_is_a_hang_too() -> None:
    def spins(cpu: float, values: Document | None = None) -> Document:
        at = {"file": TRAIN, "line": 32, "function": "collect"}
        wait = {"thread": "MainThread", "call": "collect", "at": at, "tasks": ["t" * 48], "needed": 1}
        found = asker(3, values=values, cpu=cpu, waits=[wait | {"ends": True, "side": False}])
        found["facts"]["threads"][0] |= {"state": "R"}
        found["facts"]["process"] = {"state": "R", "cpu": cpu, "children_cpu": 0.0, "io": 0}
        return found

    found = verdict([spins(1.0), *rest()], [spins(12.0), *rest()], seconds=12.0)
    assert (found.kind, found.decided) == ("stuck", True) and "it asks Ray for results" in found.sentence, found
    other = {"batch": "dict of 4", "wanted": "24"}
    assert not verdict([spins(1.0), *rest()], [spins(12.0, other), *rest()], seconds=12.0).hang
    works = process(facts(0, 40, cpu=9.0, state="R"), 0)
    assert not verdict([spins(1.0), *rest()], [spins(12.0), works, *rest()[1:]], seconds=12.0).hang


def test_one_wait_without_a_time_out_looks_around_too_and_asks_only_once() -> None:
    """Once a second: in twenty seconds that is as often as a slow loop asks."""

    def waits(turns: int, task: str = "t") -> list[Document]:
        wait = {"thread": "MainThread", "call": "collect", "at": {"file": TRAIN, "line": 32, "function": "collect"}}
        found = asker(turns, waits=[wait | {"tasks": [task * 48], "needed": 1, "ends": False, "side": False}])
        found["facts"]["threads"][0]["frames"].insert(0, {"file": RAY, "line": 9, "function": "get"})
        return [found, *rest()]

    assert "asks Ray" not in verdict(waits(10), waits(31), seconds=21.0).sentence
    assert "asks Ray" in verdict(waits(10, "s"), waits(31), seconds=21.0).sentence, "another one by now"


def test_neither_is_one_whose_call_runs_or_waits_for_room() -> None:
    first, last = [asker(10), *rest()], [asker(900), *rest()]
    found = verdict(first, last, seconds=12.0, tasks={"Worker-1": frozenset({"t"})})
    assert not found.hang, found.sentence


def test_who_waits_for_the_one_that_asks_is_no_reason_against_it() -> None:
    def sample(turns: int) -> list[Document]:
        waits = process(facts(None, 12, "main", inner=[("/v/site-packages/ray/_private/worker.py", 7, "get")]), None)
        return [asker(turns), waits, *rest()]

    found = verdict(sample(10), sample(900), seconds=12.0)
    assert found.hang and "all others are idle or wait, as Worker pid 1900 does" in found.sentence


def test_who_stands_still_is_to_blame_and_not_who_asks() -> None:
    def sample(turns: int, line: int) -> list[Document]:
        return [asker(turns, line=line), process(facts(0, 40, "run", call_in="clock_nanosleep"), 0), *rest()[1:]]

    found = verdict(sample(10, 32), sample(900, 33), seconds=12.0, tasks={"Worker-0": frozenset({"t"})})
    assert found.sentence == (
        f"no progress: Worker rank 0 sleeps at {TRAIN}:40 in run; the driver asks Ray again and again in the loop "
        f"`while len(batch) < wanted` (batch = dict of 3, wanted = 24) at {TRAIN}:33 in collect"
    )
    assert found.hang and found.decided and not verdict(sample(10, 32), sample(900, 33), seconds=2.0).decided


def test_to_the_watchdog_it_is_no_progress() -> None:
    first, last = [asker(10), *rest()], [asker(900, line=33), *rest()]
    before, now = read_sample(answer(first)), read_sample(answer(last, NOW + 12))
    assert not progressed(before, now)
    working = read_sample(answer([asker(900, line=33), process(facts(0, 40), 0), *rest()[1:]], NOW + 12))
    assert progressed(before, working), "it has come to a line"


def without_end(turns: int, rank: int, *, kept: str = "5f", line: int = 57) -> Document:
    """A worker whose loop nothing ends; it awaits an actor, sleeps, and begins anew."""
    asking = {"loop": "while True", "values": {"rewards": "[1.0, 0.0]"}, "kept": kept}
    at = {"file": TRAIN, "line": line, "function": "Rollout.run"}
    said = {"at": at, "text": "await asyncio.sleep(0.05)", "values": {}, "asking": asking, "locals": {}}
    known = facts(rank, line, "run", call_in="clock_nanosleep")
    known["threads"][0]["turns"] = turns
    return process({**known, "statements": [{"thread": "task Task-1", "lines": [said]}]}, rank, "Rollout")


def test_a_coroutine_turns_with_the_thread_of_its_loop() -> None:
    def sample(turns: int) -> list[Document]:
        worker = without_end(0, 1)
        known = worker["facts"]
        [thread] = known["threads"]
        loop = {**thread, "name": "AsyncIO Thread: default", "turns": turns, "frames": []}
        known["threads"] = [{**thread, "name": "task Task-3", "call": ""}, loop]
        return [worker, admission(running="9")]

    assert "in the loop `while True`" in verdict(sample(10), sample(900), seconds=12.0).sentence
    assert "in the loop" not in verdict(sample(10), sample(11), seconds=12.0).sentence


def admission(**attributes: str) -> Document:
    return process({**facts(0, 0), "keeps": attributes}, 0)


def test_loops_that_nothing_ends_are_a_hang_where_nothing_changes() -> None:
    def sample(turns: int, line: int) -> list[Document]:
        return [asker(turns), without_end(turns, 1), without_end(turns, 2, line=line), admission(running="9")]

    found = verdict(sample(10, 57), sample(900, 59), seconds=12.0)
    assert found.hang and found.kind == "stuck" and found.culprit is not None and found.culprit.role == "Rollout"
    loop = "`while True` (rewards = [1.0, 0.0])"
    assert (
        f"in the loop {loop} at {TRAIN}:57 in Rollout.run, where nothing that this looks at has changed"
        in found.sentence
    )
    assert "they ask Ray for results; the driver does so in the loop `while len(batch) < wanted`" in found.sentence
    assert found.sentence.endswith("; no other process is seen at work"), found.sentence


@pytest.mark.parametrize(
    ("kept", "running"), [("6a", "9"), ("5f", "8")], ids=["its own variables", "what an actor has"]
)
def test_they_are_none_where_something_changes(kept: str, running: str) -> None:
    first = [without_end(10, 1), admission(running="9")]
    found = verdict(first, [without_end(900, 1, kept=kept, line=59), admission(running=running)], seconds=12.0)
    assert not found.hang, found.sentence


def test_a_task_that_has_just_begun_is_none_that_lasts() -> None:
    first, last = [asker(10), *rest()], [asker(900), *rest()]
    before = read_sample(answer(first), tasks={"Worker-1": frozenset({"t1"})})
    now = read_sample(answer(last, NOW + 12), tasks={"Worker-1": frozenset({"t2"})})
    assert asking.settled(case_of(before, now, 0.0)).states[0].asks


def polls(turns: int) -> list[Document]:
    """A driver that asks a buffer for a sample, which has too little for one; only another method adds to that."""
    found = asker(turns)
    [stack] = found["facts"]["statements"]
    asked = [{"actor": "ac", "method": "sample", "line": 28, "answer": "groups"}]
    loop = {"loop": "while (groups := ray.get(buffer.sample.remote(4))) is None", "values": {"groups": "None"}}
    stack["lines"][0]["asking"] = {**loop, "kept": "5f", "asked": asked}
    adds = {"line": 12, "function": "Buffer.add"}
    growing = {"file": TRAIN, "methods": {"sample": {"reads": ["groups"], "in": [adds]}}}
    known = facts(None, 0, actor_id="ac", keeps={"groups": "list of 2"}, growing=growing)
    return [found, process(known, None, "Buffer")]


def test_it_says_whom_it_asks_for_what_and_what_would_have_to_change_for_another_answer() -> None:
    found = verdict(polls(10), polls(900), seconds=12.0)
    assert found.hang and found.decided
    assert found.sentence.endswith(
        f"; it asks Buffer pid 1900 for sample at {TRAIN}:28, and groups, what that gives, is None; sample reads "
        f"groups (list of 2), and only Buffer.add ({TRAIN}:12) would set or add to it, as far as {TRAIN} shows: no "
        "call of that is seen, and no other process is seen at work"
    ), found.sentence
    taken = polls(900)
    taken[1]["facts"]["growing"]["methods"]["sample"]["takes"] = True
    assert "would set, add to or take from it" in verdict(polls(10), taken, seconds=12.0).sentence
    works = [process(facts(1, 40, cpu=cpu, state="R"), 1, "Filler") for cpu in (1.0, 9.0)]
    busy = verdict([*polls(10), works[0]], [*polls(900), works[1]], seconds=12.0)
    assert not busy.hang and "no call of that" not in busy.sentence, busy.sentence


def with_asked(turns: int, asked: list[Document], **changes: Any) -> list[Document]:
    found = polls(turns)
    found[0]["facts"]["statements"][0]["lines"][0]["asking"] |= {"asked": asked, **changes}
    return found


CLAIM = {"actor": "ac", "method": "sample", "line": 75, "answer": "", "test": "ray.get(claimed.remote(ahead))"}


def test_the_condition_that_has_not_held_is_told_with_the_arguments_of_the_call() -> None:
    asked = [{**CLAIM, "values": {"ahead": "5"}}]
    found = verdict(with_asked(10, asked), with_asked(900, asked), seconds=12.0)
    assert (
        f"; it asks Buffer pid 1900 for sample at {TRAIN}:75, and `if ray.get(claimed.remote(ahead))` (ahead = 5) has "
        "not held; sample reads groups (list of 2), and only" in found.sentence
    ), found.sentence


def test_of_several_whose_answers_may_keep_it_none_is_picked_out() -> None:
    asked = [{**CLAIM, "method": "size", "line": 30, "test": ""}, {**CLAIM, "test": "", "answer": "groups"}]
    found = verdict(with_asked(10, asked), with_asked(900, asked), seconds=12.0)
    each = f"Buffer pid 1900 for size at {TRAIN}:30 and Buffer pid 1900 for sample at {TRAIN}:75"
    assert f"; it asks {each}, and no other" in found.sentence, found.sentence
    nobody = verdict(with_asked(10, []), with_asked(900, []), seconds=12.0)
    assert "; it asks Ray for results, and" in nobody.sentence, nobody.sentence


def test_values_that_this_round_does_not_look_at_are_not_shown_and_are_no_change() -> None:
    first, last = with_asked(10, [], stale=["groups"]), with_asked(900, [])
    found = verdict(last[:1] + first[1:], with_asked(1800, [], stale=["groups"]), seconds=12.0)
    assert found.hang and "is None` at" in found.sentence and "(groups = None)" not in found.sentence, found.sentence


def test_who_is_seen_between_two_questions_waits_for_no_condition() -> None:
    first, last = polls(10), polls(900)
    last[0]["facts"]["threads"][0]["wait"] = {"call": "futex"}
    found = verdict(first, last, seconds=12.0)
    assert any(line.startswith("driver: asks Ray again and again at") for line in found.evidence), found.evidence


def test_a_driver_that_asks_once_in_a_while_is_not_said_to_have_nothing_to_do() -> None:
    """Of the first look it is not known what it looked at then."""
    blind = polls(10)
    blind[0]["facts"]["statements"] = []
    first, now = read_sample(answer(blind)), read_sample(answer(polls(900), NOW + 2.0))
    found = diagnose(first, now)
    assert found.kind == "idle" and not found.decided and "no process has anything to do" not in found.sentence
    assert f"in which it asks Buffer pid 1900 for sample at {TRAIN}:28, and groups, what that gives, is None" in (
        found.sentence
    ), found.sentence
    assert diagnose(first, replace(now, time=NOW + 12.0)).decided
