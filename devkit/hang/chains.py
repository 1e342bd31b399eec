"""Where the waits for results of Ray lead: what is waited for at last, and who is at it. Pure.

A process that waits for another's call points to that one; the end of the chain is a call whose process waits for
nobody, or a call that no process has begun.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from devkit.debug.inworker.words import ASLEEP
from devkit.hang import reasons, words
from devkit.hang.calls import NO_ACTOR, OWN_PART, QUEUED, runs
from devkit.hang.case import NOTHING, Case, Seen, case_of
from devkit.hang.facts import Call, CallWait, Sample
from devkit.hang.records import Verdict
from devkit.hang.states import State, inner_wait, polled

NO_PLACE, NO_ARGUMENTS = "PENDING_NODE_ASSIGNMENT", "PENDING_ARGS_AVAIL"
_QUEUES = {  # Ray's own queue is an actor with these methods
    "_QueueActor.put": "to put something into a ray.util.queue.Queue that is full",
    "_QueueActor.get": "for something from a ray.util.queue.Queue that is empty",
}
_PAUSED = "in no line of the program, as a generator is that waits until somebody takes what it has yielded"
_NOT_BEGUN = {
    NO_ARGUMENTS: "whose arguments are not there yet",
    NO_PLACE: "for which Ray has found no place",
    "PENDING_OBJ_STORE_MEM_AVAIL": "for whose arguments the object store has no room",
    **dict.fromkeys(
        ("PENDING_ARGS_FETCH", "PENDING_ACTOR_TASK_ARGS_FETCH", "GETTING_AND_PINNING_ARGS"),
        "whose arguments are still on their way to its process",
    ),
    "FAILED": "which has failed, and whose error has not come",
    "FINISHED": "which has ended",  # between two looks, as a rule
}


class End(NamedTuple):
    """The last wait of a chain."""

    waiter: State
    wait: CallWait
    call: Call | None  # None: Ray's table does not have it
    holder: State | None  # whose process runs it, or is to take it; None: not known here

    @property
    def runs(self) -> bool:
        return self.call is not None and runs(self.call)

    @property
    def has_ended(self) -> bool:
        return self.call is not None and self.call.state == "FINISHED"


def judged(first: Sample, now: Sample, patience: float, seen: Seen = NOTHING) -> Case:
    """The case of two samples, in which a process that sleeps or waits beside the call that others wait for is where
    that call is.
    """
    case = case_of(first, now, patience, seen)
    called: dict[str, list[End]] = {}
    for end in _waits(case):
        if end.holder is not None and end.runs:
            called.setdefault(end.holder.facts.id, []).append(end)
    places = {each: place for each, found in called.items() if (place := _of_calls(found)) is not None}
    return replace(case, states=tuple(places.get(state.facts.id, state) for state in case.states))


def _of_calls(found: Sequence[End]) -> State | None:
    """The state of a process that is to answer, if what others have called waits at another line than it is said to."""
    state, names = found[0].holder, [end.call.name.rpartition(".")[2] for end in found if end.call is not None]
    if state is None or state.moved or state.doing not in ("sleep", "wait"):
        return None
    inner = inner_wait(state)
    if state.doing == "wait" and (inner is None or inner.call.rpartition(".")[2] in names):
        return None
    return next((place for name in names if (place := _of_call(state, name)) is not None), None)


def _of_call(state: State, name: str) -> State | None:
    for wait in state.facts.waits:
        if wait.call.rpartition(".")[2] == name and not wait.side:
            return replace(state, doing="ray", place=wait.at, about="")
    for inner in state.facts.inner:
        if inner.call.rpartition(".")[2] == name and inner.at != state.place:
            if inner.what != ASLEEP:
                return replace(state, doing="wait", place=inner.at, about=inner.what)
            if state.doing == "wait":
                there = replace(state, doing="sleep", place=inner.at)
                return replace(there, about=polled(there))
    return None


def ends(case: Case) -> list[End]:
    """Of all chains; those of which most is known come first."""
    return _best(end for end in _waits(case) if end.holder is None or end.holder.doing != "ray")


def _waits(case: Case) -> Iterator[End]:
    for state in case.states:
        if state.doing == "ray":
            yield from _of(case, state)


def _best(found: Iterable[End]) -> list[End]:
    """Those that run before all others; of several that are waited for together, one that has ended is no cause."""
    return sorted(
        found, key=lambda end: (not (end.runs and end.holder), end.has_ended, end.call is None, end.holder is None)
    )


def _of(case: Case, state: State) -> Iterator[End]:
    for wait in state.facts.waits:
        for task in wait.tasks:
            yield _end(case, state, wait, task)


def _end(case: Case, state: State, wait: CallWait, task: str) -> End:
    call, actor = case.now.calls.get(task), task[OWN_PART:]
    own = None if actor.startswith(NO_ACTOR) else case.by_actor.get(actor)
    return End(state, wait, call, own or case.by_id.get(call.worker if call else ""))  # who is mute tells no actor's id


def awaited(case: Case) -> dict[str, tuple[str, str]]:
    """By process that waits for results: for what, in words, and the process that has that call to do, or ""."""
    found: dict[str, tuple[str, str]] = {}
    known = [end for end in _best(_waits(case)) if end.call is not None]
    for end in sorted(known, key=lambda each: each.wait.at != each.waiter.place):  # several threads may wait
        if end.call is not None and end.waiter.facts.id not in found:
            holder = end.holder.facts.id if end.holder else ""
            found[end.waiter.facts.id] = said(case, end), holder
    return found


def holders(case: Case) -> frozenset[str]:
    """The processes that have a call to do for which somebody waits."""
    return frozenset(end.holder.facts.id for end in _waits(case) if end.holder)


def asked(case: Case) -> frozenset[tuple[str, str]]:
    """(call, who waits for it), by their names."""
    return frozenset((end.call.name, end.waiter.facts.title) for end in _waits(case) if end.call is not None)


def end_of(case: Case, state: State) -> End | None:
    """What a process that waits for results waits for, of which most is known."""
    known = (end for end in _best(_of(case, state)) if end.call is not None) if state.doing == "ray" else ()
    return next(iter(known), None)


def said(case: Case, end: End) -> str:
    """Behind "waits": "for Engine.check, queued at Engine rank 1"."""
    return _awaited(end, case.now.running, case.now.held_up) + _arguments(case, end) + _there(case, end)


def _there(case: Case, end: End) -> str:
    """Of several results that are waited for at once, how many are there: the one that is named is what is missing."""
    known = [case.now.calls.get(task) for task in end.wait.tasks]
    there = sum(call is not None and call.state == "FINISHED" for call in known)
    if not there or end.has_ended:
        return ""
    return f" ({there} of {len(known)} results {'is' if there == 1 else 'are'} there)"


def _arguments(case: Case, end: End) -> str:
    """Of a call whose arguments are not there: a result that the one who waits has, and that does not come."""
    if end.call is None or end.call.state != NO_ARGUMENTS or end.call.attempt:
        return ""
    near = ((name, _end(case, end.waiter, end.wait, task)) for name, task in end.wait.near)
    missing = ((name, each) for name, each in near if each.call is not None and not each.has_ended)
    name, inner = next(missing, ("", None))
    told = _awaited(inner, case.now.running, case.now.held_up).removeprefix("for ") if inner else ""
    return f": {name} is a result of {told}" if inner else ""


def for_nobody(case: Case, waiters: Sequence[State], evidence: tuple[str, ...]) -> Verdict:
    """All wait for results of Ray, and nobody is seen at work: what the last of them waits for."""
    end = next(iter(ends(case) or _best(_waits(case))), None)  # in a circle there is no end
    first = end.waiter if end else words.first(waiters)
    at = words.at_frame(end.wait.at) if end else words.at(first)
    what = said(case, end) if end else _awaited(None, {}, {})
    text = f"no progress: {words.name(first)} waits{at} {what}{_behind_loop(case, end) if end else ''}"
    blamed = end.holder if end and end.holder else first
    return Verdict("stuck", text, words.culprit(blamed), None, evidence, case.decided(0.0))


def _behind_loop(case: Case, end: End) -> str:
    """Of a wait in a coroutine that blocks its actor's event loop: the calls that others wait for, and cannot run."""
    if not end.wait.blocks:
        return ""
    others = (each for each in _waits(case) if each.waiter is not end.waiter and each.call and not each.has_ended)
    of_it = [each for each in others if each.holder is end.waiter]
    waiters = list(dict.fromkeys(words.name(each.waiter) for each in of_it))
    called = list(dict.fromkeys(each.call.name for each in of_it if each.call is not None))
    if not of_it:
        return "; that blocks the event loop of its actor"
    wait = "waits" if len(waiters) == 1 else "wait"
    return f"; that blocks the event loop of its actor, where {words.listed(waiters)} {wait} for {words.listed(called)}"


