"""Loops that come round and count the same."""

from __future__ import annotations

from itertools import chain, repeat
from typing import Any

import pytest

from devkit.hang.answers import read_sample
from devkit.hang.gather import Diagnosis, watch_until_decided
from tests.hang.jobs import NOW, TRAIN, answer, driver, facts, frames, process, verdict

Document = dict[str, Any]
WANTS = "while len(kept) < wanted"
NUMPY = "/v/site-packages/numpy/core.py"
ASKS = "scores = ray.get(refs)"


def asks(task: str, kept: str, *, at: int = 12, loop: str = WANTS, text: str = ASKS, seen: bool = True) -> Document:
    """A driver that waits for a result within a loop."""
    place = {"file": TRAIN, "line": at, "function": "main"}
    wait = {"thread": "MainThread", "call": "main", "at": place, "tasks": [task], "needed": 1}
    found = driver(waits=[wait | {"ends": False, "side": False}])
    around = {"loop": loop, "values": {"kept": kept, "wanted": "8"}, "whole": kept if seen else ""}
    found["facts"]["statements"] = [
        {"thread": "MainThread", "lines": [{"at": place, "text": text, "values": {}, "loop": around}]}
    ]
    return found


def job(cpu: float, task: str, kept: str = "{}", **how: Any) -> list[Document]:
    return [asks(task, kept, **how), process(facts(0, 20, cpu=cpu, state="R"), 0)]


def test_a_loop_that_comes_round_and_counts_the_same_is_a_livelock() -> None:
    found = verdict(job(1.0, "a"), job(9.0, "b"), seconds=21.0)
    assert found.hang and found.decided and found.culprit is not None and found.culprit.role == "driver"
    assert found.sentence == (
        "no progress: the driver is in the loop `while len(kept) < wanted` (kept = {}, wanted = 8) at /job/train.py:12 "
        "in main, which has come round, and nothing that it looks at has changed in 21 s, "
        "though Worker rank 0 has been at work meanwhile at /job/train.py:20 in step"
    ), found.sentence
    assert not verdict(job(1.0, "a"), job(9.0, "b"), seconds=12.0).decided, "one turn may rightly bring nothing"
    assert verdict(job(1.0, "a", at=14), job(9.0, "b"), seconds=21.0).hang, "it came back to a line above"


def scores(rank: int, count: int, **changes: Any) -> Document:
    """A worker that swallows what its scoring raises, each time."""
    at = {"file": TRAIN, "line": 26, "function": "score"}
    row = {"kind": "ValueError", "text": "no", "at": at, "by": {**at, "line": 40}, "count": count, "how": "any"}
    return process(facts(rank, 20, caught=[{**row, "seconds": 99.0, "ago": 0.1, **changes}]), rank)


def test_what_is_swallowed_while_a_loop_goes_round_in_vain_may_be_why() -> None:
    then, now = ([*job(cpu, task), scores(1, one), scores(2, 100)] for cpu, task, one in ((1, "a", 100), (9, "b", 164)))
    found = verdict(then, now, seconds=21.0)
    assert found.kind == "livelock" and found.sentence.endswith(
        "; Worker rank 1 has caught the same error 64 times meanwhile, which may be why: "
        "ValueError: no at /job/train.py:26 in score, caught at /job/train.py:40 in score"
    ), found.sentence
    assert "Worker rank 1 has caught ValueError: no 164 times" in " ".join(found.evidence), "in all"
    both = verdict(then, [*job(9.0, "b"), scores(1, 164), scores(2, 140)], seconds=21.0)
    assert "ranks 1,2 have caught the same error 104 times meanwhile, which may be why: " in both.sentence


@pytest.mark.parametrize(
    ("first", "now"),
    [
        (scores(1, 100), scores(1, 102)),  # hardly any
        (scores(1, 100, how="named"), scores(1, 164, how="named")),  # a way of working
        (scores(1, 100, kind="Empty"), scores(1, 164, kind="Empty")),
        (process(facts(1, 20), 1), scores(1, 164)),  # since when is not known
    ],
)
def test_what_is_meant_to_be_caught_is_not_why_a_loop_goes_round(first: Document, now: Document) -> None:
    found = verdict([*job(1.0, "a"), first], [*job(9.0, "b"), now], seconds=21.0)
    assert found.kind == "livelock" and "may be why" not in found.sentence


