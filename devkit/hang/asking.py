"""Loops that ask Ray again and again, and nothing that their condition looks at changes. Pure.

Such as `while len(done) < total: ready, _ = ray.wait(refs, ...)`: it turns, and comes to other lines, which looks like
work. It is a wait for others where these stand still, and a hang of its own where all others are idle. One sleep of
half a minute in such a loop is none: it is given a core once.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from devkit.debug.naming import short_path
from devkit.debug.stack_groups import LOOP_THREAD, MAIN, TASK
from devkit.hang import chains, words
from devkit.hang.case import Case
from devkit.hang.facts import ProcessFacts
from devkit.hang.records import Verdict
from devkit.hang.standing import Asked, Line, Values, quoted
from devkit.hang.states import State

MOST_TOLD = 2  # of those that wait
MOST_PLACES = 3  # where something is added to
TURNS = 4  # between the samples; a wait of Ray's looks around once a second
_TURNING = frozenset({"sleep", "ray", "wait"})


class Asker(NamedTuple):
    """A process in such a loop."""

    state: State
    line: Line
    loop: str
    values: Values
    kept: str

    @property
    def without_end(self) -> bool:
        return self.line.asking is not None and self.line.asking.without_end

    @property
    def said(self) -> str:
        stale = self.line.asking.stale if self.line.asking is not None else ()
        values = ", ".join(f"{name} = {value}" for name, value in self.values if name not in stale)
        under = f", under `if {self.line.under}`," if self.line.under else ""
        return quoted(self.loop) + (f" ({values})" if values else "") + under


def settled(case: Case) -> Case:
    """The case in which those that only ask wait for others, if no other process moves."""
    found = {each.state.facts.id: each for state in case.states if (each := _asker(case, state)) is not None}
    others = [state for state in case.states if state.facts.id not in found]
    if (
        not found
        or any(_moves(case, state) for state in others)
        or _unseen(case, others, found)
        or _differ(case, found.values())
    ):
        return case
    states = (
        replace(state, moved=False, place=one.line.at, asks=one.said) if (one := found.get(state.facts.id)) else state
        for state in case.states
    )
    return replace(case, states=tuple(states))


def _moves(case: Case, state: State) -> bool:
    """Calls that come and go in an actor and change nothing there may be the asking itself."""
    before = case.before.get(state.facts.id)
    if before is not None and not before.stack.stack and state.doing == "idle" and before.keeps == state.facts.keeps:
        return state.advanced
    return state.moved or state.advanced or state.doing == "busy" or state.works_beside


def verdict(case: Case) -> Verdict | None:
    """Where some ask, nobody else has anything to do but to wait for them, and Ray has no call for anybody."""
    found = [each for state in case.states if state.asks and (each := _asker(case, state)) is not None]
    theirs = [each.state.facts.id for each in found]
    others = [state for state in case.states if state.facts.id not in theirs]
    if not found or case.now.pending or any(state.doing not in ("idle", "ray") for state in others):
        return None
    first = min(found, key=lambda each: (each.state.facts.role == "driver", words.rank(each.state)))
    alike = [each.state for each in found if _is_like(each, first)]
    them = words.they(alike, "is", "are")
    asks = f"{words.verb(alike, 'it asks', 'they ask')} {asked_for(case, first.line)}"
    text = (
        f"no progress: {them} in the loop {first.said}{words.at_frame(first.line.at)}, where nothing that this looks "
        f"at has changed in {words.span(case.seconds)}; {asks}"
    )
    text += "".join(f"; {_asks(each)}" for each in _different(found, first)[:MOST_TOLD])
    culprit = words.culprit(first.state, first.line.at)
    joined = "; " if len(alike) < len(found) else ", and "
    evidence = words.waits(case.states)
    return Verdict("stuck", f"{text}{joined}{_rest(case, others)}", culprit, None, evidence, case.decided(0.0))


def asked_for(case: Case, line: Line) -> str:
    """Behind "it asks": whom for what, what that gives, and what would have to change for another answer.

    Of several whose answers may keep it, none is picked out.
    """
    asked = line.asking.asked if line.asking is not None else ()
    whom = [(each, holder) for each in asked if (holder := case.by_actor.get(each.actor)) is not None]
    if not whom or len(whom) < len(asked):
        return "Ray for results"
    told = [f"{words.name(each)} for {one.method} at {short_path(line.at.file)}:{one.line}" for one, each in whom]
    if len(whom) > 1:
        return words.listed(told)
    [(each, holder)] = whom
    return f"{told[0]}{_gives(line, each)}{_grows(case, holder, each.method)}"


def _gives(line: Line, each: Asked) -> str:
    known = dict((*line.keeps, *(line.asking.values if line.asking is not None else ())))
    if each.answer in known:
        return f", and {each.answer}, what that gives, is {known[each.answer]}"
    given = ", ".join(f"{name} = {value}" for name, value in each.values)
    return f", and `if {each.test}`{f' ({given})' if given else ''} has not held" if each.test else ""


def _grows(case: Case, holder: State, method: str) -> str:
    """What the method reads, where nobody calls any more what changes that."""
    growing = holder.facts.growing.get(method)
    others = [each for each in case.states if each is not holder and not each.asks]
    if growing is None or holder.doing != "idle" or any(_moves(case, each) for each in others):
        return ""
    kept = dict(holder.facts.keeps)
    reads = [f"{name}{f' ({kept[name]})' if name in kept else ''}" for name in growing.reads]
    places = list(dict.fromkeys((at.function, short_path(at.file), at.line) for at in growing.at))[:MOST_PLACES]
    where = words.listed([f"{function} ({file}:{line})" for function, file, line in places])
    file = short_path(growing.at[0].file)
    more = f" and {len(growing.at) - len(places)} more places" if len(growing.at) > len(places) else ""
    them = "it" if len(reads) == 1 else "them"
    changes = "set, add to or take from" if growing.takes else "set or add to"
    return (
        f"; {method} reads {words.listed(reads)}, and only {where}{more} would {changes} {them}, as far as {file} "
        "shows: no call of that is seen"
    )


def _is_like(one: Asker, other: Asker) -> bool:
    return (one.state.facts.role, one.loop, one.line.at.file) == (
        other.state.facts.role,
        other.loop,
        other.line.at.file,
    )


def _different(found: Sequence[Asker], first: Asker) -> list[Asker]:
    """One of each other loop."""
    kinds = {(each.state.facts.role, each.loop): each for each in reversed(found) if not _is_like(each, first)}
    return list(reversed(kinds.values()))


def _asks(one: Asker) -> str:
    return f"{words.name(one.state)} does so in the loop {one.said}{words.at_frame(one.line.at)}"


def _differ(case: Case, found: Iterable[Asker]) -> bool:
    """Whether an actor has something else than before, where one asks without end: that may be what it is for."""
    if not any(each.without_end for each in found):
        return False
    before = case.before
    return any(each.facts.id in before and before[each.facts.id].keeps != each.facts.keeps for each in case.states)


def _unseen(case: Case, others: Sequence[State], askers: Container[str]) -> bool:
    """Whether a task runs in a process that is idle to us, or that we don't know: it may be what is asked for."""
    at_it = {state.facts.id for state in others if state.doing != "idle"}
    lasting = (each for each, tasks in case.now.tasks.items() if tasks & case.first.tasks.get(each, frozenset()))
    return any(each not in at_it and each not in askers for each in lasting)


