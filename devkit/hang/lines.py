"""The lines of the program at which processes stand, with the values that these look at. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from devkit.debug.naming import short_path
from devkit.hang.facts import Line
from devkit.hang.states import State

INDENT = "    "
SHOWN = 3  # different values of one name
_WRITTEN = re.compile(r"\b\d|['\"]")


def told(states: Sequence[State]) -> list[str]:
    """What those that stand at one line look at there: the statement with its values, then who called it.

    A caller only where it shows a value: it is in the stacks anyway.
    """
    stacks = [stack for state in states for stack in at_place(state)]
    if not stacks or not stacks[0][0].text:
        return []
    lines = [INDENT + _line([stack[0] for stack in stacks])]
    for number in range(1, min(map(len, stacks))):
        callers = [stack[number] for stack in stacks]
        if len({caller.at for caller in callers}) == 1 and any(map(_tells, callers)):
            at = callers[0].at
            lines.append(f"{INDENT}called at {short_path(at.file)}:{at.line}: {_line(callers)}")
    return lines


def at_place(state: State) -> list[tuple[Line, ...]]:
    """Of the threads and coroutines that stand where the process is said to be."""
    return [stack for stack in state.facts.lines if stack[0].at == state.place]


def loops(state: State, before: Sequence[tuple[Line, ...]]) -> Iterator[str]:
    """The loops that a process at work is in, with what their conditions look at; `before` is of an earlier sample."""
    earlier = {(line.at.file, line.loop): line.looked_at for stack in before for line in stack if line.loop}
    seen: set[str] = set()
    for line in (line for stack in at_place(state) for line in stack):
        if line.loop and line.loop not in seen:
            seen.add(line.loop)
            same = bool(line.looked_at) and earlier.get((line.at.file, line.loop)) == line.looked_at
            still = ", as before" if same else ""
            yield f"{INDENT}in the loop `{line.loop}`{_values([line.looked_at])}{still}"


def _tells(caller: Line) -> bool:
    """Whether it shows a value: by a name, or written there."""
    return bool(caller.values) or bool(_WRITTEN.search(caller.text))


def _line(lines: Sequence[Line]) -> str:
    return lines[0].text + _values([line.values for line in lines])


def _values(known: Sequence[tuple[tuple[str, str], ...]]) -> str:
    """Behind the text, as a comment: "  # version = 1, wanted = 2 or 3"."""
    names = dict.fromkeys(name for values in known for name, _ in values)
    parts = [f"{name} = {_of(name, known)}" for name in names]
    return f"  # {', '.join(parts)}" if parts else ""


def _of(name: str, known: Iterable[tuple[tuple[str, str], ...]]) -> str:
    found = list(dict.fromkeys(value for values in known for each, value in values if each == name))
    more = f" or {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    shown = found[:SHOWN]
    return " or ".join(shown) + more
