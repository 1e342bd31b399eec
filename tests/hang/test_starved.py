"""Processes that a busy machine does not run in time: neither work nor Python's lock."""

from __future__ import annotations

from typing import Any

from tests.hang.jobs import TRAIN, driver, facts, frames, process, verdict

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
