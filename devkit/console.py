"""Where words go: results to stdout, talk to stderr. Rich knows a terminal from a file, and follows NO_COLOR."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from devkit import loudness
from devkit.debug.inworker.words import plain
from devkit.records import ErrorRecord

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderableType, RenderResult
    from rich.text import Text


def talk() -> Console:
    """For everything that is neither the result nor an error; nothing under --quiet."""
    return _console(stderr=True, quiet=loudness.is_quiet())


def interject(text: str) -> None:
    """A line of talk while a program of the user's may have a bar on the same terminal: it draws that anew, below."""
    from rich.control import Control
    from rich.segment import ControlType

    console = talk()
    if console.is_terminal:
        console.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2)))
    console.print(text, soft_wrap=True)


def result() -> Console:
    """For what the user asked to see."""
    return _console(stderr=False)


def _console(*, stderr: bool, quiet: bool = False) -> Console:
    from rich.console import Console

    # What is printed holds file names and user data: no markup, no guessing at what to colour.
    console = Console(stderr=stderr, quiet=quiet, markup=False, highlight=False, emoji=False)
    console.push_render_hook(_AllPlain())  # type: ignore[arg-type]  # its base class would be imported with devkit
    return console


class Plain:
    """What is shown, without what a terminal would obey in its texts: they are other people's.

    Where lines may be as long as they are (`soft_wrap`), a terminal's edge tears no word.
    """

    def __init__(self, shown: RenderableType) -> None:
        self._shown = shown

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = (
            _between_words(self._shown, options, console) if options.no_wrap and console.is_terminal else self._shown
        )
        for segment in console.render(shown, options):
            yield segment if segment.control else segment._replace(text=plain(segment.text))


def _between_words(shown: RenderableType, options: ConsoleOptions, console: Console) -> RenderableType:
    from rich.text import Text

    from trainer.wrapping import between_words, has_an_edge  # of the trainer's own lines, too

    if isinstance(shown, Text) and has_an_edge(console):
        return between_words(shown, options.max_width)
    return shown


class AsItIs:
    """A value, or source: blanks in it mean something, so a terminal breaks its lines wherever they end."""

    def __init__(self, text: Text) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._text


class _AllPlain:
    """Rich's own kind of hook: it sees all that is printed."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [Plain(each) for each in renderables]


def emit(document: Mapping[str, Any]) -> None:
    """One JSON document on stdout."""
    sys.stdout.write(json.dumps(document, allow_nan=False) + "\n")
    sys.stdout.flush()


def report_error(problem: ErrorRecord, facts: Mapping[str, Any], *, as_json: bool, line: str | None = None) -> None:
    """One `error:` line and one `hint:` line on stderr; under --json also the record on stdout, with these facts.

    `line` stands for both, where the program that was run has printed its own.
    """
    from rich.text import Text

    from devkit.logs import redact

    console = _console(stderr=True)
    problem = replace(problem, error=redact.text(problem.error), hint=redact.text(problem.hint))
    if line is not None:
        console.print(redact.text(line), soft_wrap=True)
    else:
        console.print(Text.assemble(("error: ", "bold red"), problem.error), soft_wrap=True)
        console.print(Text.assemble(("hint: ", "bold"), problem.hint), soft_wrap=True)
    if as_json:
        emit({**facts, **problem.to_json()})


def is_live(console: Console, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a display that redraws itself makes sense: on a terminal that is not a CI log."""
    can_draw = console.is_terminal and not console.is_dumb_terminal and console.encoding.startswith("utf")
    return can_draw and not environ.get("CI")
