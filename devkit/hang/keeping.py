"""What the actors and functions behind a hang keep: counters, flags and queues often are the cause itself. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from devkit.debug.naming import short_path
from devkit.hang import lines, words
from devkit.hang.case import Case
from devkit.hang.facts import Values
from devkit.hang.states import State

FUNCTIONS = 2  # of a process, whose variables are shown
ACTORS = 3  # of other classes than the one that is to blame


def evidence(case: Case, blamed: State) -> Iterator[str]:
    """Of who is to blame, and of one actor of each other class."""
    yield from _of(blamed)
    classes = {blamed.facts.role: blamed}
    for state in case.states:
        if state.facts.keeps and not case.is_child(state):
            classes.setdefault(state.facts.role, state)
    for state in list(classes.values())[1 : ACTORS + 1]:
        yield _attributes(state)


def _of(state: State) -> Iterator[str]:
    if state.facts.keeps:
        yield _attributes(state)
    stacks = sorted(state.facts.standing, key=lambda stack: stack.lines[0].at != state.place)
    first = {stack.lines[0].at: stack.lines[0] for stack in reversed(stacks)}
    known = [line for line in reversed(first.values()) if line.keeps]
    for line in known[:FUNCTIONS]:
        at = f"{short_path(line.at.file)}:{line.at.line} in {line.at.function}"
        yield f"{lines.INDENT if state.facts.keeps else f'{words.name(state)} '}at {at}: {_said(line.keeps)}"


def _attributes(state: State) -> str:
    return f"{words.name(state)} has {_said(state.facts.keeps)}"


def _said(known: Values) -> str:
    return ", ".join(f"{name} = {value}" for name, value in known)
