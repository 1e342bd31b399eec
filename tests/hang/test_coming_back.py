"""Loops that compute without end, since their variables come back to the same values."""

from __future__ import annotations

from itertools import chain, repeat
from typing import Any

import pytest

from devkit.hang.answers import read_sample
from devkit.hang.facts import Call
from devkit.hang.gather import Diagnosis, watch_until_decided
from tests.hang.jobs import NOW, TRAIN, answer, driver, facts, frames, process

Document = dict[str, Any]
STATES = {"expr": ["'0.5'", "'.5'"], "changed": ["False", "True"]}


def rewrites(token: str = "frame 1", line: int = 24, function: str = "canonical") -> Document:
    """A process that computes in such a loop, in a call that `token` stands for; empty: nothing is seen of that."""
    found = process(facts(0, line, function, state="R"), 0, "Verifier")
    found["facts"]["threads"][0] |= {"frames": frames((TRAIN, line, function)), "state": "R"}
    place = {"file": TRAIN, "line": 21, "function": "canonical"}
    turn = {"at": place, "loop": "while changed", "values": {}, "whole": token, "states": STATES}
    found["facts"]["turning"] = [turn] if token else []
    found["facts"]["process"] = {"state": "R", "cpu": 0.0, "children_cpu": 0.0, "io": 0}
    return found


def watched(*looks: list[Document], **tables: Any) -> Diagnosis:
    """What is decided of a job, looked at every two seconds; the last look is taken again."""
    rows = chain(looks, repeat(looks[-1]))
    samples = ((next(rows), NOW + 2.2 * number) for number in range(100))

    def take() -> tuple[Any, dict[str, Any]]:
        (first, *others), now = next(samples)
        worked = first | {"facts": first["facts"] | {"process": first["facts"]["process"] | {"cpu": now - NOW}}}
        return read_sample(answer([worked, *others], now), **tables), {}

    return watch_until_decided(take, 10.0, wait=lambda _: None)


def test_a_loop_that_comes_back_to_the_same_values_for_long_enough_is_a_livelock() -> None:
    found = watched([rewrites(), driver()], [rewrites(line=26), driver()], [rewrites(), driver()])
    assert found.verdict.kind == "livelock" and found.verdict.decided and found.verdict.hang
    assert found.last.time - found.first.time >= 20.0
    assert found.verdict.sentence == (
        f"no progress: Verifier rank 0 is in the loop `while changed` at {TRAIN}:21 in canonical; the loop's variables "
        "come back to the same values again and again, for at least 22 s: expr = '0.5' or '.5', changed = False or True"
    ), found.verdict.sentence
    late = watched([rewrites(""), driver()], [rewrites(), driver()])
    assert late.verdict.kind == "livelock", "it began meanwhile"


def test_one_that_was_missed_in_between_is_the_same_call() -> None:
    found = watched([rewrites(), driver()], [rewrites(""), driver()], [rewrites(), driver()])
    assert found.verdict.kind == "livelock"


def test_its_thread_may_be_one_of_a_pool_for_which_the_main_thread_waits() -> None:
    assert watched([rewrites(line=50, function="verify"), driver()]).verdict.kind == "livelock"


def in_a_pool() -> Document:
    """The same in a thread of a pool, for whose end the main thread waits."""
    found = rewrites(line=50, function="verify")
    found["facts"]["threads"][0] |= {"state": "S"}
    at = {"file": TRAIN, "line": 50, "function": "verify"}
    wait = {"thread": "MainThread", "call": "verify", "at": at, "what": "the end of thread pool_0", "count": 1}
    found["facts"]["primitives"] = [{**wait, "free": False, "joins": "pool_0", "closes": True}]
    lines = [{"at": {"file": TRAIN, "line": 24, "function": "canonical"}, "text": "new = rule(expr)", "values": {}}]
    found["facts"]["statements"] = [
        {"thread": "MainThread", "lines": [{"at": at, "text": "with pool:", "values": {}}]},
        {"thread": "pool_0", "lines": lines},
    ]
    return found


def test_the_thread_of_a_pool_that_is_in_it_is_named_with_who_waits_for_it() -> None:
    found = watched([in_a_pool(), driver()]).verdict
    assert found.kind == "livelock" and (
        f"in the loop `while changed` at {TRAIN}:21 in canonical in its thread pool_0, for whose end it waits at "
        f"{TRAIN}:50 in verify; the loop's variables come back" in found.sentence
    ), found.sentence
    ends = "as long as its variables come back, nothing in its function ends the loop `while changed`"
    assert found.evidence[-1] == ends, "a signal's handler runs in the main thread"
    main = watched([rewrites(), driver()]).verdict.evidence[-1]
    assert main == f"{ends}; a signal may"


def test_one_that_has_ended_is_not_watched_for_longer() -> None:
    found = watched([rewrites(), driver()], [rewrites(""), driver()])
    assert found.last.time - found.first.time < 9.0


def elsewhere(line: int) -> Document:
    """A driver that goes on."""
    return driver() | {"facts": facts(None, line, "main")}


@pytest.mark.parametrize(
    "looks",
    [
        [[rewrites(f"frame {number}"), driver()] for number in range(20)],  # one call after the other
        [[rewrites(), driver()], [rewrites(""), driver()]],  # it has ended, or got on
        [[rewrites(), elsewhere(12 + number)] for number in range(20)],  # nobody waits for it
        [[rewrites(line=50 + number, function="next_one"), driver()] for number in range(20)],  # left behind in it
    ],
)
def test_of_one_that_may_get_on_nothing_is_said(looks: list[list[Document]]) -> None:
    found = watched(*looks)
    assert found.verdict.kind == "moves" and "again and again" not in found.verdict.sentence


def waits_for(other: str, line: int = 70) -> Document:
    """A driver that waits for a call of an actor."""
    place = {"file": TRAIN, "line": line, "function": "main"}
    wait = {"thread": "MainThread", "call": "main", "at": place, "tasks": [other], "needed": 1}
    return driver(waits=[wait | {"ends": False, "side": False}])


CALLS = {
    "aa": Call("aa", "Verifier.verify", "RUNNING", "Verifier-0"),
    "bb": Call("bb", "Learner.fit", "RUNNING", "Worker-1"),
}


def test_it_says_who_waits_for_it() -> None:
    found = watched([rewrites(), waits_for("aa")], calls=CALLS).verdict
    assert found.kind == "livelock" and found.sentence.endswith("; the driver waits for Verifier rank 0")
    busy = [process(facts(1, line, cpu=float(line)), 1) for line in range(20)]
    found = watched(*([rewrites(), waits_for("aa"), each] for each in busy), calls=CALLS).verdict
    assert found.kind == "livelock", "the driver waits for it, whatever others do"


def test_what_others_swallow_is_not_why() -> None:
    at = {"file": TRAIN, "line": 26, "function": "score"}
    row = {"kind": "ValueError", "text": "no", "at": at, "by": at, "how": "any", "seconds": 99.0, "ago": 0.1}
    swallows = [process(facts(1, 20, caught=[{**row, "count": 100 * count}]), 1) for count in range(1, 20)]
    found = watched(*([rewrites(), driver(), each] for each in swallows)).verdict
    assert found.kind == "livelock" and "may be why" not in found.sentence


def test_it_is_not_to_blame_for_a_wait_for_somebody_else() -> None:
    rests = process(facts(1, 50, call_in="clock_nanosleep"), 1)
    found = watched([rewrites(), waits_for("bb"), rests], calls=CALLS).verdict
    assert found.kind == "moves"