@pytest.mark.parametrize(
    ("first", "now"),
    [
        (job(1.0, "a"), job(9.0, "a")),  # one long call
        (job(1.0, "a"), job(9.0, "b", kept="dict of 1")),
        (job(1.0, "a"), job(9.0, "b", at=14)),  # further down: the same turn
        (job(1.0, "a", seen=False), job(9.0, "b", seen=False)),  # what it counts may be a property
        (job(1.0, "a", loop="while self.running"), job(9.0, "b", loop="while self.running")),
        (job(1.0, "a", loop="for x in xs"), job(9.0, "b", loop="for x in xs")),
        (job(1.0, "a", text="s = [ray.get(r) for r in rs]"), job(9.0, "b", text="s = [ray.get(r) for r in rs]")),
        (job(1.0, "a", text="s = ray.get("), job(9.0, "b", text="s = ray.get(")),  # cut: not to be read
    ],
)
def test_whatever_may_get_further_is_none(first: list[Document], now: list[Document]) -> None:
    assert not verdict(first, now, seconds=21.0).hang


def asks_through(task: str, at: int) -> list[Document]:
    """A driver whose loop calls a function that asks Ray, at one of several lines."""
    inner = {"file": TRAIN, "line": 5, "function": "ask"}
    wait = {"thread": "MainThread", "call": "main", "at": inner, "tasks": [task], "needed": 1}
    found = driver(waits=[wait | {"ends": False, "side": False}])
    around = {"loop": WANTS, "values": {"kept": "{}", "wanted": "8"}, "whole": "{}"}
    outer = {
        "at": {"file": TRAIN, "line": at, "function": "main"},
        "text": "rows = ask(1)",
        "values": {},
        "loop": around,
    }
    lines = [{"at": inner, "text": "return ray.get(ref)", "values": {}, "loop": None}, outer]
    found["facts"]["statements"] = [{"thread": "MainThread", "lines": lines}]
    return [found, process(facts(0, 20), 0)]


def test_a_function_that_asks_at_one_line_for_several_things_of_a_turn_has_not_come_round() -> None:
    assert not verdict(asks_through("a", 12), asks_through("b", 13), seconds=21.0).hang
    assert verdict(asks_through("a", 12), asks_through("a", 12), seconds=21.0).kind == "stuck"
    again = verdict(asks_through("a", 13), asks_through("b", 12), seconds=21.0)
    assert again.kind == "livelock", again


def test_one_that_was_between_two_of_its_calls_is_looked_at_again() -> None:
    further = job(3.0, "c", at=14)  # the second call of a turn
    looks = [job(1.0, "a"), job(2.0, "b"), *[further] * 8, job(9.0, "d")]
    times = iter(NOW + 2.2 * number for number in range(len(looks)))
    waiting = iter(looks)
    found = watch_until_decided(
        lambda: (read_sample(answer(next(waiting), next(times))), {}), 10.0, wait=lambda seconds: None
    )
    assert found.verdict.kind == "livelock" and next(waiting, None) is None
    one, other = iter([job(1.0, "a"), *[further] * 3]), iter(NOW + 2.2 * number for number in range(4))
    found = watch_until_decided(lambda: (read_sample(answer(next(one), next(other))), {}), 10.0, wait=lambda _: None)
    assert found.verdict.kind == "moves" and next(one, None) is None, "nothing has come round"


def turns(turn: int, waits: str = "", kept: str = "{}") -> list[Document]:
    """As `job`, by a driver whose loop turns fast: it is seen in a wait, or between two."""
    found = job(1.0 + turn, waits or "x", kept, text="scores = ray.get(sampler.score.remote(turn))")
    found[0]["facts"]["statements"][0]["lines"][0]["values"] = {"turn": str(turn)}
    if not waits:
        found[0]["facts"]["waits"] = []
        found[0]["process"] = {"state": "R", "cpu": 1.0 + turn, "children_cpu": 0.0, "io": 0}
    return found


def test_one_that_turns_fast_is_seen_to_come_round_where_it_does_not_wait_just_then() -> None:
    assert verdict(turns(1), turns(99), seconds=21.0).kind == "livelock"
    assert verdict(turns(1, "a"), turns(99), seconds=21.0).kind == "livelock"
    assert verdict(turns(1), turns(99, kept="list of 1"), seconds=21.0).kind == "moves"
    elsewhere = turns(99)
    elsewhere[0]["facts"]["statements"][0]["lines"][0]["at"] = {"file": TRAIN, "line": 14, "function": "main"}
    early, later = verdict(turns(1), elsewhere, seconds=2.2), verdict(turns(1), elsewhere, seconds=6.6)
    assert (early.kind, early.decided, later.kind, later.decided) == ("moves", False, "moves", True)


