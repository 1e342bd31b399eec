"""Two samples of a job side by side, and what every process did between them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from devkit.hang.facts import CrashFacts, ProcessFacts, Sample
from devkit.hang.standing import Turn
from devkit.hang.states import BEGUN, State, state_of

CLOCKS = 5.0  # seconds by which those of two machines may differ
BEHIND = 2  # calls that are named
PATIENCE = 10.0  # seconds: a wait that is younger may be an ordinary one


class Sighting(NamedTuple):
    """A loop of a process that computes and comes round in vain, and when that was seen."""

    process: str
    turn: Turn
    first: float
    last: float


class Seen(NamedTuple):
    """What all samples so far show: see `circling`."""

    changed: frozenset[tuple[str, str, str]] = frozenset()  # (process, file, loop) of a loop that has counted further
    turned: tuple[Sighting, ...] = ()


NOTHING = Seen()


@dataclass(frozen=True)
class Case:
    """Two samples, and every process's state between them."""

    before: Mapping[str, ProcessFacts]
    first: Sample
    now: Sample
    states: tuple[State, ...]
    patience: float
    seen: Seen = NOTHING

    @property
    def seconds(self) -> float:
        return self.now.time - self.first.time

    @cached_property
    def by_id(self) -> dict[str, State]:
        return {state.facts.id: state for state in self.states}

    @cached_property
    def by_actor(self) -> dict[str, State]:
        return {state.facts.actor_id: state for state in self.states if state.facts.actor_id}

    def is_child(self, state: State) -> bool:
        """Of a worker of the job: it is called after that, with its own pid behind."""
        return state.facts.id.rpartition("-")[0] in self.by_id

    def crash_of(self, state: State) -> CrashFacts | None:
        """Its newest one, unless it has begun a collective since: its program has got over that one."""
        own = [each for each in self.now.crashes if each.worker_id == state.facts.id]
        ages = [entry.age for group in state.facts.groups for entry in group.entries]
        later = own and any(self.now.time - age > own[-1].time + CLOCKS for age in ages)
        return own[-1] if own and not later else None

    def decided(self, waited: float, times: float = 1.0) -> bool:
        return max(waited, self.seconds) >= times * self.patience


def case_of(first: Sample, now: Sample, patience: float, seen: Seen = NOTHING) -> Case:
    now = replace(now, processes=tuple(_with_ranks(now.processes)))
    before = {each.id: each for each in first.processes}
    seconds = now.time - first.time
    states = tuple(_with_tasks(state_of(before.get(each.id), each, seconds), first, now) for each in now.processes)
    return Case(before, first, now, states, patience, seen)


def _with_tasks(state: State, first: Sample, now: Sample) -> State:
    """A process that stands at one line in another task than before has done one: it moves.

    Also where Ray's table has not got the new one yet.
    """
    earlier, later = first.tasks.get(state.facts.id), now.tasks.get(state.facts.id)
    anew = bool(now.tasks) and state.place is not None
    if earlier and earlier != later and (later or anew) and not state.facts.dead:
        return replace(state, moved=True)
    return replace(state, about=_rests_with(state, now, bool(earlier and later))) if state.doing == "idle" else state


def _rests_with(state: State, now: Sample, lasts: bool) -> str:
    """What there is to do in a process that stands in no line of the program; empty: nothing."""
    if lasts:
        return BEGUN
    held = now.held_up.get(state.facts.actor_id) if state.facts.actor_id else None
    if not held:
        return ""
    names = list(dict.fromkeys(now.unsent.get(state.facts.actor_id, ())))
    more = f" and {len(names) - BEHIND} more" if len(names) > BEHIND else ""
    behind = f", with {', '.join(names[:BEHIND])}{more} queued behind it" if names else ""
    return f"is idle, and {held[0]}, which was called there, waits for its arguments{behind}"


def _with_ranks(processes: Sequence[ProcessFacts]) -> Iterator[ProcessFacts]:
    """A process that can't say its rank has the one that is left, if its peers' group lacks one and it is alone."""
    for each in processes:
        if each.answers or each.rank is not None:
            yield each
            continue
        peers = [other for other in processes if other.role == each.role and other is not each]
        missing = {rank for other in peers for group in other.groups for rank in group.ranks}
        missing -= {other.rank for other in peers if other.rank is not None}
        alone = len(missing) == 1 and not any(other.rank is None for other in peers)
        yield replace(each, rank=missing.pop()) if alone else each
