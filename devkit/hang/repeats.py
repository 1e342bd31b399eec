"""Errors that come again and again: something catches them, or tries again, and the job gets nowhere. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from devkit.hang import words
from devkit.hang.case import Case
from devkit.hang.facts import CrashFacts
from devkit.hang.records import Kind, Verdict

LEAST = 3  # times: once or twice may be an accident
_EXPLAINED: tuple[Kind, ...] = ("stuck",)  # verdicts that rest on nothing but a wait


class Repeat(NamedTuple):
    """One error of one role at one line."""

    newest: CrashFacts
    times: int
    seconds: float  # from its first time to its last

    @property
    def said(self) -> str:
        each = self.newest
        who = words.of_role(each.role, each.rank) if each.rank is not None else each.role or "a process"
        times = f"{self.times} times in {words.span(self.seconds)}"
        return f"{who} fails again and again, {times}: {each.said}{words.at_frame(each.at)}"


def explain(found: Verdict, case: Case) -> Verdict:
    """The verdict with what fails again and again; where only waits were found, that is why they wait."""
    repeat = next(iter(sorted(_repeats(case), key=lambda each: -each.times)), None)
    if repeat is None:
        return found
    evidence = (words.crash(repeat.newest), *found.evidence)
    if not found.hang:
        return replace(found, sentence=f"{found.sentence}, but {repeat.said}", evidence=evidence)
    if found.kind not in _EXPLAINED:
        return replace(found, evidence=evidence)
    _, _, rest = found.sentence.rpartition("no progress: ")
    return replace(found, kind="failing", sentence=f"no progress: {repeat.said}; {rest}", evidence=evidence)


def _repeats(case: Case) -> Iterator[Repeat]:
    """Those that still come: the last one is no older than twice the time from one to the next, or than the sample."""
    kinds: dict[object, list[CrashFacts]] = {}
    for each in case.now.crashes:
        kinds.setdefault((each.role, _kind(each), each.at), []).append(each)
    for same in kinds.values():
        same.sort(key=lambda each: each.time)
        if len(same) >= LEAST and case.now.time - same[-1].time <= _still(same, case):
            yield Repeat(same[-1], len(same), same[-1].time - same[0].time)


def _kind(crash: CrashFacts) -> str:
    """Without its message, which may have a number that differs each time."""
    return crash.said.partition(":")[0]


def _still(same: Sequence[CrashFacts], case: Case) -> float:
    return max(case.seconds, 2 * (same[-1].time - same[0].time) / (len(same) - 1))