Calls = Mapping[str, Sequence[str]]  # by actor, their names


def _awaited(end: End | None, running: Calls, held_up: Calls) -> str:
    """
    >>> _awaited(None, {}, {})
    'for a result of which Ray does not say who computes it'
    """
    if end is None or end.call is None:
        return "for a result of which Ray does not say who computes it"
    call, holder = end.call, end.holder
    if runs(call) and holder is not None and _has_no_turn(call, holder):
        return f"for {call.name}, queued at {words.name(holder)}, whose event loop is blocked"
    if runs(call):
        where = f"which runs in {words.name(holder)}" if holder else "which runs in a process that devkit has not seen"
        lineless = f", {_PAUSED}" if holder and holder.doing == "idle" else ""
        again = f" as its try number {call.attempt + 1}" if call.attempt else ""
        return _QUEUES.get(call.name) or f"for {call.name}, {where}{again}{lineless}"
    if call.state in QUEUED or (holder is not None and call.state == NO_PLACE):
        where = words.name(holder) if holder else "an actor that devkit is not in"
        return f"for {call.name}, queued at {where}{_before(holder, running, held_up)}"
    if call.state == NO_PLACE and not call.id[OWN_PART:].startswith(NO_ACTOR):
        return f"for {call.name}, whose actor is not running"
    if call.attempt and call.state == NO_ARGUMENTS:  # of an actor that is started anew, as a rule
        return f"for {call.name}, which Ray is to try again ({call.attempt} so far failed)"
    return f"for {call.name}, {_NOT_BEGUN.get(call.state, f'which is {call.state}')}"


def _has_no_turn(call: Call, holder: State) -> bool:
    """Ray calls what it has handed to an event loop running, also where that is blocked by another coroutine."""
    at_work = holder.facts.phase.split(", ") if holder.facts.phase else []
    blocked = bool(reasons.held_up(holder)) or any(
        wait.blocks and wait.at == holder.place for wait in holder.facts.waits
    )
    return blocked and bool(at_work) and call.name.rpartition(".")[2] not in at_work


def _before(holder: State | None, running: Calls, held_up: Calls) -> str:
    """What keeps an actor that is in no line of the program from taking the next call."""
    if holder is None or holder.doing != "idle":
        return ""
    begun, waiting = running.get(holder.facts.actor_id, ()), held_up.get(holder.facts.actor_id, ())
    if len(begun) == 1:
        return f" behind {begun[0]}, which has begun and is {_PAUSED}"
    return f" behind {waiting[0]}, {_NOT_BEGUN[NO_ARGUMENTS]}" if waiting else ""
