"""Loops that look for an actor by its name: told as that, and never where somebody is at work."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from devkit.hang.answers import read_sample
from devkit.hang.diagnose import diagnose
from devkit.hang.facts import NamedActor
from devkit.hang.records import Verdict
from tests.hang.jobs import NOW, TRAIN, answer, driver, facts, process

Document = dict[str, Any]
AT = {"file": TRAIN, "line": 12, "function": "find"}
ELSEWHERE = NamedActor("store", "other", "Store", "ALIVE", "02000000")


def polls(count: int, seconds: float, **changes: Any) -> Document:
    """A driver that sleeps between two tries."""
    found = driver()
    lookup = {"name": "store", "namespace": "mine", "count": count, "seconds": seconds, "at": AT}
    found["facts"] = {**facts(None, 13, "find"), "lookups": [lookup], **changes}
    return found


def told(
    *others: Document, counts: tuple[int, int] = (30, 50), named: tuple[NamedActor, ...] = (ELSEWHERE,)
) -> Verdict:
    first = read_sample(answer([polls(counts[0], 15.0), *others], NOW - 2.0), named=named)
    last = read_sample(answer([polls(counts[1], 25.0), *others], NOW), named=named)
    return diagnose(first, last, 10.0)


def test_it_is_told_what_it_looks_for_and_where_that_is() -> None:
    found = told()
    assert (found.kind, found.decided, found.culprit.line if found.culprit else 0) == ("stuck", True, 12)
    assert found.sentence == (
        "no progress: the driver looks for the actor 'store' in namespace 'mine' at /job/train.py:12 in find, "
        "50 times in 25 s; there is one of that name in namespace 'other': pass namespace='other', "
        "or the same namespace to ray.init in both programs"
    )


def test_what_is_known_of_the_name() -> None:
    dead = replace(ELSEWHERE, namespace="mine", state="DEAD")
    assert told(named=(dead,)).sentence.endswith("there was one, a Store, and it is dead")
    dropped = replace(dead, why="its last handle was dropped")
    assert told(named=(dropped,)).sentence.endswith("a Store, and it is dead: its last handle was dropped")
    anew = replace(dead, state="PENDING_CREATION")
    for both in ((anew, dropped), (dropped, anew)):  # in whichever order Ray's table has them
        assert told(named=both).sentence.endswith("it is PENDING_CREATION")
    near = replace(ELSEWHERE, name="stores", namespace="mine")
    assert told(named=(near,)).sentence.endswith("there is none, but one called 'stores'")
    assert told(named=()).sentence.endswith("there is none; named actors there: none")


def test_the_error_that_each_try_raises_is_no_other_cause() -> None:
    """Python 3.12 counts what a program catches itself, always."""
    row = {"kind": "ValueError", "text": "no actor", "at": AT, "by": AT, "count": 50, "seconds": 25.0, "ago": 0.1}
    tries = [read_sample(answer([polls(n, 25.0, caught=[row])], NOW - 50 + n), named=(ELSEWHERE,)) for n in (30, 50)]
    found = diagnose(tries[0], tries[1], 10.0)
    assert (found.kind, found.sentence) == ("stuck", told().sentence)
    assert any("has caught ValueError" in line for line in found.evidence)
    like = process(facts(1, 13, "find", lookups=polls(9, 9.0)["facts"]["lookups"], caught=[row]), 1)
    both = [read_sample(answer([polls(n, 25.0, caught=[row]), like], NOW - 50 + n)) for n in (30, 50)]
    assert diagnose(both[0], both[1], 10.0).kind == "stuck"
    other = {**row, "at": {**AT, "line": 40}}
    tries = [read_sample(answer([polls(n, 25.0, caught=[other])], NOW - 50 + n), named=(ELSEWHERE,)) for n in (30, 50)]
    assert diagnose(tries[0], tries[1], 10.0).kind == "failing"


def test_a_list_of_names_that_stays_the_same_is_told_with_what_there_is() -> None:
    lists = {"name": "", "namespace": "mine", "count": 9, "seconds": 12.0, "at": AT}
    more = [replace(ELSEWHERE, name=f"engine-{number}") for number in range(6)]
    here = replace(ELSEWHERE, name="store", namespace="mine")
    first, last = ([polls(0, 0.0, lookups=[{**lists, "count": count}])] for count in (5, 9))
    named = (here, *more, replace(here, name="gone", state="DEAD"))
    found = diagnose(read_sample(answer(first, NOW - 2.0), named=named), read_sample(answer(last), named=named), 10.0)
    assert found.sentence == (
        "no progress: the driver lists the named actors of namespace 'mine' at /job/train.py:12 in find, 9 times in "
        "12 s; there is 'store'; in namespace 'other' there are 'engine-0', 'engine-1', 'engine-2', 'engine-3', "
        "'engine-4' and 1 more: all_namespaces=True lists them, too"
    )


def test_who_looks_no_more_or_waits_for_somebody_at_work_does_not_poll() -> None:
    assert "looks for" not in told(counts=(50, 50)).sentence
    busy = process(facts(0, 5, "train", cpu=1.0), 0, "Trainer")
    first = read_sample(answer([polls(30, 15.0), process(facts(0, 4, "train", cpu=0.0), 0, "Trainer")], NOW - 2.0))
    assert diagnose(first, read_sample(answer([polls(50, 25.0), busy], NOW)), 10.0).kind == "moves"
