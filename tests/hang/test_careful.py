"""What a sentence must not claim: each of these once said more than was known."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from devkit.debug.inworker import locks, primitives
from devkit.debug.stack_groups import Frame
from devkit.hang.facts import CrashFacts
from tests.debug.test_primitives import run, seen
from tests.hang.jobs import NOW, TORCH, TRAIN, driver, facts, idle, in_collective, process, verdict
from tests.hang.test_diagnose import FROZEN, catching, waiting

Document = dict[str, Any]
__all__ = ["run"]


def sized(rank: int, sizes: list[list[int]], op: str = "all_reduce", at: int = -1) -> Document:
    found = in_collective(rank, 3, op=op, line=36)
    found["facts"]["groups"][0]["entries"][at]["sizes"] = sizes
    return found


def test_what_a_tracer_has_stopped_no_signal_resumes() -> None:
    traced = FROZEN | {"process": FROZEN["process"] | {"state": "t"}}
    found = verdict([*waiting(0, 2), traced])
    assert found.kind == "frozen" and "kill -CONT" not in found.sentence
    assert found.sentence.endswith("was stopped by a tracer such as gdb or strace; it goes on when that lets it")


def test_shapes_of_as_many_elements_go_together_and_what_is_done_holds_up_nobody() -> None:
    assert verdict([*waiting(0, 2), sized(1, [[32]])]).kind == "network", "as many elements"
    assert verdict([*waiting(0, 2), sized(1, [[8, 5]])]).kind == "mismatch"
    assert verdict([*waiting(0, 2), sized(1, [[8, 5]], at=2)]).kind == "network", "all were through that one"


def test_ranks_of_one_machine_need_no_route_and_other_sizes_are_told() -> None:
    found = verdict([*waiting(0, 2, op="all_gather"), sized(1, [[8, 5]], "all_gather")])
    assert found.sentence.endswith(
        "and no rank is missing, but their sizes differ: all_gather [8, 4] and all_gather [8, 5]; "
        "all of them are on 10.0.0.0"
    ), found.sentence


def test_a_rank_that_is_not_in_the_group_may_have_left_it() -> None:
    left = idle(1, 3)
    left["facts"]["groups"] = []
    found = verdict([*waiting(0, 2), left])
    assert "rank 1 is not in the group: it has left it, or was started anew; " in found.sentence, found.sentence


def test_a_rank_that_raised_and_left_its_group_is_told_by_its_error() -> None:
    """As where a handler destroys the group and raises again."""
    left = idle(1, 3)
    left["facts"]["groups"] = []
    crash = CrashFacts("c1", "Worker-1", "Worker", 1, "IndexError: of range", Frame(TRAIN, 65, "load"), NOW - 21, None)
    found = verdict([*waiting(0, 2), left], crashes=[crash])
    assert found.kind == "raised" and found.sentence.startswith(
        "Worker rank 1 raised IndexError: of range at /job/train.py:65 in load, and is not in the group; "
    ), found.sentence
    old = replace(crash, time=NOW - 1000)  # the others have gone on together since
    assert verdict([*waiting(0, 2), left], crashes=[old]).kind == "dead"


def test_a_rank_that_makes_another_group_meanwhile_has_not_left() -> None:
    call = {"op": "new_group", "ranks": [0, 1, 2], "made": 2}
    makes = [process(facts(rank, 43, "train", call=call, inner=[(TORCH, 9, "new_group")]), rank) for rank in (0, 1)]
    found = verdict([*makes, in_collective(2, 3, op="broadcast", age=24.0)])
    assert found.kind == "missing" and found.sentence.startswith(
        "Worker rank 0 makes another process group at /job/train.py:43 in train, having made 2 before, the default one "
        "among them, and Worker rank 2 waits for it in broadcast #6 of group default_pg, for 24 s: each rank has to"
    ), found.sentence
    assert found.sentence.endswith("; the same holds for rank 1")


@pytest.mark.parametrize(("kind", "verdicts"), [("Empty", "idle"), ("KeyError", "failing")])
def test_a_time_out_that_is_caught_again_and_again_is_no_failure(kind: str, verdicts: str) -> None:
    serves = catching()
    serves["facts"]["caught"][0]["kind"] = kind
    serves["facts"]["threads"][0]["frames"] = []
    sleeps = process(facts(None, 12, "main", call_in="clock_nanosleep"), None, "driver")
    assert verdict([sleeps, serves], seconds=20.0).kind == verdicts


def test_threads_of_the_programs_own_take_no_slot_of_an_actor() -> None:
    at = {"file": TRAIN, "line": 20, "function": "step"}
    wait = {"thread": "t", "call": "step", "at": at, "what": "an item", "free": False, "count": 4, "side": 4}
    found = verdict([process(facts(0, 20, primitives=[wait], concurrency=4), 0), driver()], seconds=20.0)
    assert "max_concurrency" not in found.sentence and "; 4 of its threads wait there" in found.sentence


def test_which_threads_are_the_programs_own(run: Callable[[Callable[[], object]], None]) -> None:
    event = threading.Event()

    def waits() -> None:
        event.wait()

    run(waits)
    assert seen(primitives.describe, "waits")["side"] == 1
    event.set()


def test_who_gave_up_a_lock_after_a_time_does_not_hold_it(run: Callable[[Callable[[], object]], None]) -> None:
    lock, end, failed = threading.Lock(), threading.Event(), threading.Event()

    def gives_up() -> None:
        if not lock.acquire(timeout=0.01):
            failed.set()
            end.wait()

    def wants() -> None:
        with lock:
            pass

    with lock:
        run(gives_up)
        assert failed.wait(20)
        run(wants)
        found = seen(locks.describe, "wants")
        assert found["holder"] == threading.current_thread().name, found
    end.set()
