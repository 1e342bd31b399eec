"""Loops of actors that nothing but another call ends, and whoever waits for one, or behind one. Pure.

`while self.running` in a method of an actor that takes one call at a time: `stop` is queued behind it, as is whatever
else is called there. The loop works, and whoever waits for such a call does so for ever. So does who waits for the
call that is in the loop, where nobody is left to call what ends it: a service that was joined as if it were work.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from devkit.debug.naming import short_path
from devkit.debug.stack_groups import MAIN
from devkit.hang import chains, words
from devkit.hang.calls import QUEUED
from devkit.hang.case import Case
from devkit.hang.chains import End
from devkit.hang.facts import ProcessFacts
from devkit.hang.records import Verdict
from devkit.hang.standing import Endless, Line, Standing
from devkit.hang.states import State

_WAITS = frozenset({"idle", "ray", "collective"})  # for somebody else


class _Taken(NamedTuple):
    """A call that can't begin, and the loop that it waits behind."""

    end: End
    holder: State
    line: Line
    loop: Endless


def verdict(case: Case) -> Verdict | None:
    """None where the job goes on without the one that waits."""
    found = [each for each in _taken(case) if _is_needed(each, case)]
    if not found or (found[0].end.waiter.facts.role != "driver" and any(state.advanced for state in case.states)):
        return None
    first = found[0]
    alike = [each.holder for each in found if each.loop == first.loop and each.end.waiter is first.end.waiter]
    values = ", ".join(f"{name} = {value}" for name, value in first.loop.values)
    text = (
        f"no progress: {words.name(first.end.waiter)} waits{words.at_frame(first.end.wait.at)} for "
        f"{first.end.call.name if first.end.call else 'a call'}, queued at {words.named(alike)}, which "
        f"{words.verb(alike, 'takes', 'take')} one call at a time and {words.verb(alike, 'is', 'are')} in the loop "
        f"`{first.loop.loop}`{f' ({values})' if values else ''}{words.at_frame(first.line.at)}: {_ends(first)}"
    )
    culprit = words.culprit(first.holder, first.line.at)
    return Verdict("stuck", text, culprit, None, words.waits(case.states, chains.awaited(case)), case.decided(0.0))


def joined(case: Case) -> Verdict | None:
    """Who waits for such a loop to end, while nobody is at work who could call what ends it."""
    for end in chains.ends(case):
        state, waiter = end.holder, end.waiter
        if state is None or end.call is None or not end.runs or end.wait.ends:
            continue
        line = _loop_of(end.call.name, state, case.before.get(state.facts.id))
        if line is None or line.endless is None or _may_be_called(case, state, line.endless, waiter):
            continue
        if len(end.wait.tasks) - 1 >= end.wait.needed:
            continue
        file, loop = short_path(line.at.file), line.endless
        values = f" ({', '.join(f'{name} = {value}' for name, value in loop.values)})" if loop.values else ""
        who = " or ".join(f"{each.function} ({file}:{each.line})" for each in loop.by)
        text = (
            f"no progress: {words.name(waiter)} waits{words.at_frame(end.wait.at)} for {end.call.name}, which is in "
            f"the loop `{loop.loop}`{values}{words.at_frame(line.at)} in {words.name(state)}: only an exception or a "
            f"call of {who} would end it, as far as {file} shows, and no process of the job is at work that may call it"
        )
        evidence = words.waits(case.states, chains.awaited(case))
        return Verdict("stuck", text, words.culprit(waiter, end.wait.at), None, evidence, case.decided(0.0))
    return None


def _loop_of(call: str, state: State, before: ProcessFacts | None) -> Line | None:
    """The line of the function that was called, in such a loop, then and now; a loop without a condition is no service
    that somebody could end.
    """
    name = call.rpartition(".")[2]
    now, then = (
        {line.at.function: line for stack in each.standing for line in stack.lines}
        for each in (state.facts, before or state.facts)
    )
    mine = [
        line
        for line in now.values()
        if line.at.function.rpartition(".")[2] == name and line.endless and line.endless.by
    ]
    known = then.get(mine[0].at.function) if len(mine) == 1 and before is not None else None
    return mine[0] if known is not None and known.endless == mine[0].endless else None


def _may_be_called(case: Case, holder: State, loop: Endless, waiter: State) -> bool:
    """Whether somebody is at work, or may wake up by himself, or is in a call that ends the loop already."""
    begun = {name.rpartition(".")[2] for name in case.now.running.get(holder.facts.actor_id, ())}
    if not begun.isdisjoint(each.function for each in loop.by):
        return True
    others = [each for each in case.states if each is not holder and each is not waiter]
    return any(each.advanced or each.moved or each.works_beside or each.doing not in _WAITS for each in others)


def _taken(case: Case) -> Iterator[_Taken]:
    for end in chains.ends(case):
        if end.call is None or end.call.state not in QUEUED or end.wait.ends or end.holder is None:
            continue
        before, earlier = case.before.get(end.waiter.facts.id), case.before.get(end.holder.facts.id)
        waited = before is not None and any(each.tasks == end.wait.tasks for each in before.waits)
        if not waited or earlier is None or end.holder.facts.concurrency != 1 or end.holder.facts.grouped:
            continue
        line, then = _line(end.holder.facts.standing), _line(earlier.standing)
        if line and then and line.endless and then.endless == line.endless and then.at.function == line.at.function:
            yield _Taken(end, end.holder, line, line.endless)


def _line(standing: tuple[Standing, ...]) -> Line | None:
    """The one in such a loop, of the thread that takes an actor's calls."""
    lines = (line for stack in standing if stack.thread == MAIN for line in stack.lines if line.endless)
    return next(lines, None)


def _is_needed(one: _Taken, case: Case) -> bool:
    """Whether too few of what is waited for can still come."""
    mine = {each.end.call.id for each in _taken(case) if each.end.wait == one.end.wait and each.end.call}
    return len(one.end.wait.tasks) - len(mine) < one.end.wait.needed


def _ends(one: _Taken) -> str:
    if not one.loop.by:
        return "nothing in that loop ends it, unless something in it raises an exception"
    file = short_path(one.line.at.file)
    who = " or ".join(f"{each.function} ({file}:{each.line})" for each in one.loop.by)
    return (
        f"only an exception or a call of {who} would end it, as far as {file} shows, and that call can't begin either"
    )


__all__ = ["joined", "verdict"]
