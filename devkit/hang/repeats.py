"""Errors that come again and again: something catches them, or tries again, and the job gets nowhere. Pure.

Ray's calls that fail leave a crash each; of what a process catches itself it keeps count, where it is asked to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from devkit.debug.naming import is_library
from devkit.hang import words
from devkit.hang.case import Case
from devkit.hang.facts import Caught, CrashFacts
from devkit.hang.records import Kind, Verdict
from devkit.hang.states import State

LEAST = 3  # times: once or twice may be an accident
MOST = 3  # lines of evidence for what is caught
TASK, LEFT = "Task", ", left in its asyncio task"  # what keeps an exception that nobody has asked for
_JUDGED = re.compile(r"^(no hang( seen in [^:]*)?|cannot tell): ")
_EXPLAINED: tuple[Kind, ...] = ("stuck", "idle")  # verdicts that rest on nothing but a wait


_NOT_YET = frozenset(
    {
        *("Empty", "Full", "QueueEmpty", "QueueFull", "TimeoutError", "GetTimeoutError", "TimeoutExpired"),
        *("BlockingIOError", "InterruptedError", "timeout"),
    }
)


class Repeated(Protocol):
    """An error that comes again and again."""

    @property
    def times(self) -> int: ...
    @property
    def said(self) -> str: ...
    @property
    def evidence(self) -> str: ...


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

    @property
    def evidence(self) -> str:
        return words.crash(self.newest)


class Swallowed(NamedTuple):
    """What one process catches at one line."""

    state: State
    caught: Caught

    @property
    def is_poll(self) -> bool:
        """Whether it says no more than that something has not come yet."""
        return self.caught.said.partition(":")[0] in _NOT_YET

    @property
    def times(self) -> int:
        return self.caught.count

    @property
    def said(self) -> str:
        each = self.caught
        times = f"{each.count} times in {words.span(each.seconds)}"
        by = LEFT if each.by.function == TASK else f", caught{words.at_frame(each.by)}"
        where = f"{words.at_frame(each.at)}{by}"
        return f"{words.name(self.state)} catches the same error again and again, {times}: {each.said}{where}"

    @property
    def evidence(self) -> str:
        each = self.caught
        times = "once" if each.count == 1 else f"{each.count} times"
        kept = ", kept by its Future, which nobody asks" if is_library(each.by.file) else ""
        kept = LEFT if kept and each.by.function == TASK else kept
        by = f", caught{words.at_frame(each.by)}" if each.by != each.at and not kept else kept
        return f"{words.name(self.state)} has caught {each.said} {times}{words.at_frame(each.at)}{by}"


def explain(found: Verdict, case: Case) -> Verdict:
    """The verdict with what fails again and again; where only waits were found, that is why they wait.

    What a job catches while it moves may be its way of working, and is evidence at most.
    """
    failing: list[Repeated] = sorted(_repeats(case), key=lambda each: -each.times)
    swallowed = sorted(_swallowed(case), key=lambda each: -each.times)
    reasons: list[Repeated] = [each for each in swallowed if not each.is_poll and not _is_explained(each, found)]
    if found.kind == "moves" and failing and _moves_alone(case, failing[0]):
        sentence = f"no progress: {failing[0].said}; nothing else moves, and it is started anew each time"
        return replace(found, kind="failing", sentence=sentence, evidence=(failing[0].evidence, *found.evidence))
    moves = not found.hang and found.kind not in _EXPLAINED
    repeat = next(iter([*failing, *(() if moves else reasons)]), None)
    told: list[Repeated] = [*failing[:1], *swallowed[:MOST]]
    evidence = (*(each.evidence for each in told or list(_once(found, case))[:MOST]), *found.evidence)
    if repeat is None:
        return replace(found, evidence=evidence)
    if moves:
        return replace(found, sentence=f"{found.sentence}, but {repeat.said}", evidence=evidence)
    if found.kind not in _EXPLAINED:
        return replace(found, evidence=evidence)
    rest = _JUDGED.sub("", found.sentence, count=1).rpartition("no progress: ")[2]
    return replace(found, kind="failing", sentence=f"no progress: {repeat.said}; {rest}", evidence=evidence)


def _is_explained(swallowed: Swallowed, found: Verdict) -> bool:
    """Whether the verdict is about the very line: a name that is looked for in vain raises each time."""
    at, who = swallowed.caught.at, found.culprit
    if who is None or (at.file, at.line) != (who.file, who.line):
        return False
    # Others that look for a name at that line do so in vain as well.
    return swallowed.state.facts.pid == who.pid or any(each.at == at for each in swallowed.state.facts.lookups)


def _moves_alone(case: Case, repeat: Repeated) -> bool:
    """Whether only those move that fail: a process that is started anew comes to other lines, which is no progress."""
    if not isinstance(repeat, Repeat) or repeat.newest.kind != "exit":
        return False
    busy = [each for each in case.states if each.moved or each.doing == "busy" or each.works_beside]
    return all(each.facts.role == repeat.newest.role and not each.advanced for each in busy)


def _once(found: Verdict, case: Case) -> Iterator[Swallowed]:
    """What the one who is blamed has caught, be it once: that may be why it is elsewhere."""
    blamed = found.culprit.pid if found.hang and found.culprit else None
    for state in case.states:
        if state.facts.pid == blamed:
            yield from (Swallowed(state, each) for each in state.facts.caught)


def _swallowed(case: Case) -> Iterator[Swallowed]:
    """What is still caught: the last time is no longer ago than two of its turns, or than the sample."""
    for state in case.states:
        for each in state.facts.caught:
            if each.count >= LEAST and each.ago <= max(case.seconds, 2 * each.seconds / (each.count - 1)):
                yield Swallowed(state, each)


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
