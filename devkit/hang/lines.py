"""The lines of the program at which processes stand, with the values that these look at. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from devkit.debug.inworker.words import ASLEEP
from devkit.debug.naming import short_path
from devkit.debug.stack_groups import Frame, is_task
from devkit.hang.facts import InnerWait
from devkit.hang.standing import EndsAt, Line, Standing, Values, quoted
from devkit.hang.states import State

INDENT = "    "
IN_LOOP = "in the loop"
CLOSES = "the end of an executor's `with` waits for its threads, whatever time limit there was for their results"
OTHERS = 3  # waits at other lines
SHOWN = 3  # different values of one name
KEPT = "; no call that is under way is seen to hold it: one that has ended may have kept it"
NO_PERMIT = f"{KEPT.replace('hold it', 'hold a permit')}, or there was none"
_UNHEARD = "the wake-up may have gone to another one that waits, or have come before it held"
VALUES = "  # "  # before the values of a line
_WITHS = ("with ", "async with ")
_WRITTEN = re.compile(r"\b\d|['\"]")


def told(states: Sequence[State]) -> list[str]:
    """What those that stand at one line look at there: the statement with its values, then who called it.

    A caller only where it shows a value: it is in the stacks anyway. Then what else is waited for in a single process.
    """
    stacks = [stack.lines for state in states for stack in at_place(state)]
    lines = of_stacks(stacks, around=True) if stacks else []
    if stacks and stacks[0][0].at != states[0].place and stacks[0][0].text:  # it was there a moment later
        at = stacks[0][0].at
        lines[0] = f"{INDENT}{short_path(at.file)}:{at.line}: {lines[0].strip()}"
    if sample := sampled(states, len(stacks)):
        lines[1:1] = [f"{INDENT}these values are of {sample}"] if any(VALUES in line for line in lines) else []
    waits = any(wait.at == states[0].place for wait in states[0].facts.inner)
    ends = [f"{INDENT}{line}" for line in _ends(stacks[0][0])] if stacks and waits else []
    return [*lines, *ends, *([*_sides(states[0]), *_others(states[0])] if len(states) == 1 else [])]


def sampled(states: Sequence[State], known: int) -> str:
    """Of how many of those that wait at one line the values are known, if not of all: "24 of 1000 that wait there".

    >>> sampled([], 3)
    ''
    """
    waits = [wait for state in states for wait in state.facts.inner if wait.at == state.place]
    every = sum(wait.count for wait in waits)
    return f"{known} of {every} that wait there" if 1 < known < every else ""


def of_stacks(stacks: Sequence[tuple[Line, ...]], *, around: bool = False) -> list[str]:
    """Of several that stand at the same line; with the conditions and the loops `around` that and its callers."""
    innermost = [stack[0] for stack in stacks]
    lines = [INDENT + _line(innermost)] if innermost[0].text else []
    if around:
        lines += [*_met(innermost), *_around(innermost)]
    if not innermost[0].text:
        return lines
    word = "called"  # by the line above; "further out", where a caller in between shows nothing
    for number in range(1, min(map(len, stacks))):
        callers = [stack[number] for stack in stacks]
        inner = stacks[0][number - 1].at
        at = callers[0].at
        is_new = (at.file, at.line) != (inner.file, inner.line)  # a comprehension has a frame of its own
        if not is_new or len({caller.at for caller in callers}) > 1:
            continue
        loop = [*_under(callers), *_loop(callers)] if around else []
        if not loop and not any(map(_tells, callers)):
            word = "further out"
            continue
        signal = _signal([stack[number - 1] for stack in stacks])
        word = f"interrupted by {signal}" if signal else word
        lines.append(f"{INDENT}{word} at {short_path(at.file)}:{at.line}: {_line(callers)}")
        lines += loop
        word = "called"
    return lines


def _signal(lines: Sequence[Line]) -> str:
    """How often it has come since may differ."""
    known = {line.signal for line in lines}
    return lines[0].signal if len(known) == 1 else lines[0].signal.partition(" (")[0]


def _met(lines: Sequence[Line]) -> list[str]:
    """Of those that wait for a condition's predicate."""
    many = sum(line.met for line in lines)
    of = f" for {many} of {len(lines)}" if len(lines) > 1 else ""
    return [f"{INDENT}the predicate holds now{of}: {_UNHEARD}"] if many else []


