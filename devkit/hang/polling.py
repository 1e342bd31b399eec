"""Loops that look for an actor by its name, and never find it: they move, and get nowhere. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from devkit.hang import words
from devkit.hang.case import Case
from devkit.hang.facts import Lookup, NamedActor
from devkit.hang.records import Verdict
from devkit.hang.states import State

ENDED = "DEAD"
SHOWN = 5  # names
_AT_REST = frozenset({"idle", "ray", "sleep", "wait", "lock", "io"})


def verdict(case: Case) -> Verdict | None:
    """Where somebody has looked for a name in vain between both samples, and nobody else is at work."""
    polls = [(state, found) for state in case.states if (found := _in_vain(case, state))]
    mine = {state.facts.id for state, _ in polls}
    others = [state for state in case.states if state.facts.id not in mine]
    if not polls or any(state.advanced or state.moved or state.doing not in _AT_REST for state in others):
        return None
    state, found = min(polls, key=lambda each: words.rank(each[0]))
    what = "looks for the actor" if found.name else "lists the named actors"
    text = f"no progress: {words.name(state)} {what} {_said(found)}{words.at_frame(found.at)}, "
    known = _known if found.name else _listed
    text += f"{found.count} times in {words.span(found.seconds)}; {known(found, case.now.named)}"
    evidence = words.waits(case.states)
    return Verdict("stuck", text, words.culprit(state, found.at), None, evidence, case.decided(found.seconds))


def _in_vain(case: Case, state: State) -> Lookup | None:
    """What a process looked for in this time, if it did not make a step, either."""
    before = case.before.get(state.facts.id)
    if before is None or state.advanced:
        return None
    earlier = {(each.name, each.namespace): each.count for each in before.lookups}
    return next(
        (each for each in state.facts.lookups if each.count > earlier.get((each.name, each.namespace), each.count)),
        None,
    )


def _said(found: Lookup) -> str:
    return f"{found.name!r} in namespace {found.namespace!r}" if found.name else f"of namespace {found.namespace!r}"


def _listed(found: Lookup, actors: Sequence[NamedActor]) -> str:
    """What there is, here and elsewhere."""
    living = [each for each in actors if each.state != ENDED]
    here = sorted(each.name for each in living if each.namespace == found.namespace)
    text = f"there {_are(here)}"
    for namespace in sorted({each.namespace for each in living} - {found.namespace}):
        there = sorted(each.name for each in living if each.namespace == namespace)
        text += f"; in namespace {namespace!r} there {_are(there)}: all_namespaces=True lists them, too"
    return text


def _are(names: Sequence[str]) -> str:
    """
    >>> _are([]), _are(["a"]), _are(list("abcdefg"))
    ('are none', "is 'a'", "are 'a', 'b', 'c', 'd', 'e' and 2 more")
    """
    shown = ", ".join(map(repr, names[:SHOWN]))
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{'is' if len(names) == 1 else 'are'} {shown}{more}" if names else "are none"


def _known(found: Lookup, actors: Sequence[NamedActor]) -> str:
    """Who has that name elsewhere, had it before, or has one like it."""
    living = [each for each in actors if each.state != ENDED]
    if elsewhere := [each for each in living if each.name == found.name and each.namespace != found.namespace]:
        where = " and ".join(sorted({repr(each.namespace) for each in elsewhere}))
        return f"there is one of that name in namespace {where}: {_pass(elsewhere[0])}"
    here = [each for each in actors if each.namespace == found.namespace]
    if same := [each for each in here if each.name == found.name]:
        each = next((each for each in same if each.state != ENDED), same[-1])  # one may have had the name before
        return f"it is {each.state}" if each.state != ENDED else _ended(each)
    names = sorted({each.name for each in here if each.state != ENDED})
    if near := get_close_matches(found.name, names, 1):
        return f"there is none, but one called {near[0]!r}"
    return f"there is none; named actors there: {', '.join(map(repr, names[:SHOWN])) or 'none'}"


def _ended(one: NamedActor) -> str:
    return f"there was one, a {one.class_name}, and it is dead{f': {one.why}' if one.why else ''}"


def _pass(other: NamedActor) -> str:
    return f"pass namespace={other.namespace!r}, or the same namespace to ray.init in both programs"
