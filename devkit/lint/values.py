"""What words come to: variables followed to what the script sets, as far as that can be known without running it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from devkit.lint.shell import Assignment, Command, Script
from devkit.lint.source import Span
from devkit.lint.words import Piece, Word

_DEPTH = 8  # of variables that stand in variables
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


@dataclass(frozen=True)
class Scope:
    """The variables of a script. `given` are those that its surroundings set, such as Slurm."""

    script: Script
    given: Mapping[str, str]
    outer: Scope | None = None  # of the script whose `bash -c` it is
    at: int = 0  # where an inner script stands in this one
    branches: tuple[int, ...] = ()

    @cached_property
    def _by_name(self) -> Mapping[str, Sequence[Assignment]]:
        found: dict[str, list[Assignment]] = {}
        for assignment in self.script.assignments:
            found.setdefault(assignment.name, []).append(assignment)
        return found

    @cached_property
    def names(self) -> frozenset[str]:
        """Every variable that something in the script sets."""
        with_default = (
            piece.variable
            for word in every_word(self.script)
            for piece in word.pieces
            if piece.operator in (":=", "=") and piece.variable
        )
        outer = self.outer.names if self.outer is not None else ()
        return frozenset({*self._by_name, *self.script.exports, *with_default, *self.given, *outer})

    def assigned(self, name: str) -> Sequence[Assignment]:
        return self._by_name.get(name, ())

    def last(self, name: str, at: int, branches: tuple[int, ...]) -> Assignment | None:
        """The assignment that counts at a place; None if there is none, or if it depends on how the script runs."""
        before = [a for a in self.assigned(name) if a.at < at]
        if not before:
            return None
        newest = before[-1]
        certain = newest.branches == branches[: len(newest.branches)] and not newest.appends
        return newest if certain else None

    def value(self, name: str, at: int, branches: tuple[int, ...], depth: int = 0) -> Value:
        unknown = Value(f"${{{name}}}", known=False)
        assignment = self.last(name, at, branches)
        if depth > _DEPTH:
            return unknown
        if assignment is None and self.outer is not None and not self.assigned(name):
            return self.outer.value(name, self.outer.at, self.outer.branches, depth + 1)
        if assignment is None:
            return Value(self.given[name]) if name in self.given and not self.assigned(name) else unknown
        if assignment.value is None:
            return unknown
        return self.text_of(assignment.value, assignment.at, assignment.branches, depth + 1)

    def text_of(self, word: Word, at: int, branches: tuple[int, ...], depth: int = 0) -> Value:
        """A word, not split."""
        parts = [self._piece(piece, at, branches, depth) for piece in word.pieces]
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
        return all(assignment.at >= at for assignment in self.assigned(name))

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
        before = [a for a in self.assigned(piece.variable) if a.at < at]
        if not before or any(a.items is None for a in before):
            return None
        start = max((i for i, a in enumerate(before) if not a.appends), default=0)
        return tuple(item for a in before[start:] for item in a.items or ())


def every_word(script: Script) -> Iterator[Word]:
    for command in script.commands:
        yield from command.words
        for prefix in command.prefixes:
            yield from _words_of(prefix)
    for assignment in script.assignments:
        yield from _words_of(assignment)


def _words_of(assignment: Assignment) -> Iterator[Word]:
    if assignment.value is not None:
        yield assignment.value
    yield from assignment.items or ()
