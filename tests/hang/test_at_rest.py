"""Jobs in which nobody is at work: what is a rest, what may be a wait for ever, and who is not idle."""

from __future__ import annotations

from typing import Any

import pytest

from tests.hang.jobs import TRAIN, driver, facts, frames, idle, in_collective, process, verdict
from tests.hang.test_calls import ANSWER_A, actor, actor_id, calls, wait

Document = dict[str, Any]
AT = {"file": TRAIN, "line": 12, "function": "main"}


def rests(what: str = "", **changes: Any) -> Document:
    """A driver that waits for something of its own."""
    inner = {"thread": "MainThread", "call": "main", "at": AT, "what": what, "count": 1, "free": False}
    return process(facts(None, 12, "main", primitives=[inner] if what else [], **changes), None, "driver")


@pytest.mark.parametrize("what", ["an item from a queue.Queue that is empty", "a threading.Event that is not set"])
def test_a_driver_that_waits_for_something_of_its_own_may_wait_for_ever(what: str) -> None:
    found = verdict([rests(what), idle(1, 1)], seconds=12.0)
    assert (found.kind, found.hang) == ("idle", False)
    assert found.sentence == (
        f"cannot tell: no process has anything to do: the driver waits for {what} at {TRAIN}:12 in main, and whether "
        "anything will end that can't be seen"
    ), found.sentence


def test_a_driver_that_polls_may_do_so_for_ever_and_one_that_sleeps_does_not() -> None:
    sleeps = {"call_in": "clock_nanosleep"}
    poll = {"thread": "MainThread", "at": AT, "by": AT, "loop": "while not ready", "values": {"ready": "False"}}
    polling = verdict([rests(polls=[poll], **sleeps), idle(1, 1)], seconds=12.0).sentence
    assert polling.startswith(f"cannot tell: no process has anything to do: the driver sleeps at {TRAIN}:12"), polling
    plain = verdict([rests(**sleeps), idle(1, 1)], seconds=12.0).sentence
    assert plain.startswith("no hang: no process has anything to do: the driver sleeps"), plain


def test_an_actor_at_which_a_call_waits_for_its_arguments_is_not_merely_idle() -> None:
    held = {"held_up": {actor_id("a"): ("Node.update",)}}
    found = verdict([rests(call_in="clock_nanosleep"), actor("a")], seconds=12.0, **held)
    waits = "Node pid 3097 is idle, and Node.update, which was called there, waits for its arguments"
    assert found.sentence.startswith("cannot tell: nothing moves: the driver sleeps"), found.sentence
    assert found.sentence.endswith(f"; {waits}") and f"Node pid 3097: {waits.partition(' 3097 ')[2]}" in found.evidence


def test_what_is_queued_behind_a_call_that_waits_for_its_arguments_is_named() -> None:
    known = {"held_up": {actor_id("a"): ("Node.update",)}, "unsent": {actor_id("a"): ("Node.push", "Node.push")}}
    found = verdict([rests(call_in="clock_nanosleep"), actor("a")], seconds=12.0, **known)
    assert found.sentence.endswith("waits for its arguments, with Node.push queued behind it"), found.sentence


def test_a_process_that_has_begun_a_call_and_is_in_no_line_of_the_program_is_not_idle() -> None:
    found = verdict([rests(call_in="clock_nanosleep"), actor("a")], seconds=12.0, tasks={"a": frozenset({"t"})})
    assert found.sentence.endswith("; Node pid 3097 has begun a call, in no line of the program"), found.sentence
    other = verdict([rests(call_in="clock_nanosleep"), actor("a")], seconds=12.0)
    assert "Node" not in other.sentence


def test_a_rank_whose_call_waits_for_its_arguments_is_missed_with_that() -> None:
    missing = idle(1, 2)
    missing["facts"]["actor_id"] = actor_id("a")
    found = verdict([in_collective(0, 2), missing, driver()], held_up={actor_id("a"): ("Rank.step",)})
    assert "it is idle, and Rank.step, which was called there, waits for its arguments" in found.sentence


def test_one_that_works_beside_what_is_waited_for_is_no_sign_that_this_goes_on() -> None:
    at = {"file": TRAIN, "line": 6, "function": "step"}
    inner = {"thread": "MainThread", "call": "step", "at": at, "what": "an Event that is not set", "count": 1}
    stands = actor("a", primitives=[inner | {"free": False}])
    stands["facts"]["threads"][0]["frames"] = frames((TRAIN, 6, "step"))
    asks = driver(waits=[wait(ANSWER_A, line=12, call="main")])

    def job(cpu: float) -> list[Document]:
        return [asks, stands, process(facts(None, 20, "watch", cpu=cpu, state="R"), None, "Monitor")]

    runs = {"calls": calls((ANSWER_A, "Node.step", "RUNNING", "a")), "running": {actor_id("a"): ("Node.step",)}}
    early, found = (verdict(job(1.0), job(9.0), seconds=seconds, **runs) for seconds in (2.0, 12.0))
    assert (early.hang, early.decided, found.hang, found.decided) == (False, False, False, True)
    assert found.sentence == (
        f"cannot tell: Monitor pid 1900 is working at {TRAIN}:20 in watch within 12 s, but nobody is seen to wait for "
        "it: the driver waits for Node.step, which runs in Node pid 3097; Node pid 3097 waits for an Event that is not "
        f"set at {TRAIN}:6 in step"
    ), found.sentence
    other = verdict(job(1.0), job(9.0), seconds=12.0).sentence
    assert other.startswith("no hang seen in 12 s: Monitor pid 1900 is working"), (
        "for whom the driver waits is not known"
    )
