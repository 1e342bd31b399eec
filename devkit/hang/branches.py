"""A collective of all ranks under a condition that only some of them pass. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from devkit.hang import lines, words
from devkit.hang.groups import Stuck
from devkit.hang.standing import Line
from devkit.hang.states import State

_DEFAULT = "default_pg"  # torch's description of the group of all
_NAMES = re.compile(r"\b(?:self\.)?[A-Za-z_]\w*")


class Branch(NamedTuple):
    """Such a call, and the condition, behind where it is."""

    stuck: Stuck
    said: str


def of(found: Sequence[Stuck]) -> Branch | None:
    """The one of these that runs on the default group, and under a condition by whose values who waits differs from
    who does not; None of several.
    """
    branches = [branch for each in found if each.group.description == _DEFAULT and (branch := _branch(each))]
    return branches[0] if len(branches) == 1 else None


def _branch(stuck: Stuck) -> Branch | None:
    members = stuck.group.members
    there = [members[rank] for rank in stuck.waiting]
    others = [members[rank] for rank in stuck.group.ranks if rank in members and rank not in stuck.waiting]
    if not others or len(there) + len(others) < len(stuck.group.ranks):
        return None
    for line in _lines(there[0]):
        for name in _NAMES.findall(line.under):
            here, away = [_values(each, name, line) for each in there], [_values(each, name, line) for each in others]
            if all(here) and all(away) and set().union(*here).isdisjoint(set().union(*away)):
                value, other = (" or ".join(sorted(set().union(*each))) for each in (here, away))
                said = f"under `if {line.under}`, and {name} is {value} there and {other} in {words.named(others)}"
                return Branch(stuck, f"{said}: who does not pass that never comes to it")
    return None


def _lines(state: State) -> Iterator[Line]:
    return (line for stack in lines.at_place(state)[:1] for line in stack.lines if line.under)


def _values(state: State, name: str, at: Line) -> set[str]:
    """What an attribute is in a process, or a variable in its calls of the function of the condition."""
    if name.startswith("self."):
        return {value for each, value in state.facts.keeps if each == name.removeprefix("self.")}
    stacks = (line for stack in state.facts.standing for line in stack.lines)
    own = [line for line in stacks if (line.at.file, line.at.function) == (at.at.file, at.at.function)]
    return {value for line in own for each, value in (*line.keeps, *line.values, *line.which) if each == name}


__all__ = ["Branch", "of"]