def _around(lines: Sequence[Line]) -> list[str]:
    """By which condition they are there, and where the loop around them is, as far as values show it."""
    return [*_under(lines), *_loop(lines), *_handled(lines)]


def _under(lines: Sequence[Line]) -> list[str]:
    which = [line.which for line in lines]
    over = ", which no longer holds" if all(line.past for line in lines) else ""
    return [f"{INDENT}under `if {lines[0].under}`{over}{_values(which)}"] if lines[0].under and any(which) else []


def _handled(lines: Sequence[Line]) -> list[str]:
    """What they are in a handler of; of equal ones once."""
    known = dict.fromkeys(each for line in lines if (each := line.handles))
    ends = lines[0].text.startswith(_WITHS)  # its end is no handler
    at = [f"{short_path(each.at.file)}:{each.at.line} in {each.at.function}" for each in known]
    return [
        f"{INDENT}{each.said}, raised at {place}, has not left that `with` yet"
        if ends
        else f"{INDENT}handling {each.said}, raised at {place}"
        for each, place in list(zip(known, at, strict=True))[:SHOWN]
    ]


def _loop(lines: Sequence[Line]) -> list[str]:
    """The one around them, with what it looks at or where it is."""
    looked_at = [line.looked_at for line in lines]
    told = lines[0].loop and any(looked_at) and lines[0].text != f"{lines[0].loop}:"  # it is at that itself
    over = ", which no longer holds" if all(line.over for line in lines) else ""
    if (passed := lines[0].passes_over) is not None:
        over += f", which passes over {passed.errors} at {short_path(passed.file)}:{passed.line}"
    own = [f"{INDENT}{IN_LOOP} {quoted(lines[0].loop)}{over}{_values(looked_at)}"] if told else []
    return own + [f"{INDENT}{IN_LOOP} {quoted(text)}{_values(known)}" for text, known in _outer(lines).items()]


def _outer(lines: Sequence[Line]) -> dict[str, list[Values]]:
    """By loop further out, what each of equal lines has there: one in which there is nothing to show has none."""
    found: dict[str, list[Values]] = {}
    for text, known in (each for line in lines for each in line.outer):
        found.setdefault(text, []).append(known)
    return found


def at_place(state: State) -> list[Standing]:
    """Of the threads and coroutines that stand where the process is said to be; of one at work, in that function."""
    place, known = state.place, state.facts.standing
    exact = [stack for stack in known if stack.lines[0].at == place]
    if exact or place is None or not (state.moved or state.doing == "busy"):
        return exact  # the stack was taken a moment before
    return [stack for stack in known if stack.lines[0].at._replace(line=place.line) == place][:1]


def _sides(state: State) -> Iterator[str]:
    """Its threads at work, where the one that it is called by waits."""
    closes = any(each.closes and each.at == state.place for each in state.facts.inner)
    if closes and state.side:
        yield f"{INDENT}{CLOSES}"
    for each in state.side:
        at = each.lines[0].at
        yield f"{INDENT}its thread {each.thread} is working at {short_path(at.file)}:{at.line} in {at.function}"
        yield from (f"{INDENT}{line}" for line in of_stacks([each.lines], around=True))


def _others(state: State) -> list[str]:
    """What it waits for at other lines than the one where it is said to be."""
    lines: list[str] = []
    waits: dict[tuple[Frame, str], InnerWait] = {}
    for each in state.facts.inner:
        if each.at != state.place and each.what != ASLEEP:
            known = waits.get((each.at, each.what))
            waits[each.at, each.what] = replace(each, count=each.count + known.count) if known else each
    for wait in list(waits.values())[:OTHERS]:
        at = f"{short_path(wait.at.file)}:{wait.at.line} in {wait.at.function}"
        who = f"{wait.count} more wait" if wait.count > 1 else f"{_which(wait)} waits"
        blocks = ", which blocks its event loop" if wait.blocks else ""
        lines.append(f"{INDENT}{who} for {wait.what} at {at}{blocks}{_holder(wait)}")
        stacks = [stack.lines for stack in state.facts.standing if stack.lines[0].at == wait.at]
        if stacks:
            below = [*of_stacks(stacks)[:1], *(f"{INDENT}{line}" for line in _ends(stacks[0][0]))]
            lines += [f"{INDENT}{line}" for line in below]
    return lines


