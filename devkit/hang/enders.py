"""Calls of an actor that would end the wait of another one of its calls: queued behind that one, or nobody's. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from devkit.debug.naming import count
from devkit.hang.case import Case
from devkit.hang.facts import InnerWait, Sample
from devkit.hang.standing import Ends
from devkit.hang.states import State, inner_wait
from devkit.hang.words import listed

MOST = 2  # methods


def said(case: Case, state: State) -> str:
    """Behind a wait: what would end it and does not come, and what is queued in its concurrency group."""
    ends, inner = _ends(state), inner_wait(state)
    if state.doing != "wait" or inner is None:
        return ""
    ending = _queued(case, state, ends) if ends is not None and not inner.holder else []
    group, behind = _grouped(case, state, inner)
    main = _that_end(case, state)
    same = f", '{group}'"
    if ending and set(ending) <= set(behind):
        return (
            f"{main}; its class puts {'it' if len(set(ending)) == 1 else 'them'} into the same concurrency group{same}"
        )
    behind = [name for name in behind if name not in ending]
    if not behind:
        return main
    are = "are" if len(behind) > 1 else "is"
    put = f"which its class puts into the same concurrency group{same}"
    return f"{main}; {count(len(behind), 'call')} of {listed(sorted(set(behind)))}, {put}, {are} queued there"


def _grouped(case: Case, state: State, inner: InnerWait) -> tuple[str, list[str]]:
    """The concurrency group of the method that waits, and the calls of that group that have waited in the queue since
    the first sample. How many the group takes at once only its maker knows: were there a slot, they would run.
    """
    groups, actor = state.facts.method_groups, state.facts.actor_id
    group = groups.get(_method(inner.call), "")
    before = case.first.queued.get(actor, ())
    names = case.now.queued.get(actor, ()) if group else ()
    return group, [name for name in names if groups.get(_method(name)) == group and name in before]


def _that_end(case: Case, state: State) -> str:
    """`; no call of Server.publish, where it is notified, runs or is queued`; empty where that is not all there is.

    Whatever else is under way in that process may do it as well, and so may what is no method that others call.
    """
    ends, inner = _ends(state), inner_wait(state)
    if state.doing != "wait" or ends is None or inner is None or inner.holder:
        return ""
    methods = _methods(ends)
    if queued := _queued(case, state, ends):
        names = listed(sorted(set(queued)))
        are = "is" if len(queued) == 1 else "are"
        return f"; {count(len(queued), 'call')} of {names}, where it is {ends.how}, {are} queued there"
    running = {_method(name) for name in case.now.running.get(state.facts.actor_id, ())}
    is_known = _method(inner.call) in running  # else Ray's table does not have all of its calls
    if not is_known or not all(_is_of(each, state) for each in methods) or _has_more_to_do(state):
        return ""
    begun = {name for sample in (case.first, case.now) for name in _calls(sample, state.facts.actor_id)}
    return "" if begun & set(methods) else f"; no call of {listed(methods)}, where it is {ends.how}, runs or is queued"


def are_queued(case: Case, state: State) -> bool:
    """Whether calls of what ends the wait are queued behind it: then nothing needs to have gone wrong before."""
    ends = _ends(state)
    return ends is not None and bool(_queued(case, state, ends))


def _methods(ends: Ends) -> list[str]:
    return list(dict.fromkeys(each.function for each in ends.at))[:MOST]


def _queued(case: Case, state: State, ends: Ends) -> list[str]:
    methods = _methods(ends)
    return [name for name in case.now.queued.get(state.facts.actor_id, ()) if name in methods]


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


__all__ = ["are_queued", "said"]
