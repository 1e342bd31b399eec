"""Errors that come again and again: something catches them, or tries again, and the job gets nowhere. Pure.

Ray's calls that fail leave a crash each; of what a process catches itself it keeps count, where it is asked to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from devkit.debug.inworker.swallowing import ANY, KEEPERS, USUAL
from devkit.debug.stack_groups import Frame
from devkit.hang import words
from devkit.hang.case import Case
from devkit.hang.coming_back import OUTSIDE
from devkit.hang.facts import Caught, CrashFacts
from devkit.hang.records import Kind, Verdict
from devkit.hang.states import State

LEAST = 3  # times: once or twice may be an accident
MOST = 3  # lines of evidence for what is caught
TASK = "Task"  # of asyncio, as what keeps an exception
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
        does = "raises" if self.is_kept else "catches"
        by = f", kept by {self._keeper}" if self.is_kept else f", caught{words.at_frame(each.by)}"
        where = f"{words.at_frame(each.at)}{by}"
        return f"{words.name(self.state)} {does} the same error again and again, {times}: {each.said}{where}"

    @property
    def evidence(self) -> str:
        each = self.caught
        times = "once" if each.count == 1 else f"{each.count} times"
        if self.is_kept:
            kept = f"{words.at_frame(each.at)} and kept by {self._keeper}"
            return f"{words.name(self.state)}: {each.said} was raised {times}{kept}"
        by = f", caught{words.at_frame(each.by)}" if each.by != each.at else ""
        return f"{words.name(self.state)} has caught {each.said} {times}{words.at_frame(each.at)}{by}"

    @property
    def is_kept(self) -> bool:
        """Whether no handler has caught it: a Future has it, or a task of asyncio, for who asks that."""
        return self.caught.by.file.endswith(KEEPERS)

    @property
    def _keeper(self) -> str:
        """Whether somebody has asked for it is known of tasks that are there alone: `gather` raises one of several
        again, and `exception` none.
        """
        each, many = self.caught, self.caught.count > 1
        if each.by.function != TASK:
            return "Futures" if many else "its Future"
        unheard = sum(one.count for one in self.state.facts.ended if one.kind == "task" and one.at == each.at)
        if unheard >= each.count:
            return "asyncio tasks, which nobody has awaited" if many else "its asyncio task, which nobody has awaited"
        return "asyncio tasks" if many else "its asyncio task"


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
        asks = found.kind == "livelock" and not any(each.startswith(OUTSIDE) for each in found.evidence)
        beside = _beside(found, swallowed, case) if asks else ""
        return replace(found, sentence=f"{found.sentence}{beside}", evidence=evidence)
    rest = _JUDGED.sub("", found.sentence, count=1).rpartition("no progress: ")[2]
    return replace(found, kind="failing", sentence=f"no progress: {repeat.said}; {rest}", evidence=evidence)


def _beside(found: Verdict, swallowed: Sequence[Swallowed], case: Case) -> str:
    """What a handler of whatever comes has passed over while a loop went round in vain: that may be why, or may not."""
    alike: dict[tuple[str, Frame], list[tuple[Swallowed, int]]] = {}
    for each in swallowed:
        kind, times = each.caught.said.partition(":")[0], _lately(each, case)
        if each.caught.how == ANY and kind not in USUAL and times >= LEAST and not _is_explained(each, found):
            alike.setdefault((kind, each.caught.at), []).append((each, times))
    if not alike:
        return ""
    most = max(alike.values(), key=lambda same: sum(times for _, times in same))
    error, who = most[0][0].caught, words.they([each.state for each, _ in most], "has", "have")
    said = f"{error.said}{words.at_frame(error.at)}, caught{words.at_frame(error.by)}"
    return (
        f"; {who} caught the same error {sum(lately for _, lately in most)} times meanwhile, which may be why: {said}"
    )


def _lately(swallowed: Swallowed, case: Case) -> int:
    """How often it has come between the two samples; 0: that is not known."""
    then, now = case.before.get(swallowed.state.facts.id), swallowed.caught
    key = now.said.partition(":")[0], now.at, now.by
    same = (each for each in (then.caught if then else ()) if (each.said.partition(":")[0], each.at, each.by) == key)
    return next((now.count - each.count for each in same), 0)


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
            yield from (Swallowed(state, each) for each in state.facts.caught if not _is_under_way(state, each))


def _is_under_way(state: State, caught: Caught) -> bool:
    """Whether a thread is at work on it just now: it may be in the end of a `with`, which no handler has had yet."""
    handled = (line.handles for stack in state.facts.standing for line in stack.lines)
    return caught.count == 1 and any(each is not None and each.at == caught.at for each in handled)


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
