"""Who has failed before, and may be the one that others wait for. Pure.

Ray is silent about an error that nobody asks for while others wait. Where not all have come, one of their class that
has raised and has nothing to do, or is gone, is the likely one; of ranks only it is known.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from devkit.debug.stack_groups import CHILDS_ID
from devkit.hang import words
from devkit.hang.case import Case
from devkit.hang.facts import CrashFacts
from devkit.hang.records import Culprit, Verdict
from devkit.hang.states import State, inner_wait

SHOWN = 3  # crashes
_FOR_OTHERS = ("Barrier", "Condition", "Event")  # what a process waits at for others to come


class Failed(NamedTuple):
    """A process that has raised, and does nothing now: what it has done in between is not known."""

    crash: CrashFacts
    state: State | None  # None: it is gone

    @property
    def name(self) -> str:
        if self.state is not None:
            return words.name(self.state)
        role, rank = self.crash.role, self.crash.rank
        return f"another {role}" if rank is None else words.of_role(role, rank)

    def raised(self, now: float) -> str:
        ago = words.span(max(0.0, now - self.crash.time))
        since = ", and is gone" if self.state is None else ", and is idle now"
        return f"{self.name} raised {self.crash.said}{words.at_frame(self.crash.at)} {ago} ago{since}"

    @property
    def culprit(self) -> Culprit:
        at = self.crash.at
        if self.state is not None:
            return words.culprit(self.state, at)
        return Culprit(self.crash.role, self.crash.rank, "", 0, *(at or ("", 0, "")))


def of_meeting(case: Case, found: Verdict, there: Sequence[State], missing: Collection[int]) -> Verdict:
    """Of those that wait for ranks, with who may not come.

    Args:
        missing: the ranks that have not arrived, if that is known.
    """
    failed = list(_failed(case, {state.facts.role for state in there}, there))
    each = next((each for each in failed if each.crash.rank in missing), next(iter(failed), None))
    if each is None:
        return found
    sure = each.crash.rank in missing and _counts_alike(there)
    evidence = (words.crash(each.crash), *found.evidence)
    if sure:
        raised = f"{each.name} raised {each.crash.said}{words.at_frame(each.crash.at)}, and {found.sentence}"
        return replace(found, kind="raised", sentence=raised, culprit=each.culprit, evidence=evidence)
    text = f"{each.raised(case.now.time)}: it may be one that is missing; {found.sentence}"
    return replace(found, sentence=text, evidence=evidence)


def _counts_alike(there: Sequence[State]) -> bool:
    """Whether their ranks in that meeting are those that they are known by: a smaller group counts anew."""
    one_role = len({state.facts.role for state in there}) == 1
    return one_role and all(state.facts.call.get("rank") == state.facts.rank for state in there)


def of_standing(case: Case, first: State, waiters: Sequence[State]) -> Failed | None:
    """Of one that waits at a barrier or the like for others to come: who of those that call it may not.

    Args:
        waiters: who waits for that one.
    """
    inner = inner_wait(first) if first.doing == "wait" else None
    if inner is None or not any(each in inner.what for each in _FOR_OTHERS):
        return None
    roles = {state.facts.role for state in waiters if state.facts.actor_id}
    return next(_failed(case, roles, [first, *waiters]), None)


def _failed(case: Case, roles: Collection[str], there: Sequence[State]) -> Iterator[Failed]:
    """Of these classes, the newest first."""
    here = {state.facts.id for state in there}
    seen: set[str] = set()
    for crash in sorted(case.now.crashes, key=lambda each: -each.time):
        if (
            crash.role not in roles
            or crash.root is not None
            or crash.kind == "driver"
            or CHILDS_ID.fullmatch(crash.worker_id)  # of one of those
            or crash.worker_id in here | seen
        ):
            continue
        seen.add(crash.worker_id)
        state = case.by_id.get(crash.worker_id)
        if state is None or state.doing == "dead":
            if not _is_replaced(case, crash):
                yield Failed(crash, None)
        elif state.doing == "idle" and not state.moved and not state.about and case.crash_of(state) is crash:
            yield Failed(crash, state)


def _is_replaced(case: Case, crash: CrashFacts) -> bool:
    """Whether another process has its rank by now."""
    return crash.rank is not None and any(
        (state.facts.role, state.facts.rank) == (crash.role, crash.rank) and state.doing != "dead"
        for state in case.states
        if state.facts.id != crash.worker_id
    )


def with_crashes(found: Verdict, case: Case) -> Verdict:
    """Of a hang, what has failed before."""
    if not found.hang:
        return found
    told = " ".join((found.sentence, *found.evidence))
    own = [each for each in case.now.crashes if each.root is None and each.kind != "driver" and each.said not in told]
    newest = {(each.role, each.said, each.at): each for each in sorted(own, key=lambda each: each.time)}
    lines = [_before(each, case.now.time) for each in list(newest.values())[-SHOWN:]]
    return replace(found, evidence=(*found.evidence, *lines))


def _before(found: CrashFacts, now: float) -> str:
    who = words.of_role(found.role, found.rank) if found.rank is not None else found.role
    return f"{words.span(max(0.0, now - found.time))} ago in {who}: {words.crash(found)}"


__all__ = ["of_meeting", "of_standing", "with_crashes"]