def _asker(case: Case, state: State) -> Asker | None:
    before = case.before.get(state.facts.id)
    if before is None or state.advanced or not (_spins(before, state) or _sleeps_in_between(before, state)):
        return None
    if _waits_on(before, state.facts):
        return None
    then = (line for stack in before.standing for line in stack.lines[:1])
    earlier = {(line.at.file, line.asking.loops_on) for line in then if line.asking is not None}
    still = (line for line in _asking(state) if line.asking and (line.at.file, line.asking.loops_on) in earlier)
    line = next(still, None)
    if line is None or line.asking is None:
        return None
    return Asker(state, line, line.asking.loop, line.asking.values, line.asking.kept)


def _spins(before: ProcessFacts, state: State) -> bool:
    """Whether it computes, and was seen to ask: by `ray.wait(refs, timeout=0)`, say, without a sleep."""
    return state.doing == "busy" and bool(before.waits or state.facts.waits)


def _sleeps_in_between(before: ProcessFacts, state: State) -> bool:
    return state.doing in _TURNING and _turns(before, state.facts)


def _waits_on(before: ProcessFacts, now: ProcessFacts) -> bool:
    """Whether it is in one wait without a time-out, for the same as before: Ray looks around in that, too."""
    name = now.thread.name if now.thread else MAIN
    then, there = (
        {(each.at, each.tasks) for each in facts.waits if each.thread == name and not each.ends}
        for facts in (before, now)
    )
    return any(tasks for _, tasks in then & there)


def _turns(before: ProcessFacts, now: ProcessFacts) -> bool:
    """Whether the thread that works has been given a core again and again; of a coroutine, that of its loop."""
    name = now.thread.name if now.thread else ""
    if name.startswith(TASK):
        name = next((each.name for each in now.threads if each.name.startswith(LOOP_THREAD)), MAIN)
    turns = [each.turns for facts in (before, now) for each in facts.threads if each.name == name]
    return len(turns) == 2 and turns[1] - turns[0] >= TURNS


def told(askers: Sequence[State]) -> list[str]:
    """Behind another sentence: who asks, those in one loop together."""
    loops: dict[tuple[str, str], list[State]] = {}
    for state in askers:
        loops.setdefault((state.facts.role, state.asks), []).append(state)
    return [
        f"{words.they(alike, 'asks', 'ask', askers)} Ray again and again in the loop {loop}{words.at(alike[0])}"
        for (_, loop), alike in loops.items()
    ]


def _rest(case: Case, others: Sequence[State]) -> str:
    """What keeps the others: those that wait, with what they wait for as far as that is known."""
    waiting = [state for state in others if state.doing == "ray"]
    if not waiting:
        return f"no other process is seen at work{words.at_rest(others)}" if others else "there is no other process"
    known = chains.awaited(case)
    told = [f"{words.name(each)} waits {known[each.facts.id][0]}" for each in waiting if each.facts.id in known]
    rest = f"as {words.named(waiting)} {words.verb(waiting, 'does', 'do')}"
    return f"all others are idle or wait, {rest}" + "".join(f"; {each}" for each in told[:MOST_TOLD])


def _asking(state: State) -> Iterator[Line]:
    for stack in state.facts.standing:
        line = stack.lines[0]
        if line.asking is not None and (line.asking.values or line.asking.without_end):
            yield line


__all__ = ["asked_for", "settled", "told", "verdict"]
