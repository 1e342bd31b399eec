"""Where a piece of text stands in its file, also when it was taken out of YAML, quotes or another script."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Span:
    """Bytes `start` to before `end` of a file."""

    start: int
    end: int


@dataclass(frozen=True)
class Place:
    """A line and a column, from 1, and how many characters of that line are meant."""

    line: int
    column: int
    width: int


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
        return [0, *(i + 1 for i, byte in enumerate(self.data) if byte == 10)]

    @property
    def lines(self) -> int:
        return len(self._starts)

    def line_number(self, offset: int) -> int:
        """The line of a byte, from 1."""
        return bisect_right(self._starts, max(0, min(offset, len(self.data))))

    def line(self, number: int) -> str:
        """The text of a line, from 1."""
        end = self._starts[number] - 1 if number < len(self._starts) else len(self.data)
        return _text(self.data[self._starts[number - 1] : end]).rstrip("\r")

    def place(self, span: Span) -> Place:
        """A span that goes on over several lines is shown on its first."""
        number = self.line_number(span.start)
        first = self._starts[number - 1]
        end = self._starts[number] - 1 if number < self.lines else len(self.data)
        line_end = first + len(self.data[first:end].rstrip(b"\r"))
        start = max(first, min(span.start, line_end))
        end = max(start, min(span.end, line_end))
        width = len(_text(self.data[start:end]))
        return Place(number, len(_text(self.data[first:start])) + 1, max(1, width))


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


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
