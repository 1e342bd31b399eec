"""Calls of an actor that would end the wait of another one of its calls: queued behind that one, or nobody's. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from devkit.debug.naming import count
from devkit.hang.case import Case
from devkit.hang.facts import Sample
from devkit.hang.standing import Ends
from devkit.hang.states import State, inner_wait
from devkit.hang.words import listed

MOST = 2  # methods


def said(case: Case, state: State) -> str:
    """`; no call of Server.publish, where it is notified, runs or is queued`; empty where that is not all there is.

    Whatever else is under way in that process may do it as well, and so may what is no method that others call.
    """
    ends, inner = _ends(state), inner_wait(state)
    if state.doing != "wait" or ends is None or inner is None or inner.holder:
        return ""
    methods = list(dict.fromkeys(each.function for each in ends.at))[:MOST]
    queued = [name for name in case.now.queued.get(state.facts.actor_id, ()) if name in methods]
    if queued:
        names = listed(sorted(set(queued)))
        are = "is" if len(queued) == 1 else "are"
        return f"; {count(len(queued), 'call')} of {names}, where it is {ends.how}, {are} queued there"
    running = {_method(name) for name in case.now.running.get(state.facts.actor_id, ())}
    is_known = _method(inner.call) in running  # else Ray's table does not have all of its calls
    if not is_known or not all(_is_of(each, state) for each in methods) or _has_more_to_do(state):
        return ""
    begun = {name for sample in (case.first, case.now) for name in _calls(sample, state.facts.actor_id)}
    return "" if begun & set(methods) else f"; no call of {listed(methods)}, where it is {ends.how}, runs or is queued"


def _ends(state: State) -> Ends | None:
    """What could end the wait at which it is said to be, if its file shows that."""
    lines = (stack.lines[0] for stack in state.facts.standing if stack.lines[0].at == state.place)
    return next((line.ends for line in lines if line.ends is not None and line.ends.at), None)


def _is_of(function: str, state: State) -> bool:
    """Whether it is a method of that actor that others may call."""
    owner, _, name = function.rpartition(".")
    return owner == state.facts.role and not name.startswith("_")


def _method(name: str) -> str:
    return name.rpartition(".")[2]


def _has_more_to_do(state: State) -> bool:
    return any(stack.lines[0].at != state.place for stack in state.facts.standing)


def _calls(sample: Sample, actor: str) -> Iterator[str]:
    yield from sample.running.get(actor, ())
    yield from sample.queued.get(actor, ())
    yield from sample.held_up.get(actor, ())


__all__ = ["said"]
