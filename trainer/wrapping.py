"""Long lines on a terminal: broken between words, and one line all the same when they are copied."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

HEAD = re.compile(r"(\s*)([A-Za-z]+: +)?")  # what stands before the words of a line: `  hint: `
WORD = re.compile(r"\S+")


def has_an_edge(console: Console) -> bool:
    """Whether it is a terminal of known width; colours can be forced into a pipe, too."""
    return console.file.isatty() and not console.is_dumb_terminal


def print_line(console: Console, text: Text) -> None:
    """In a pipe a line is as long as it is; a terminal's edge tears no word."""
    console.print(between_words(text, console.width) if has_an_edge(console) else text, soft_wrap=True)


def between_words(text: Text, width: int) -> Text:
    """The text with blanks up to the terminal's edge where a word would be torn there.

    A terminal goes on in its next line by itself, and knows then that both are one: a command in a hint is copied as
    it has to be typed. A word that is longer than a line is left to the terminal.
    """
    from rich.text import Text

    if all(len(line) <= width // 2 for line in text.plain.split("\n")):  # however wide its characters are
        return text
    filled = Text("\n").join(_filled(line, width) for line in text.split("\n", allow_blank=True))
    filled.end = text.end
    return filled


def _filled(line: Text, width: int) -> Text:
    line.expand_tabs()
    if line.cell_len <= width:
        return line
    line.rstrip()
    gaps = list(_gaps(line.plain, width))
    pieces = line.divide([place for start, end, _ in gaps for place in (start, end)])
    filled = line.blank_copy()
    for number, piece in enumerate(pieces):
        filled.append_text(piece if number % 2 == 0 else line.blank_copy(" " * gaps[number // 2][2]))
    return filled


def _gaps(line: str, width: int) -> Iterator[tuple[int, int, int]]:
    """Where the line is broken: from where to where no word stands there, and how many blanks take that place.

    >>> list(_gaps("hint: one two", 10))
    [(9, 10, 4)]
    """
    from rich.cells import cell_len

    indent = min(_indent(line), width // 3)
    column = read = 0
    for word in WORD.finditer(line):
        size, gap = cell_len(word[0]), word.start() - read
        # One blank is left at the edge: there has to be one between two words when the line is copied.
        room = width - 1 - size
        if column + gap > room >= 0 and read:
            yield read, word.start(), width - column + min(indent, room)
            column = min(indent, room)
        else:
            column += gap
        column = (column + size - 1) % width + 1
        read = word.end()


def _indent(line: str) -> int:
    """Where a line goes on: below its words, and deeper than the next row of a list.

    >>> _indent("hint: try again"), _indent("  07ff4c  train.py:88"), _indent("rank 1 has not come")
    (6, 4, 0)
    """
    head = HEAD.match(line)
    assert head
    return head.end() if head[2] or not head[1] else head.end() + 2
