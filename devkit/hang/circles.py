"""Who holds what is asked for, and waits for whoever asks: nested tasks that hold a resource each. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from devkit.debug.naming import short_path
from devkit.hang.calls import OWN_PART
from devkit.hang.facts import CallWait, Holder, Pending, ProcessFacts, Sample
from devkit.hang.records import Culprit

LENT = "CPU"  # Ray gives it back while a task waits in `ray.get`


class Circle(NamedTuple):
    """Holders of a resource that wait for what asks for it."""

    text: str
    holders: tuple[Holder, ...]
    culprit: Culprit


def held(each: Pending, now: Sample) -> Circle | None:
    """All that hold one of the resources that are asked for, where each of them waits for some that ask for it, too."""
    for name in sorted(
        name for name in {name for bundle in each.bundles for name in bundle} if _is_short(name, each, now)
    ):
        asking = {other.id for other in now.pending if any(bundle.get(name) for bundle in other.bundles)}
        holders = [holder for holder in now.holders if holder.resources.get(name)]
        waits = [_wait(holder, asking, now.processes) for holder in holders]
        found = [wait for wait in waits if wait is not None]
        if holders and len(found) == len(holders):
            return _circle(name, holders, found, each)
    return None


def _who(holders: Iterable[Holder]) -> str:
    counted = Counter(f"{holder.kind} {holder.name}" for holder in holders)
    return " and ".join(f"the {one}" if count == 1 else f"{count} x {one}" for one, count in counted.items())


def _is_short(name: str, each: Pending, now: Sample) -> bool:
    """Whether no node has as much of it free as is asked for at once."""
    most = max((bundle.get(name, 0.0) for bundle in each.bundles), default=0.0)
    free = [node.free.get(name, 0.0) for node in now.nodes if node.free is not None]
    return name != LENT and bool(free) and all(each < most for each in free)


def _wait(holder: Holder, asking: set[str], processes: Iterable[ProcessFacts]) -> tuple[ProcessFacts, CallWait] | None:
    """The wait of a holder that cannot end before some of those who ask have got it."""
    for process in processes:
        if holder.place and holder.place in (process.id, process.actor_id):
            for wait in process.waits:
                asked = [task for task in wait.tasks if task in asking or task[OWN_PART:] in asking]
                if not wait.ends and len(wait.tasks) - len(asked) < wait.needed:
                    return process, wait
    return None


def _circle(name: str, holders: list[Holder], waits: list[tuple[ProcessFacts, CallWait]], each: Pending) -> Circle:
    total = sum(holder.resources[name] for holder in holders)
    (first, wait), many = waits[0], len(holders) > 1
    at = f"{short_path(wait.at.file)}:{wait.at.line} in {wait.at.function}"
    text = (
        f"{total:g} {name} {'is' if total == 1 else 'are'} held by {_who(holders)}, "
        f"which {'wait' if many else 'waits'} at {at} for {each.name or 'it'}, "
        "and Ray gives back nothing but CPUs in ray.get"
    )
    culprit = Culprit(first.role, first.rank, first.node_ip, first.pid, *wait.at)
    return Circle(text, tuple(holders), culprit)
