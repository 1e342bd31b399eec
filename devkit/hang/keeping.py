"""What the actors and functions behind a hang keep: counters, flags and queues often are the cause itself. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from devkit.debug.naming import short_path
from devkit.debug.stack_groups import Frame
from devkit.hang import lines, models, words
from devkit.hang.case import Case
from devkit.hang.standing import Values
from devkit.hang.states import State

FUNCTIONS = 2  # of a process, whose variables are shown
ACTORS = 3  # classes of actors, besides that of who is to blame
SHOWN = 4  # actors of one class
DIFFERENT = 3  # values of a variable of several calls


def evidence(case: Case, blamed: State) -> Iterator[str]:
    """Of who is to blame, and of the actors of each other class: the one that differs may be the cause."""
    yield from _of(blamed)
    classes: dict[str, list[State]] = {}
    for state in case.states:
        if state.facts.keeps and not case.is_child(state) and state.facts.role != blamed.facts.role:
            classes.setdefault(state.facts.role, []).append(state)
    shown = list(classes.values())[:ACTORS]
    for alike in shown:
        yield _attributes(alike)
    same = [state for state in case.states if state.facts.role == blamed.facts.role and not case.is_child(state)]
    yield from models.differences([*same, *(state for alike in shown for state in alike)])


def of_holders(case: Case) -> Iterator[str]:
    """Of the actors that hold what others ask Ray for, class by class: how these differ may say which is left over."""
    places = {holder.place for holder in case.now.holders}
    classes: dict[str, list[State]] = {}
    for state in case.states:
        if state.facts.keeps and state.facts.actor_id in places:
            classes.setdefault(state.facts.role, []).append(state)
    yield from (_attributes(alike) for alike in list(classes.values())[:ACTORS])


def _of(state: State) -> Iterator[str]:
    if state.facts.keeps:
        yield _attributes([state])
    stacks = sorted(state.facts.standing, key=lambda stack: stack.lines[0].at != state.place)
    places: dict[Frame, list[Values]] = {}
    for stack in stacks:
        places.setdefault(stack.lines[0].at, []).append(stack.lines[0].keeps)
    known = [(place, kept) for place, kept in places.items() if any(kept)]
    for place, kept in known[:FUNCTIONS]:
        of = lines.sampled([state], len(kept)) if place == state.place else ""
        at = f"{short_path(place.file)}:{place.line} in {place.function}{f', of {of}' if of else ''}"
        yield f"{lines.INDENT if state.facts.keeps else f'{words.name(state)} '}at {at}: {_of_several(kept)}"


def _of_several(kept: Sequence[Values]) -> str:
    """Of several calls that stand at one line.

    >>> _of_several([(("i", "1"), ("n", "4")), (("i", "2"), ("n", "4"))])
    'i = 1 or 2, n = 4'
    """
    names = dict.fromkeys(name for values in kept for name, _ in values)
    known = [dict(values) for values in kept]
    found = ((name, list(dict.fromkeys(each[name] for each in known if name in each))) for name in names)
    return ", ".join(f"{name} = {lines.either(values, DIFFERENT)}" for name, values in found)


def _attributes(states: Sequence[State]) -> str:
    """Of one, or of several of a class: what they all have once, and what is different with whose it is."""
    shown = states[:SHOWN]
    if len(shown) == 1:
        return f"{words.name(shown[0])} has {_said(shown[0].facts.keeps)}"
    known = [dict(state.facts.keeps) for state in shown]
    names = dict.fromkeys(name for each in known for name in each)
    more = f" and {len(states) - len(shown)} more" if len(states) > len(shown) else ""
    parts = ", ".join(_of_all(name, [each.get(name, "nothing") for each in known]) for name in names)
    own = (f"pid {state.facts.pid}" if state.facts.rank is None else f"rank {state.facts.rank}" for state in shown)
    return f"{shown[0].facts.title} {' | '.join(own)}{more} have {parts}"


def _of_all(name: str, values: Sequence[str]) -> str:
    """
    >>> _of_all("rank", ["0", "1"]), _of_all("size", ["8", "8"]), _of_all("rows", ["4", "4", "0"])
    ('rank = 0 | 1', 'size = 8', 'rows = 4 | 4 | 0')
    """
    return f"{name} = {values[0] if len(set(values)) == 1 else ' | '.join(values)}"


def _said(known: Values) -> str:
    return ", ".join(f"{name} = {value}" for name, value in known)
