"""What words come to: variables followed to what the script sets, as far as that can be known without running it."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter

from devkit.lint.room import Room
from devkit.lint.shell import Assignment, Command, Script
from devkit.lint.source import Span
from devkit.lint.words import Piece, Word

_DEPTH = 8  # of variables that stand in variables
_LONGEST = 20_000  # characters that the variables of one word come to
_ALL_ITEMS = ("[@]", "[*]")
_DEFAULTS = frozenset({":-", "-", ":=", "="})


@dataclass(frozen=True)
class Value:
    """A text. What could not be found out stands in it as it is written, and `known` is False."""

    text: str
    known: bool = True


@dataclass(frozen=True)
class Argument:
    """One argument of a command as the program would get it, and where it is written."""

    text: str
    known: bool
    span: Span
    raw: str

    @property
    def key(self) -> str:
        """Of an override such as `+a.b=1`: `a.b`."""
        return self.text.partition("=")[0].lstrip("+~")

    @property
    def value(self) -> str:
        return self.text.partition("=")[2]


class Page:
    """Scripts one after the other, as in a document: each sees what those before it set."""

    def __init__(self) -> None:
        self._scopes: dict[str, list[Scope]] = {}
        self._names: dict[str, int] = {}  # the first script that sets a variable
        self._count = 0

    def add(self, scope: Scope) -> None:
        """The next script, with all of it done."""
        for name in scope.script.by_name:
            self._scopes.setdefault(name, []).append(scope)
        for name in scope.script.names:
            self._names.setdefault(name, self._count)
        self._count += 1

    @property
    def count(self) -> int:
        return self._count

    def sets(self, name: str, before: int) -> bool:
        return self._names.get(name, before) < before

    def newest(self, name: str, before: int) -> Scope | None:
        """The last script before the one of this number that assigns a variable."""
        scopes = self._scopes.get(name, [])
        index = bisect_left(scopes, before, key=attrgetter("number"))
        return scopes[index - 1] if index else None


@dataclass(frozen=True)
class Scope:
    """The variables of a script. `given` are those that its surroundings set, such as Slurm."""

    script: Script
    given: Mapping[str, str]
    outer: Scope | None = None  # of the script whose `bash -c` it is
    at: int = 0  # where an inner script stands in this one
    branches: tuple[int, ...] = ()
    room: Room = field(default_factory=Room)
    page: Page = field(default_factory=Page)
    number: int = 0  # of the script in its page

    @cached_property
    def _values(self) -> dict[tuple[str, int, int], Value]:
        """What assignments came to, by name, place and depth: one is often asked for many times."""
        return {}

    def sets(self, name: str) -> bool:
        """Whether something in the script, or around it, sets a variable."""
        is_set = any(name in scope.script.names or name in scope.given for scope in self._and_around())
        return is_set or self.page.sets(name, self.number)

    def _and_around(self) -> Iterator[Scope]:
        """This scope and those around it."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.outer

    def assigned(self, name: str) -> Sequence[Assignment]:
        return self.script.by_name.get(name, ())

    def last(self, name: str, at: int, branches: tuple[int, ...]) -> Assignment | None:
        """The assignment that counts at a place; None if there is none, or if it depends on how the script runs."""
        assigned = self.assigned(name)
        index = bisect_left(assigned, at, key=attrgetter("at"))
        if not index:
            return None
        newest = assigned[index - 1]
        certain = newest.branches == branches[: len(newest.branches)] and not newest.appends
        return newest if certain else None

    def value(self, name: str, at: int, branches: tuple[int, ...], depth: int = 0) -> Value:
        unknown = Value(f"${{{name}}}", known=False)
        if depth > _DEPTH:
            return unknown
        scope = next((each for each in self._and_around() if each.assigned(name)), None)
        scope = scope or self.page.newest(name, self.number)
        if scope is None:
            given = next((each.given[name] for each in self._and_around() if name in each.given), None)
            return unknown if given is None else Value(given)
        if scope is not self:
            at, branches = scope.at, scope.branches
        assignment = scope.last(name, at, branches)
        return unknown if assignment is None else scope._value_of(assignment, unknown, depth)

    def _value_of(self, assignment: Assignment, unknown: Value, depth: int) -> Value:
        if assignment.value is None:
            return unknown
        key = (assignment.name, assignment.at, depth)
        if key not in self._values:
            self._values[key] = self.text_of(assignment.value, assignment.at, assignment.branches, depth + 1)
        return self._values[key]

    def text_of(self, word: Word, at: int, branches: tuple[int, ...], depth: int = 0) -> Value:
        """A word, not split. Of what is longer than any argument, as variables in variables can be, the beginning."""
        parts, room = [], _LONGEST
        for piece in word.pieces:
            parts.append(self._piece(piece, at, branches, depth))
            room -= 0 if piece.is_literal else len(parts[-1].text)
            if room < 0 or (not piece.is_literal and not self.room.take(parts[-1].text)):
                return Value("".join(part.text for part in parts)[:_LONGEST], known=False)
        text = "".join(part.text for part in parts)
        first = word.pieces[0] if word.pieces else None
        if first is not None and first.is_literal and not first.quoted and re.match(r"~(/|$)", first.text):
            text = f"${{HOME}}{text[1:]}"
        return Value(text, all(part.known for part in parts))

    def _piece(self, piece: Piece, at: int, branches: tuple[int, ...], depth: int) -> Value:
        if piece.is_literal:
            return Value(piece.text)
        written = f"${{{piece.variable}{piece.index}}}" if piece.variable else "$(...)"
        if not piece.variable or piece.index:
            return Value(written, known=False)
        if piece.operator in _DEFAULTS:
            return self._with_default(piece, at, branches, depth)
        if piece.operator in ("", ":?", "?"):
            return self.value(piece.variable, at, branches, depth)
        return Value(written, known=False)

    def _with_default(self, piece: Piece, at: int, branches: tuple[int, ...], depth: int) -> Value:
        """`${X:-3}` is 3 unless the script sets X: what the caller's environment has is not in the script."""
        if self.assigned(piece.variable) and not self._sets_itself(piece.variable, at):
            return self.value(piece.variable, at, branches, depth)
        default = piece.operand.strip("\"'")
        if "$" in default or "`" in default:
            return Value(f"${{{piece.variable}}}", known=False)
        return Value(default)

    def _sets_itself(self, name: str, at: int) -> bool:
        """`X=${X:-3}`: there the X inside is the caller's."""
        return self.assigned(name)[0].at >= at

    def arguments(self, command: Command) -> tuple[Argument, ...]:
        """A command's words with variables and lists in place, split as the shell would."""
        found: list[Argument] = []
        for word in command.words:
            found += self._arguments(word, command.at, command.branches, 0)
        return tuple(found)

    def _arguments(self, word: Word, at: int, branches: tuple[int, ...], depth: int) -> Iterator[Argument]:
        only = word.pieces[0] if len(word.pieces) == 1 else None
        if only is not None and only.variable and depth <= _DEPTH:
            items = self._items(only, at)
            if items is not None:
                for item in items:
                    if not self.room.take(item.raw):
                        break
                    yield from self._arguments(item, item.bounds[0], branches, depth + 1)
                return
        value = self.text_of(word, at, branches, depth)
        split = any(not piece.is_literal and not piece.quoted for piece in word.pieces) and value.known
        for text in value.text.split() if split else [value.text]:
            yield Argument(text, value.known, word.span, word.raw)

    def _items(self, piece: Piece, at: int) -> tuple[Word, ...] | None:
        """All of a list: of `A=(...)` and each `A+=(...)` before this place."""
        if piece.index not in _ALL_ITEMS or piece.operator:
            return None
        return self.script.items(piece.variable, at)
