"""Where a piece of text stands in its file, also when it was taken out of YAML, quotes or another script."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

LONGEST_LINE = 2000  # bytes of a line that are shown


@dataclass(frozen=True)
class Span:
    """Bytes `start` to before `end` of a file."""

    start: int
    end: int


@dataclass(frozen=True)
class Place:
    """A line and a column, from 1, how many characters of that line are meant, and the byte where they begin."""

    line: int
    column: int
    width: int
    start: int


@dataclass(frozen=True)
class Source:
    """A file: its name as the user gave it, and its bytes."""

    name: str
    data: bytes

    @classmethod
    def of_text(cls, name: str, text: str) -> Source:
        return cls(name, text.encode("utf-8", "replace"))

    @cached_property
    def _starts(self) -> list[int]:
        return line_starts(self.data)

    @property
    def lines(self) -> int:
        return len(self._starts)

    def line_number(self, offset: int) -> int:
        """The line of a byte, from 1."""
        return bisect_right(self._starts, max(0, min(offset, len(self.data))))

    def line(self, place: Place) -> tuple[str, int]:
        """The text of a line, and the column that it begins at: of a long line the part around the place."""
        first, end = self._bounds(place.line)
        if end - first <= LONGEST_LINE:
            return _text(self.data[first:end]), 1
        begin = max(first, min(place.start - LONGEST_LINE // 4, end - LONGEST_LINE))
        part = _text(self.data[begin : begin + LONGEST_LINE])
        return part, place.column - len(_text(self.data[begin : place.start]))

    def place(self, span: Span) -> Place:
        """A span that goes on over several lines is shown on its first."""
        number = self.line_number(span.start)
        first, line_end = self._bounds(number)
        start = max(first, min(span.start, line_end))
        end = max(start, min(span.end, line_end))
        width = len(_text(self.data[start:end]))
        return Place(number, self._characters(first, start) + 1, max(1, width), start)

    def _bounds(self, number: int) -> tuple[int, int]:
        """Where a line begins and ends, the line's end left out."""
        first = self._starts[number - 1]
        end = self._starts[number] - 1 if number < self.lines else len(self.data)
        while end > first and self.data[end - 1] == 13:
            end -= 1
        return first, end

    def _characters(self, first: int, end: int) -> int:
        return end - first if self._is_ascii else len(_text(self.data[first:end]))

    @cached_property
    def _is_ascii(self) -> bool:
        return self.data.isascii()


@dataclass(frozen=True)
class Text:
    """Shell text and, for each of its bytes and its end, the byte of the file that it came from."""

    data: bytes
    offsets: Sequence[int]

    @classmethod
    def whole(cls, source: Source) -> Text:
        return cls(source.data, range(len(source.data) + 1))

    def span(self, start: int, end: int) -> Span:
        """The span in the file. The last byte counts: what follows it in the file may be far away."""
        last = self.offsets[end - 1] + 1 if end > start else self.offsets[start]
        return Span(self.offsets[start], last)

    @cached_property
    def _starts(self) -> list[int]:
        return line_starts(self.data)

    def line_start(self, at: int) -> int:
        """Where the line of a byte begins."""
        return self._starts[bisect_right(self._starts, at) - 1]

    def cut(self, start: int, end: int) -> Text:
        return Text(self.data[start:end], [*self.offsets[start:end], self.offsets[end]])


def join(texts: Sequence[Text], between: bytes) -> Text:
    """Several texts as one."""
    data, offsets, end = bytearray(), list[int](), 0
    for i, text in enumerate(texts):
        if i:
            data += between
            offsets += [end] * len(between)
        data += text.data
        offsets += text.offsets[: len(text.data)]
        end = text.offsets[len(text.data)]
    return Text(bytes(data), [*offsets, end])


def line_starts(data: bytes) -> list[int]:
    return [0, *(match.end() for match in re.finditer(b"\n", data))]


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
