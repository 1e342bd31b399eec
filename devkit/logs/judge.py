"""Which crashes only follow from another of their run: `logs --first-error` judges so, for the list of crashes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from devkit.debug.inworker.records import CrashRecord
from devkit.errors import DevkitError
from devkit.logs.collect import of_crash
from devkit.logs.follows import CAUSE, IN_PROCESS
from devkit.logs.order import TOGETHER, Problem, merge

MOST = 30  # crashes that are looked into; of the others the list alone tells


class Root(NamedTuple):
    """What a crash follows from."""

    id: str
    supposed: bool  # by its kind and the time alone


ReadDocument = Callable[[str], Mapping[str, Any]]


def with_causes(crashes: Sequence[CrashRecord], read: ReadDocument) -> list[CrashRecord]:
    """Those that seem only to follow from another crash of their job have that one as their root, too.

    Args:
        crashes: the oldest first.
        read: gives the whole snapshot of an id. Raises DevkitError where there is none.
    """
    found: dict[str, Root] = {}
    for job_id in {each.job_id for each in crashes}:
        found |= _roots([each for each in crashes if each.job_id == job_id], read)
    roots = {name: each.id for name, each in found.items()}
    supposed = {name for name, each in found.items() if each.supposed}
    return [
        replace(each, root=_last(each.root or roots.get(each.id), roots), supposed=each.supposed or each.id in supposed)
        for each in crashes
    ]


def _last(root: str | None, roots: Mapping[str, str]) -> str | None:
    seen: set[str] = set()
    while root is not None and root in roots and root not in seen:
        seen.add(root)
        root = roots[root]
    return root


def _roots(crashes: Sequence[CrashRecord], read: ReadDocument) -> dict[str, Root]:
    problems = merge(of_crash(each.to_json()) for each in crashes)
    doubtful = [event.id for each in problems if each.weight.level > CAUSE for event in each.events if not event.root]
    if doubtful:  # what the program raised itself follows from nothing, and only the whole snapshot shows its line
        whole = {name: read_or_none(name, read) for name in doubtful[-MOST:]}
        problems = merge(of_crash({**(whole.get(each.id) or {}), **each.to_json()}) for each in crashes)
    causes = [each for each in problems if each.weight.level == CAUSE]
    roots: dict[str, Root] = {}
    for problem in problems:
        own_end = _is_end_of_its_own(problem)
        before = [each for each in problems if each.process == problem.process] if own_end else causes
        cause = problem if problem in causes else _cause_of(problem, [each for each in before if each is not problem])
        own = _own_crash(cause) if cause else ""
        for event in problem.events:
            passed_on = problem is not cause or (event.raised.pid and event.raised.pid != event.pid)
            if own and passed_on and event.id != own and not event.root:
                roots[event.id] = Root(own, supposed=not (problem is cause or own_end))
    return roots


def _is_end_of_its_own(problem: Problem) -> bool:
    """Whether a process ended of an error in itself, as in an actor's `__init__`: no other process has caused it."""
    return problem.best.kind == "exit" and problem.weight.why == IN_PROCESS


def read_or_none(name: str, read: ReadDocument) -> Mapping[str, Any] | None:
    with suppress(DevkitError):
        return read(name)
    return None


def _cause_of(problem: Problem, causes: Sequence[Problem]) -> Problem | None:
    """The last one before it; clocks of nodes differ."""
    known = [each for each in causes if each.time is not None]
    before = [each for each in known if problem.time is None or (each.time or 0.0) <= problem.time + TOGETHER]
    return max(before, key=lambda each: each.time or 0.0, default=None)


def _own_crash(problem: Problem) -> str:
    """The snapshot of who raised it, and not of who was told; of what followed from one, that."""
    told_by = (each for each in problem.events if each.raised.pid in (0, each.pid))
    found = next(told_by, problem.best)
    return found.root or found.id
