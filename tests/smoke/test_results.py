"""Findings are kept as a reader expects them: a failure stays."""

from __future__ import annotations

import pytest

from devkit.smoke.checks.outcome import Outcome
from devkit.smoke.results import CAUSES_FIRST, OF_AGENTS, FirstFailure, Results
from tests.smoke.calls import CHECKS, OF_CONVERSATIONS


def found(*outcomes: tuple[bool | None, str], fail_fast: bool = False) -> Results:
    results = Results(fail_fast=fail_fast)
    for ok, detail in outcomes:
        results.add("masks", lambda ok=ok, detail=detail: Outcome(ok, detail))  # type: ignore[misc]
    return results


@pytest.mark.parametrize(
    ("outcomes", "status", "detail"),
    [
        ([(True, "a")], "pass", "a"),
        ([(True, "a"), (True, "b")], "pass", "b"),
        ([(True, "a"), (False, "b"), (True, "c")], "fail", "b"),
        ([(False, "a"), (False, "b")], "fail", "a"),
        ([(False, "a"), (None, "b")], "fail", "a"),
        ([(None, "a")], "skip", "a"),
        ([(None, "a"), (True, "b"), (None, "c")], "pass", "b"),
    ],
)
def test_the_first_failure_stays_else_the_latest_finding(
    outcomes: list[tuple[bool | None, str]], status: str, detail: str
) -> None:
    [result] = found(*outcomes).all
    assert (result.name, result.status, result.detail) == ("masks", status, detail)
    assert result.seconds >= 0


def test_causes_stand_before_what_they_lead_to() -> None:
    results = Results()
    for name in ("learning", "critic-update", "losses", "masks", "losses"):
        results.add(name, lambda: Outcome(True, ""))
    results.failed("run", "the trainer failed in train")
    assert [result.name for result in results.all] == ["masks", "losses", "critic-update", "learning", "run"]


def test_every_check_has_its_place() -> None:
    assert sorted(CAUSES_FIRST) == sorted(CHECKS)


def test_the_first_failure_ends_the_run_only_when_asked() -> None:
    found((False, "a")).settle()
    found((True, "a"), (None, "b"), fail_fast=True).settle()
    with pytest.raises(FirstFailure):
        found((False, "a"), (True, "b"), fail_fast=True).settle()


def test_what_was_never_looked_at_says_so() -> None:
    results = found((True, "a"))
    results.complete("the run ended before it")
    told = {result.name: (result.status, result.detail) for result in results.all}
    assert told.pop("masks") == ("pass", "a")
    assert told == dict.fromkeys(CHECKS - {"masks"}, ("skip", "the run ended before it"))


def test_conversations_have_checks_of_their_own_and_others() -> None:
    assert set(OF_AGENTS) - CHECKS == OF_CONVERSATIONS
    results = Results(names=OF_AGENTS)
    results.complete("not reached")
    assert [each.name for each in results.all] == list(OF_AGENTS)
