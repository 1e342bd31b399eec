"""Loops that ask Ray again and again, and nothing that their condition looks at changes. Pure.

Such as `while len(done) < total: ready, _ = ray.wait(refs, ...)`: it turns, and comes to other lines, which looks like
work. It is a wait for others where these stand still, and a hang of its own where all others are idle. One sleep of
half a minute in such a loop is none: it is given a core once.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from devkit.hang import chains, words
from devkit.hang.case import Case
from devkit.hang.facts import Line, ProcessFacts, Values
from devkit.hang.records import Verdict
from devkit.hang.states import State

MOST_TOLD = 2  # of those that wait
TURNS = 4  # between the samples; a wait of Ray's looks around once a second
_TURNING = frozenset({"sleep", "ray"})


class Asker(NamedTuple):
    """A process in such a loop."""

    state: State
    line: Line
    loop: str
    values: Values

    @property
    def said(self) -> str:
        values = ", ".join(f"{name} = {value}" for name, value in self.values)
        return f"`{self.loop}` ({values})"


def settled(case: Case) -> Case:
    """The case in which those that only ask wait for others, if no other process moves."""
    found = {each.state.facts.id: each for state in case.states if (each := _asker(case, state)) is not None}
    others = [state for state in case.states if state.facts.id not in found]
    moves = any(state.moved or state.advanced or state.doing == "busy" or state.works_beside for state in others)
    if not found or moves or _unseen(case, others, found):
        return case
    states = (
        replace(state, moved=False, place=one.line.at, asks=one.said) if (one := found.get(state.facts.id)) else state
        for state in case.states
    )
    return replace(case, states=tuple(states))


def verdict(case: Case) -> Verdict | None:
    """Where one process asks, nobody else has anything to do but to wait for it, and Ray has no call for anybody."""
    found = [each for state in case.states if state.asks and (each := _asker(case, state)) is not None]
    if len(found) != 1:
        return None
    [one] = found
    others = [state for state in case.states if state is not one.state]
    if any(state.doing not in ("idle", "ray") for state in others):
        return None
    if case.now.pending:
        return None
    at = words.at_frame(one.line.at)
    text = (
        f"no progress: {words.name(one.state)} is in the loop {one.said}{at}, where nothing that this looks at has "
        f"changed in {words.span(case.seconds)}; it asks Ray for results, and {_rest(case, others)}"
    )
    evidence = words.waits(case.states)
    return Verdict("stuck", text, words.culprit(one.state, one.line.at), None, evidence, case.decided(0.0))


def _unseen(case: Case, others: Sequence[State], askers: Container[str]) -> bool:
    """Whether a task runs in a process that is idle to us, or that we don't know: it may be what is asked for."""
    at_it = {state.facts.id for state in others if state.doing != "idle"}
    return any(each not in at_it and each not in askers for each, tasks in case.now.tasks.items() if tasks)


def _asker(case: Case, state: State) -> Asker | None:
    before = case.before.get(state.facts.id)
    if before is None or state.advanced or state.doing not in _TURNING or not _turns(before, state.facts):
        return None
    earlier = {(line.at.file, line.asking) for stack in before.standing for line in stack.lines[:1]}
    still = (line for line in _asking(state) if (line.at.file, line.asking) in earlier)
    line = next(still, None)
    if line is None or line.asking is None:
        return None
    return Asker(state, line, *line.asking)


def _turns(before: ProcessFacts, now: ProcessFacts) -> bool:
    """Whether the thread that works has been given a core again and again."""
    name = now.thread.name if now.thread else ""
    earlier = next((each.turns for each in before.threads if each.name == name), None)
    return earlier is not None and now.thread is not None and now.thread.turns - earlier >= TURNS


def _rest(case: Case, others: Sequence[State]) -> str:
    """What keeps the others: those that wait, with what they wait for as far as that is known."""
    waiting = [state for state in others if state.doing == "ray"]
    if not waiting:
        return "all other processes are idle" if others else "there is no other process"
    known = chains.awaited(case)
    told = [f"{words.name(each)} waits {known[each.facts.id][0]}" for each in waiting if each.facts.id in known]
    rest = f"as {words.named(waiting)} {words.verb(waiting, 'does', 'do')}"
    return f"all others are idle or wait, {rest}" + "".join(f"; {each}" for each in told[:MOST_TOLD])


def _asking(state: State) -> Iterator[Line]:
    for stack in state.facts.standing:
        line = stack.lines[0]
        if line.asking is not None and line.asking[1]:
            yield line


__all__ = ["settled", "verdict"]
