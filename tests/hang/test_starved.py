"""Processes that a busy machine does not run in time: neither work nor Python's lock."""

from __future__ import annotations

from typing import Any

from tests.hang.jobs import RAY, TRAIN, driver, elsewhere, facts, frames, in_collective, process, verdict

Document = dict[str, Any]
HOLDS = [{"name": "MainThread", "frames": frames((TRAIN, 45, "hold"))}]
RESTS: list[Document] = [{"name": "MainThread", "frames": []}]


def mute(number: int, threads: list[Document], cpu: float = 1.0) -> Document:
    return process(None, number, process={"state": "S", "cpu": cpu}, threads=threads)


def mute_driver(cpu: float = 1.0) -> Document:
    found = driver()
    return {**found, "facts": None, "error": "no answer", "process": {"state": "S", "cpu": cpu}, "threads": HOLDS}


def test_where_the_driver_or_who_rests_is_mute_too_nothing_is_known() -> None:
    found = verdict([mute_driver(), mute(1, HOLDS)], patience=1.0)
    assert (found.kind, found.hang) == ("idle", False)
    assert found.sentence == (
        "cannot tell: Worker rank 1 and the driver did not answer in time, as where a machine is too busy to run them "
        "all; ask again, or when it is less busy"
    )
    found = verdict([driver(), mute(1, HOLDS), mute(2, RESTS)], patience=1.0)
    assert found.sentence.startswith("cannot tell: ranks 1,2 did not answer in time")
    assert not any("GIL" in line for line in found.evidence)


def test_one_that_is_mute_alone_or_such_as_stand_in_the_program_are_not_starved() -> None:
    for processes in ([driver(), mute(1, HOLDS)], [driver(), mute(1, HOLDS), mute(2, HOLDS)]):
        assert "did not answer in time" not in verdict(processes, patience=1.0).sentence
    rests = process(facts(2, 0), 2)
    assert "did not answer in time" not in verdict([mute_driver(), rests], patience=1.0).sentence


def test_who_answered_before_and_does_not_now_is_not_at_work() -> None:
    """A worker of a busy machine that is late once, while all that it does is to wait."""
    stands = process(facts(1, 45, "hold"), 1)
    found = verdict([driver(), stands], [driver(), mute(1, HOLDS)], seconds=12.0, patience=1.0)
    assert (found.hang, found.decided) == (False, False)
    assert found.sentence.startswith("cannot tell: Worker rank 1 did not answer in time"), found.sentence
    assert not any("GIL" in line for line in found.evidence), found.evidence
    # What it has computed until now is less of itself, without what the looks at it cost, than it is from outside.
    seen = verdict([driver(), stands], [driver(), mute(1, HOLDS, cpu=99.0)], seconds=12.0, patience=1.0)
    assert seen.sentence == found.sentence
    works = process(facts(2, 20, cpu=9.0, state="R"), 2)
    found = verdict([driver(), stands, works], [driver(), mute(1, HOLDS), process(facts(2, 21), 2)], seconds=12.0)
    assert "did not answer" not in found.sentence, found.sentence


def test_who_does_not_answer_once_is_not_named_among_those_who_work() -> None:
    stands = process(facts(1, 45, "hold", call_in="read", target="a pipe"), 1)
    then, now = process(facts(2, 20), 2), process(facts(2, 21), 2)
    for late in (mute(1, HOLDS), process(None, 1)):
        found = verdict([driver(), stands, then], [driver(), late, now])
        assert found.sentence.startswith("no hang seen in 2.0 s: Worker rank 2 is working"), found.sentence
        assert not any("GIL" in line for line in found.evidence), found.evidence


def test_a_process_that_nobody_can_see_any_more_does_not_work() -> None:
    found = verdict([driver(), process(facts(1, 45), 1)], [driver(), process(None, 1)])
    assert found.sentence.startswith("cannot tell: Worker rank 1 did not answer in time"), found.sentence
    assert (found.hang, found.decided) == (False, False)


