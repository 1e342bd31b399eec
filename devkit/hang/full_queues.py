"""Processes that wait to put something into full queues of `ray.util.queue`, and who should take from these. Pure.

Whoever is behind with taking may be the cause, and a feeder that is ahead is none. Where all that take from a queue
wait themselves for room in the next one, and so on back to the first, nothing moves any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from devkit.debug.inworker.identity import DRIVER
from devkit.debug.stack_groups import Frame
from devkit.hang import chains, words
from devkit.hang.calls import OWN_PART, runs
from devkit.hang.case import Case
from devkit.hang.facts import CallWait
from devkit.hang.records import Kind, Verdict
from devkit.hang.states import State

PUT = "_QueueActor.put"
PUTS = "to put something into"
FULL = "ray.util.queue.Queue that is full"
MOST = 4  # queues of a circle


class Putter(NamedTuple):
    """A process that waits for room in a queue."""

    state: State
    wait: CallWait
    queue: str  # the id of its actor


class Step(NamedTuple):
    """Those that wait for room in one queue, and belong to a circle; and who takes from that, with the line."""

    putters: tuple[Putter, ...]
    takers: tuple[tuple[Putter, Frame], ...]


def verdict(case: Case) -> Verdict | None:
    """None where somebody moves, or something else than a full queue is waited for at last."""
    putters = [each for state in case.states if (each := _putter(case, state)) is not None]
    queues = {each.queue for each in putters}
    if len(queues) < 2 or any(_may_take(state, putters, queues) for state in case.states):
        return None
    circle = next((found for each in _by_likelihood(putters) if (found := _circle(each, putters))), ())
    evidence = words.waits(case.states, chains.awaited(case))
    first = (circle[0].putters if circle else _by_likelihood(putters))[0]
    text = _of_circle(circle) if circle else _of_all(putters)
    kind: Kind = "deadlock" if circle else "stuck"
    sentence = f"{'deadlock' if circle else 'no progress'}: {text}"
    return Verdict(kind, sentence, words.culprit(first.state, first.wait.at), None, evidence, case.decided(0.0))


def _putter(case: Case, state: State) -> Putter | None:
    """By its only wait without a time-out, which was there before."""
    before = case.before.get(state.facts.id)
    waits = [each for each in state.facts.waits if not each.ends]
    if state.doing != "ray" or state.moved or before is None or len(waits) != 1 or len(waits[0].tasks) != 1:
        return None
    task = waits[0].tasks[0]
    call = case.now.calls.get(task)
    stays = any(task in each.tasks for each in before.waits)
    if call is None or call.name != PUT or not runs(call) or not stays:
        return None
    return Putter(state, waits[0], task[OWN_PART:])


def _may_take(state: State, putters: Sequence[Putter], queues: set[str]) -> bool:
    """Whether it is at something else: that may end with taking from one of the queues."""
    if state.facts.actor_id in queues or any(each.state is state for each in putters):
        return False
    return state.doing != "idle" or state.moved or state.advanced


def _by_likelihood(putters: Sequence[Putter]) -> list[Putter]:
    """The driver first: it is what the rest is for."""
    return sorted(putters, key=lambda each: (each.state.facts.role != DRIVER, words.rank(each.state)))


def _circle(start: Putter, putters: Sequence[Putter]) -> tuple[Step, ...]:
    """From one back to itself, by who takes from the queue in which each waits for room."""
    steps: list[Step] = []
    queue = start.queue
    while len(steps) < MOST:
        takers = tuple((each, at) for each in putters for taken, at in each.wait.takes if taken == queue)
        after = {each.queue for each, _ in takers}
        if not takers or len(after) != 1:
            return ()
        came = {id(each) for each, _ in steps[-1].takers} if steps else {id(start)}
        steps.append(Step(tuple(each for each in putters if id(each) in came), takers))
        queue = after.pop()
        if any(each is start for each, _ in takers):
            return tuple(steps) if queue == start.queue and len(steps) > 1 else ()
    return ()


def _of_circle(circle: Sequence[Step]) -> str:
    parts = []
    for number, step in enumerate(circle):
        which = f"a {FULL}" if not number else "another one that is full"
        takers = [each.state for each, _ in step.takers]
        take = words.verb(takers, "takes", "take")
        line = words.at_frame(step.takers[0][1]) if len({at for _, at in step.takers}) == 1 else ""
        parts.append(f"{_wait(step.putters)} {PUTS} {which}, from which {words.named(takers)} {take}{line}")
    return f"{'; '.join(parts)}: they wait for each other"


def _wait(putters: Sequence[Putter]) -> str:
    """Who waits, line by line."""
    places: dict[Frame, list[State]] = {}
    for each in putters:
        places.setdefault(each.wait.at, []).append(each.state)
    return words.listed([f"{words.they(there, 'waits', 'wait')}{words.at_frame(at)}" for at, there in places.items()])


def _of_all(putters: Sequence[Putter]) -> str:
    """Of several queues from which nobody is seen to take: those that wait at each."""
    by_queue: dict[str, list[Putter]] = {}
    for each in _by_likelihood(putters):
        by_queue.setdefault(each.queue, []).append(each)
    parts = []
    for number, there in enumerate(list(by_queue.values())[:MOST]):
        parts.append(f"{_wait(there)} {PUTS} {'another one that is full' if number else f'a {FULL}'}")
    return f"{'; '.join(parts)}; nobody is at work who could take from them"


__all__ = ["verdict"]