PARSES = "while at < len(text)"


def parses(at: str = "2", *, turns: bool = True, works: bool = True) -> Document:
    """A process that computes in its own loop, which has come round within a tenth of a second, or not."""
    found = process(facts(0, 12, "parse", state="R"), 0, "Parser")
    found["facts"]["threads"][0] |= {"frames": frames((TRAIN, 12, "parse")), "state": "R"}
    place, values = {"file": TRAIN, "line": 12, "function": "parse"}, {"at": at, "text": "'{x'"}
    found["facts"]["turning"] = [{"at": place, "loop": PARSES, "values": values, "whole": at}] if turns else []
    found["facts"]["process"] = {"state": "R", "cpu": works, "children_cpu": 0.0, "io": 0}
    return found


def watched(*looks: Document) -> Diagnosis:
    """What is decided of a job with this process, looked at every two seconds; the last look is taken again."""
    rows = chain(looks, repeat(looks[-1]))
    samples = ((next(rows), NOW + 2.2 * number) for number in range(100))

    def take() -> tuple[Any, dict[str, Any]]:
        row, now = next(samples)
        cpu = row["facts"]["process"] | {"cpu": now - NOW}
        return read_sample(answer([row | {"facts": row["facts"] | {"process": cpu}}], now)), {}

    return watch_until_decided(take, 10.0, wait=lambda _: None)


def test_a_loop_that_computes_and_moves_nothing_that_it_counts_is_a_livelock() -> None:
    found = watched(parses(), parses(turns=False), parses()).verdict
    assert found.kind == "livelock" and found.decided, found
    assert found.sentence.startswith(
        f"no progress: Parser rank 0 is in the loop `{PARSES}` (at = 2, text = '{{x') at {TRAIN}:12 in parse, which "
        "has come round"
    ), found.sentence


@pytest.mark.parametrize(
    "looks",
    [
        [parses(), parses(at="3")],
        [parses(), parses(at="3"), parses()],  # another call, at the same place again
        [parses(turns=False)],  # one long turn
        [parses(), parses(turns=False)],
    ],
)
def test_one_that_may_get_on_is_at_work(looks: list[Document]) -> None:
    found = watched(*looks)
    assert found.verdict.kind == "moves" and found.last.time - found.first.time < 9.0


def mute(cpu: float, line: int = 14) -> Document:
    """A process that holds its Python's lock, as a neighbour sees it."""
    at = {"file": TRAIN, "line": line, "function": "extract"}
    statements = [
        {"thread": "MainThread", "lines": [{"at": at, "text": "BOXED.findall(text)", "values": {"text": '"a{"'}}]}
    ]
    known = process(None, 0, "Verifier")
    threads = [{"name": "MainThread", "frames": [at], "stopped": False, "state": "R", "cpu": cpu}]
    return known | {
        "process": {"state": "R", "cpu": cpu, "children_cpu": 0.0, "io": 0},
        "threads": threads,
        "statements": statements,
    }


def test_a_call_that_holds_the_lock_and_computes_is_named_with_what_it_works_on() -> None:
    found = verdict([mute(1.0), driver()], [mute(21.0), driver()], seconds=21.0)
    assert found.kind == "silent" and found.decided and found.hang
    assert found.sentence == (
        "Verifier rank 0 does not respond: one call at /job/train.py:14 in extract has held its Python's lock "
        "(the GIL) for at least 21 s, and computes"
    ), found.sentence
    assert '    BOXED.findall(text)  # text = "a{"' in found.evidence, found.evidence
    assert not verdict([mute(1.0), driver()], [mute(12.0), driver()], seconds=12.0).decided
    other = verdict([mute(1.0), driver()], [mute(21.0, line=15), driver()], seconds=21.0)
    assert not other.hang, "it is elsewhere"
    starved = verdict([mute(1.0), driver()], [mute(5.0), driver()], seconds=21.0)
    assert not starved.hang, "others have the cores"
    late = verdict([mute(1.0), driver()], [mute(21.0) | {"heard": 8.0}, driver()], seconds=21.0)
    assert not late.hang and "is working" in late.sentence, late.sentence  # a loop of short calls