def test_a_rank_that_does_not_answer_once_is_not_called_slow() -> None:
    """Given others that have waited for it in a collective, for long."""
    there = [in_collective(rank, 3, age=60.0) for rank in (0, 2)]
    reads = elsewhere(1, 3, 45, call_in="read", target="a pipe")
    for late in (mute(1, HOLDS), process(None, 1)):
        found = verdict([driver(), *there, reads], [driver(), *there, late])
        assert (found.hang, found.decided) == (False, False)
        assert found.sentence.startswith("cannot tell: Worker rank 1 did not answer in time, and ranks 0,2 wait for it")


def test_a_rank_that_does_not_answer_once_is_not_at_work_while_others_meet() -> None:
    meets = process(facts(0, 17, "join", call={"op": "init_process_group", "world_size": 2, "rank": 0}), 0)
    found = verdict([driver(), meets, process(facts(1, 45), 1)], [driver(), meets, mute(1, HOLDS)])
    assert found.sentence.startswith("cannot tell: Worker rank 1 did not answer in time, and Worker rank 0 waits in")
    assert not found.decided


ASYNC = "/v/lib/python3.11/site-packages/ray/_private/async_compat.py"
LOOP = "AsyncIO Thread: default"


def served(seconds: float, ran: float, turns: int, *, state: str = "S") -> Document:
    """An async actor whose call awaits an event; its main thread has wanted a core for so long, and had it."""
    known = facts(
        1,
        45,
        "ask",
        threads=[
            {"name": "MainThread", "frames": frames((RAY, 900, "main_loop")), "stopped": False, "state": state,
             "cpu": 1.0 + seconds, "ran": 1.0 + ran, "turns": 100 + turns},
            {"name": LOOP, "frames": frames(("/usr/lib/python3.11/selectors.py", 468, "select")), "stopped": False,
             "state": "S", "cpu": 0.1, "ran": 0.1, "turns": 9, "wait": {"call": "epoll_wait"}},
            {"name": "task Task-7", "frames": frames((TRAIN, 45, "ask"), (ASYNC, 52, "wrapper")), "stopped": False},
        ],
    )  # fmt: skip
    return process(known, 1, "Server")


def test_who_waits_for_a_core_only_to_look_around_does_not_work() -> None:
    """Ray's main thread looks for signals each hundredth of a second, and waits long for a core each time."""
    found = verdict([driver(), served(0.0, 0.0, 0)], [driver(), served(1.6, 0.004, 90)], patience=1.0)
    assert found.kind == "stuck" and "Server rank 1 waits" in found.sentence, found


def test_who_computes_with_little_of_a_core_works() -> None:
    """Its turns on a core are few, and as long as the others let it."""
    found = verdict([driver(), served(0.0, 0.0, 0)], [driver(), served(1.9, 0.012, 36)], patience=1.0)
    assert (found.kind, found.hang) == ("moves", False) and "is working" in found.sentence, found
    older = [served(seconds, 0.0, 0) for seconds in (0.0, 1.9)]  # which does not say how long it ran
    for each in older:
        del each["facts"]["threads"][0]["ran"]
    assert verdict([driver(), older[0]], [driver(), older[1]]).kind == "moves"


def test_who_sleeps_in_a_loop_is_often_seen_waiting_for_a_core() -> None:
    """At both looks, by chance: it has had many short turns in between, and who computes has not."""

    def polls(ran: float, turns: int) -> Document:
        thread = {"name": "MainThread", "frames": frames((TRAIN, 45, "until"), (RAY, 900, "main_loop")), "state": "R"}
        return process(facts(1, 45, threads=[{**thread, "cpu": 50 * ran, "ran": ran, "turns": turns}]), 1)

    assert verdict([driver(), polls(1.0, 100)], [driver(), polls(1.002, 150)]).kind != "moves"
    assert verdict([driver(), polls(1.0, 100)], [driver(), polls(1.012, 136)]).kind == "moves"
    assert verdict([driver(), polls(1.0, 100)], [driver(), polls(1.0, 100)]).kind == "moves", "it has had none at all"
