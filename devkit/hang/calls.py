"""Actors that wait for each other's calls: the circle, and why none of its calls can ever begin. Pure.

A call is stuck when every slot of the actor that is to take it is held by a call that is stuck, too; or when it runs,
and waits for one that is stuck. All waits are taken for stuck at first, and those that can still end are taken out
until none is left that can. What is not known counts as something that may end. A coroutine that waits in `ray.get`
holds up its actor's event loop: that actor begins no call, however many it takes at once. A call that waits for a lock
is stuck when the call that holds it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from devkit.hang.case import Case
from devkit.hang.facts import Call, CallWait, ProcessFacts
from devkit.hang.states import State

OWN_PART, NO_ACTOR = 16, "f" * 24  # an id of a task ends with that of its actor; of a task that is no call, with this
QUEUED = ("SUBMITTED_TO_WORKER", "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY")
_NO_WAITER = ("stopped", "dead", "frozen", "silent", "unreachable", "busy")


class Waiter(NamedTuple):
    """One wait of one process."""

    state: State
    wait: CallWait


class Link(NamedTuple):
    """Who waits, for which call, and whose wait keeps that from ending."""

    waiter: Waiter
    task: str
    call: Call | None
    runs: bool  # the call has begun
    holder: Waiter


def circle(case: Case) -> tuple[Link, ...]:
    """Waits each of which keeps the one before it from ending, and the first one the last; empty: there are none."""
    calls = _Calls(case)
    stuck = calls.stuck()
    # From any of them the way leads into a circle; the one whose waiter has the lowest rank begins the sentence.
    for start in sorted(
        stuck, key=lambda each: (each.state.facts.rank is None, each.state.facts.rank, each.state.facts.pid)
    ):
        path: list[Link] = []
        link = calls.link(start, stuck)
        while link is not None and all(link.waiter is not each.waiter for each in path):
            path.append(link)
            link = calls.link(link.holder, stuck)
        if link is not None and link.waiter is start:
            return tuple(path)
    return ()


class _Calls:
    """Who waits for what, and who is to answer."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._waits = [Waiter(state, wait) for state in case.states for wait in self._standing(state)]
        self._moves = any(state.moved or state.doing == "busy" for state in case.states)

    def _standing(self, state: State) -> list[CallWait]:
        """Those that were there before, and that nothing but an answer ends."""
        before = self._case.before.get(state.facts.id)
        if before is None or state.moved or state.doing in _NO_WAITER:
            return []
        earlier = {_key(each) for each in (*before.waits, *_for_locks(before))}
        now = (*state.facts.waits, *_for_locks(state.facts))
        return [each for each in now if not each.ends and _key(each) in earlier]

    def stuck(self) -> list[Waiter]:
        found = self._waits
        while True:
            kept = [each for each in found if self._is_stuck(each, found)]
            if len(kept) == len(found):
                return kept
            found = kept

    def _is_stuck(self, waiter: Waiter, stuck: Sequence[Waiter]) -> bool:
        if waiter.wait.holder:
            return self._holder_of_lock(waiter, stuck) is not None
        may_end = sum(self._holder(task, stuck) is None for task in waiter.wait.tasks)
        return may_end < waiter.wait.needed

    def _holder_of_lock(self, waiter: Waiter, stuck: Sequence[Waiter]) -> Waiter | None:
        """The wait of the thread or the task of the same process that has what this one waits for."""
        mine = (each for each in stuck if each.state is waiter.state)
        return next((each for each in mine if each.wait.thread == waiter.wait.holder), None)

    def link(self, waiter: Waiter, stuck: Sequence[Waiter]) -> Link | None:
        if waiter.wait.holder:
            holder = self._holder_of_lock(waiter, stuck)
            return Link(waiter, "", None, True, holder) if holder is not None else None
        for task in waiter.wait.tasks:
            holder = self._holder(task, stuck)
            if holder is not None:
                call = self._case.now.calls.get(task)
                return Link(waiter, task, call, call is not None and _has_begun(call, holder), holder)
        return None

    def _holder(self, task: str, stuck: Sequence[Waiter]) -> Waiter | None:
        """Whose wait keeps a task from ending; None: it may end."""
        call = self._case.now.calls.get(task)
        actor = task[OWN_PART:]
        is_call = bool(actor) and not actor.startswith(NO_ACTOR)
        state = self._case.by_actor.get(actor) if is_call else self._case.by_id.get(call.worker) if call else None
        if state is None:
            return None
        mine = [each for each in self._waits if each.state is state and not each.wait.side]
        held = [each for each in mine if any(each is other for other in stuck)]
        if call is None and not self._moves and _are_all_coroutines(state, held):
            return next((each for each in held if each.wait.holder), held[0])
        if not held or (call is None and (self._moves or state.facts.concurrency != 1 or state.facts.grouped)):
            return None
        if call is not None and runs(call):
            return self._runner(call, mine, held, state)
        if not is_call or (call is not None and call.state not in QUEUED):
            return None
        if blocking := [each for each in held if each.wait.blocks]:
            return blocking[0]
        return held[0] if len(held) == len(mine) and self._is_full(state, len(held)) else None

    def _runner(self, call: Call, mine: Sequence[Waiter], held: Sequence[Waiter], state: State) -> Waiter | None:
        """The wait of a call that runs: the only one of its name, or of all that run in that process.

        Ray takes a coroutine for running that its actor's event loop has not come to.
        """
        name = call.name.rpartition(".")[2]
        named = [each for each in mine if each.wait.call.rpartition(".")[2] == name]
        if len(named) == 1:
            return named[0] if any(named[0] is each for each in held) else None
        if blocking := [each for each in held if each.wait.blocks]:
            return blocking[0]
        return held[0] if len(held) == len(mine) >= self._running(state, 1) else None

    def _is_full(self, state: State, held: int) -> bool:
        """Whether so many waits are all the calls that an actor runs, and it can take no more.

        Of one with concurrency groups nobody says which call is of which.
        """
        if state.facts.grouped:
            return False
        running = self._running(state, held)
        return held >= running and running >= max(state.facts.concurrency, 1)

    def _running(self, state: State, unknown: int) -> int:
        running = self._case.now.running.get(state.facts.actor_id)
        return unknown if running is None else len(running)


def _key(wait: CallWait) -> tuple[str, tuple[str, ...], str]:
    return wait.thread, wait.tasks, wait.holder


def _for_locks(facts: ProcessFacts) -> tuple[CallWait, ...]:
    """Waits for what another thread or task of the same process has."""
    inner = (
        CallWait(each.thread, each.call, each.at, (), 1, False, False, False, each.what, each.holder)
        for each in facts.inner
        if each.holder and not each.shared
    )
    locks = (
        CallWait(each.thread, each.call, each.at, (), 1, False, False, False, "a lock", each.holder)
        for each in facts.locks
        if each.holder
    )
    return (*inner, *locks)


def _are_all_coroutines(state: State, held: Sequence[Waiter]) -> bool:
    """Whether these waits are all that an async actor is at: then a call of it is one of them, since it takes many."""
    equal = {(each.thread, each.at): each.count for each in state.facts.inner}
    count = sum(equal.get((each.wait.thread, each.wait.at), 1) for each in held)
    return 0 < state.facts.coroutines <= count < state.facts.concurrency


def _has_begun(call: Call, holder: Waiter) -> bool:
    own = call.name.rpartition(".")[2] == holder.wait.call.rpartition(".")[2]
    return runs(call) and (own or not holder.wait.blocks)


def runs(call: Call) -> bool:
    return call.state.startswith("RUNNING")
