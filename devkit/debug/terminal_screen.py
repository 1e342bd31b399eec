"""How a session's answers look: what was asked for on stdout, talk about the session on stderr."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from devkit import console
from devkit.palette import NAME

if TYPE_CHECKING:
    from rich.text import Text

INDENT = "    "


class Screen:
    """Answers go to stdout, talk about the session to stderr."""

    def answer(self, name: str, text: Text, *, column: int = 0) -> None:
        """What the ranks called `name` said; several of them stand below each other, in one column."""
        from rich.text import Text

        if not text.plain:
            return
        if not name:
            shown = text
        elif "\n" in text.plain:
            lines = [Text.assemble(INDENT, line) for line in text.split("\n")]
            shown = Text("\n").join([Text(f"{name}:", style="bold"), *lines])
        else:
            shown = Text.assemble((f"{name}: ", "bold"), " " * (column - len(name)), text)
        console.result().print(console.AsItIs(shown), soft_wrap=True)

    def say(self, text: Text | str) -> None:
        console.result().print(text, soft_wrap=True)

    def notice(self, text: str) -> None:
        console.talk().print(f"-- {text}", style="dim", soft_wrap=True)

    def wrong(self, message: str, hint: str = "") -> None:
        """Bad input: one line, and on we go."""
        console.talk().print(f"*** {message}{f' ({hint})' if hint else ''}", style="red", soft_wrap=True)


@dataclass(frozen=True)
class Listing:
    """Lines of a file, the one where the program stands, and those with a breakpoint."""

    first: int
    lines: Sequence[str]
    current: int
    marked: frozenset[int] = frozenset()


def listing(of: Listing) -> Text:
    """Source as pdb shows it: number, `B` for a breakpoint, `->` for the line that is next."""
    from rich.text import Text

    width = max(3, len(str(of.first + len(of.lines))))
    lines = []
    for number, line in enumerate(of.lines, of.first):
        sign = ("B" if number in of.marked else " ") + ("->" if number == of.current else "  ")
        text = Text(f"{number:>{width}} ", style="dim")
        text.append(sign, style="not dim bold red" if number in of.marked else f"not dim bold {NAME}")
        text.append(f" {line}".rstrip(), style="not dim bold" if number == of.current else "not dim")
        lines.append(text)
    return Text("\n").join(lines)