def _which(wait: InnerWait) -> str:
    return "another coroutine" if is_task(wait.thread) else f"its thread {wait.thread}"


def _holder(wait: InnerWait) -> str:
    if not wait.holder:
        return kept(wait)
    at = wait.held_at
    return f"; {wait.holder_call} holds it" + (f" at {short_path(at.file)}:{at.line}" if at else "")


def kept(wait: InnerWait) -> str:
    """Of a lock or a semaphore that nobody who is there holds. A semaphore may begin without permits, as a signal."""
    if not wait.free:
        return ""
    return NO_PERMIT if "Semaphore" in wait.what else KEPT


def _ends(line: Line) -> Iterator[str]:
    """Who could end the wait at it, as far as its file tells."""
    if (ends := line.ends) is not None:
        file = short_path(line.at.file)
        plain = [_end(each, file) for each in ends.at if not (each.under or each.unless)]
        if plain:
            yield f"{ends.what} is {ends.how} at {' and '.join(plain)}"
        yield from (f"{ends.what} is {ends.how} at {_end(each, file)}" for each in ends.at if each.under or each.unless)
        if not ends.at and "." in ends.what:  # a variable of a function may be known by another name elsewhere
            yield f"{ends.what} is {ends.how} nowhere in {file} by that name"
        yield from (f"{ends.what} is cleared at {_end(each, file)}" for each in ends.undone)


def _end(one: EndsAt, file: str) -> str:
    under = f" unless `{one.unless}`" if one.unless else f" under `if {one.under}`" if one.under else ""
    return f"{file}:{one.line} in {one.function}{under}{_values([one.values])}"


class Loop(NamedTuple):
    """A loop around a line, and whether what its condition looks at is as it was in an earlier sample."""

    text: str
    looked_at: tuple[tuple[str, str], ...]
    still: bool

    @property
    def said(self) -> str:
        return f"{IN_LOOP} {quoted(self.text)}{_values([self.looked_at])}{', as before' if self.still else ''}"


def loops(stacks: Sequence[Standing], before: Sequence[Standing]) -> list[Loop]:
    """Those that threads at work are in, the innermost one first; `before` is of an earlier sample."""
    earlier = {(line.at.file, line.loop): line.whole for stack in before for line in stack.lines if line.loop}
    found: dict[str, Loop] = {}
    for line in (line for stack in stacks for line in stack.lines if line.loop):
        same = bool(line.looked_at and line.whole) and earlier.get((line.at.file, line.loop)) == line.whole
        found.setdefault(line.loop, Loop(line.loop, line.looked_at, same))
    return list(found.values())


def _tells(caller: Line) -> bool:
    """Whether it shows a value: by a name, or written there."""
    return bool(caller.values) or bool(_WRITTEN.search(caller.text))


def _line(lines: Sequence[Line]) -> str:
    return lines[0].text + _values([line.values for line in lines])


def _values(known: Sequence[tuple[tuple[str, str], ...]]) -> str:
    """Behind the text, as a comment: "  # version = 1, wanted = 2 or 3"."""
    names = dict.fromkeys(name for values in known for name, _ in values)
    parts = [f"{name} = {_of(name, known)}" for name in names]
    return f"{VALUES}{', '.join(parts)}" if parts else ""


def _of(name: str, known: Iterable[tuple[tuple[str, str], ...]]) -> str:
    found = list(dict.fromkeys(value for values in known for each, value in values if each == name))
    return either(found, SHOWN)


def either(values: Sequence[str], most: int) -> str:
    """
    >>> either(["1", "2"], 3), either(["1", "2", "3", "4"], 3), either(["'a'", "'b'", "'c'", "'d'", "'e'"], 3)
    ('1 or 2', '1, 2, 3 or 1 other value', "'a', 'b', 'c' or 2 other values")
    """
    others = len(values) - most
    if others <= 0:
        return " or ".join(values)
    return f"{', '.join(values[:most])} or {others} other value{'s' * (others > 1)}"
