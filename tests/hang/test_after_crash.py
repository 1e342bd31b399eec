"""What the first terminal is told, unasked, when ranks wait for one that has failed."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest

from devkit.debug.inworker.records import CrashRecord
from devkit.hang.after_crash import LOOKS, due, sentences
from devkit.hang.gather import Diagnosis
from devkit.hang.records import Culprit, Kind, Verdict
from tests.debug.conftest import PROGRAMS, environment, eventually, short_folder
from tests.hang.test_ray_own import SECONDS, started

CRASH = CrashRecord(
    "c1", "01", "Worker", 1, "127.0.0.1", 7, 100.0, {"type": "ValueError", "message": "odd"}, "fit.py", 3, "fit", None
)


def found(kind: Kind, sentence: str, pid: int = 7) -> Diagnosis:
    nothing: Any = None
    culprit = Culprit("Worker", 1, "127.0.0.1", pid, "fit.py", 3, "fit")
    return Diagnosis(Verdict(kind, sentence, culprit), nothing, nothing, {})


def test_a_crash_is_looked_after_once_at_each_of_its_times() -> None:
    first = LOOKS[0]
    assert due([CRASH], "01", 100.0 + first - 0.1, set()) == []
    assert due([CRASH], "01", 100.0 + first, set()) == [CRASH]
    assert due([CRASH], "01", 100.0 + first, {("c1", first)}) == []
    assert due([CRASH], "01", 100.0 + LOOKS[1], {("c1", first)}) == [CRASH]


def test_other_jobs_drivers_and_what_followed_are_not_looked_after() -> None:
    for other in (replace(CRASH, job_id="02"), replace(CRASH, kind="driver"), replace(CRASH, root="c0")):
        assert due([other], "01", 100.0 + LOOKS[0], set()) == [], other


def test_nothing_is_said_where_nobody_waits_for_it() -> None:
    for kind in ("moves", "idle", "paused", "slow", "failing"):
        assert sentences(CRASH, found(kind, "no hang"), 110.0, lifted=True) == []


def test_limits_are_named_where_they_are_lifted() -> None:
    first, second = sentences(CRASH, found("raised", "no progress: rank 1 failed"), 112.0, lifted=True)
    assert first == "devkit: others wait since a failure 12 s ago: rank 1 failed"
    assert "devkit crashes show c1, and devkit hang" in second and "--keep-timeouts" in second
    assert "limit" not in sentences(CRASH, found("raised", "it"), 112.0, lifted=False)[1]


@pytest.mark.verdicts
def test_who_waits_for_a_rank_that_failed_is_told_in_the_first_terminal() -> None:
    with short_folder() as folder:
        program = str(PROGRAMS / "own_falls.py")
        with started(environment(folder), folder, "--", sys.executable, program) as said:
            eventually(lambda: "others wait since a failure" in said.read_text(), said.read_text, SECONDS)
            eventually(lambda: "devkit crashes show" in said.read_text(), said.read_text, SECONDS)
        text = said.read_text()
    assert "rank 1" in text and "ValueError" in text, text
