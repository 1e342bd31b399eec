"""Where threads and coroutines stand in the program: lines of it, with what they look at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from devkit.debug.stack_groups import Frame

Values = tuple[tuple[str, str], ...]  # texts of the program, and what they stand for


def quoted(loop: str) -> str:
    """A loop in a sentence: what is quoted stands in the file.

    >>> quoted("while self.running"), quoted("until item is None")
    ('`while self.running`', 'until `item is None`')
    """
    return f"until `{loop.removeprefix('until ')}`" if loop.startswith("until ") else f"`{loop}`"


class EndsAt(NamedTuple):
    """A line that could end a wait, or that undoes that."""

    line: int
    function: str
    under: str = ""  # the condition that it is under
    values: Values = ()  # in that, as far as they are known
    unless: str = ""  # the condition that must not hold


@dataclass(frozen=True)
class Ends:
    """The lines of a file that could end a wait for something of the program's own."""

    what: str  # "self.idle"
    how: str  # "set"
    at: tuple[EndsAt, ...]
    undone: tuple[EndsAt, ...] = ()  # an event is cleared there


class Asked(NamedTuple):
    """A call of an actor in such a loop, whose answer keeps that going."""

    actor: str  # its id
    method: str
    line: int
    answer: str = ""  # the variable that its result is given to
    test: str = ""  # the condition that asks for it, would end the loop, and has not held
    values: Values = ()  # its arguments


class Growing(NamedTuple):
    """What a method of an actor reads, and where other methods change that."""

    reads: tuple[str, ...]  # attributes
    at: tuple[Frame, ...]
    takes: bool = False  # some take from that


class Asking(NamedTuple):
    """A loop in which results of Ray are waited for."""

    loop: str
    values: Values  # that it looks at
    kept: str = ""  # a digest of what its function and the object of that have
    asked: tuple[Asked, ...] = ()
    stale: tuple[str, ...] = ()  # names of values that the round in which it is does not look at

    @property
    def loops_on(self) -> Asking:
        """What is the same wherever in the loop it is."""
        return self._replace(asked=(), stale=())

    @property
    def without_end(self) -> bool:
        """Whether the loop has no condition of its own."""
        return self.loop in ("while True", "while 1")


class Endless(NamedTuple):
    """A loop that nothing in it ends."""

    loop: str  # "while self.running"
    values: Values  # of its condition
    by: tuple[EndsAt, ...]  # the methods that change that; none of a loop without a condition


class Handled(NamedTuple):
    """An exception that a thread has caught and is at work on."""

    said: str
    at: Frame  # where it was raised


class PassedOver(NamedTuple):
    """Errors of what a loop does that end nothing: their types, and the handler which goes on."""

    errors: str
    file: str
    line: int


@dataclass(frozen=True)
class Line:
    """A line of the program at which a thread or a coroutine stands, and what it looks at there."""

    at: Frame
    text: str  # the statement; empty: its file could not be read
    values: Values = ()
    loop: str = ""  # the innermost one around it
    looked_at: Values = ()  # values in the loop's condition
    under: str = ""  # the condition of the `if` that it is under
    which: Values = ()  # values in that
    ends: Ends | None = None
    keeps: Values = ()  # the other variables of its function
    asking: Asking | None = None  # the loop around it
    endless: Endless | None = None  # the outermost loop around it that nothing in it ends
    handles: Handled | None = None  # the exception in whose handler its thread is
    over: bool = False  # the condition of that loop holds no more
    whole: str = ""  # the same as long as nothing that the loop looks at changes; empty: not all of that can be seen
    met: bool = False  # the predicate holds for which it waits
    signal: str = ""  # of which its function is the handler: the next line out was interrupted, and has not called it
    passes_over: PassedOver | None = None  # what its loop does
    outer: tuple[tuple[str, Values], ...] = ()  # further loops around that one, the nearest first, with values
    past: bool = False  # the condition that it is under holds no more


class Turn(NamedTuple):
    """A loop that came round within a tenth of a second and changed nothing that it counts, or to the same values."""

    at: Frame
    loop: str
    values: Values
    whole: str = ""  # as of a `Line`
    states: tuple[tuple[str, tuple[str, ...]], ...] = ()  # values to which variables come back; `whole`: of which call


@dataclass(frozen=True)
class Standing:
    """Where a thread, or a coroutine, is in the program: the innermost line, and who called it."""

    thread: str
    lines: tuple[Line, ...]
