"""Rules about what the shell makes of a script: pipes, comments, continuations, quotes, variables."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator

from devkit.lint.launch import OVERRIDE, Launch, Training, Unit
from devkit.lint.records import Finding
from devkit.lint.shell import Command
from devkit.lint.source import Span
from devkit.lint.words import Word

_LOST = "the trainer never sees the lines below and uses its defaults"
_CURLY = re.compile("[\u2018\u2019\u201c\u201d\u201e]")
_OVERRIDES = re.compile(r"(?<![\w.+~])[+~]{0,2}[a-z_]\w*+(?:\.\w++)+=")
_MOST_COMMENTS = 1000  # one under the other
_BLANK_END = re.compile(rb"\\[ \t]+(?=\n)")


def check(launch: Launch) -> Iterator[Finding]:
    returns = launch.source.data.find(b"\r\n")
    if returns >= 0 and launch.units:
        message, why = "the file has Windows line endings", "bash treats the \\r as part of each line's last word"
        yield Finding("windows-line-ends", Span(returns, returns), message, why, "run sed -i 's/\\r$//' on the file")
    for unit in launch.units:
        yield from _pipes(unit)
        yield from _cut_off(unit)
        yield from _quotes(launch, unit)
        yield from _prompts(unit)
        if unit.script.broken is not None and launch.kind != "document":  # a page shows output too
            message = "bash cannot parse this"
            why = "the rest may be misread here, and bash may fail"
            yield Finding("not-parsed", unit.script.broken, message, why, "look for an unclosed quote or bracket")
    for training in launch.trainings:
        yield from _lists(training)
        yield from _forwarded(training)
        yield from _exit_code(training)


def _pipes(unit: Unit) -> Iterator[Finding]:
    """Overrides that a later program of a pipeline gets."""
    trained: dict[int, int] = {}
    for command, words in unit.commands:
        if command.pipe is not None and any(OVERRIDE.fullmatch(word.text) for word in words):
            trained.setdefault(*command.pipe)
    for command, words in unit.commands:
        if command.pipe is None or command.pipe[1] <= trained.get(command.pipe[0], command.pipe[1]):
            continue
        for word in words[1:]:
            if OVERRIDE.fullmatch(word.text):
                message = f"{word.text} comes after the pipe, so {words[0].text} gets it, not the trainer"
                why = "the trainer uses its default" + (
                    ", and tee creates a file with that name" if words[0].text == "tee" else ""
                )
                yield Finding("argument-after-pipe", word.span, message, why, "move it before the |")


def _cut_off(unit: Unit) -> Iterator[Finding]:
    """Overrides that begin a command of their own, because the line above did not go on."""
    data = unit.script.text.data
    starts = sorted({*(c.at for c, w in unit.commands if _begins_with_override(c)), *_bare(unit)})
    told: set[int] = set()
    for start in starts:
        cause = _cause(unit, start)
        if cause is None or cause[1] in told:
            continue
        rule, at, end, message, hint = cause
        told.add(at)
        yield Finding(rule, unit.script.text.span(at, end), message, _LOST, hint)
    hidden = Ranges((*unit.script.verbatim, *unit.script.comment_at))
    for match in _BLANK_END.finditer(data):
        at = match.start()
        if at not in told and at not in hidden:
            told.add(at)
            yield _blank(unit, at, match.end())


def _blank(unit: Unit, at: int, end: int) -> Finding:
    message = "there is a space after the backslash, so the line is not continued"
    return Finding("broken-continuation", unit.script.text.span(at, end), message, _LOST, "remove the space")


def _begins_with_override(command: Command) -> bool:
    return bool(command.words) and OVERRIDE.fullmatch(command.words[0].raw) is not None


def _bare(unit: Unit) -> Iterator[int]:
    """Assignments such as `max_turns=4 \\` that were meant as overrides: they go on in the next line."""
    data = unit.script.text.data
    for assignment in unit.script.assignments:
        line_start = unit.script.text.line_start(assignment.at)
        if data[max(0, line_start - 2) : line_start] == b"\\\n" and not data[line_start : assignment.at].strip():
            yield assignment.at


def _cause(unit: Unit, start: int) -> tuple[str, int, int, str, str] | None:
    """What ended the command above the line of `start`: (rule, from, to, message, hint)."""
    text = unit.script.text
    data, line_start = text.data, text.line_start(start)
    end = line_start - 1  # the line end before it
    index = bisect_right(unit.script.comment_at, start, key=lambda comment: comment[1]) - 1
    if index >= 0 and unit.script.comment_at[index][1] >= end - 1:
        first = _first_of_block(unit, index)
        first_line = text.line_start(first[0])
        if _end_before(data, first_line, b"\n").endswith(b"\\") or data[first_line : first[0]].strip():
            message = "the comment ends the command; the overrides below it run as separate commands"
            return "argument-after-comment", *first, message, "put the comment above the command"
    line = data[text.line_start(max(0, end)) : max(0, end)]
    blank = re.search(rb"\\[ \t]+$", line)
    at = end - len(line)
    if blank:
        message = "there is a space after the backslash, so the line is not continued"
        return "broken-continuation", at + blank.start(), end, message, "remove the space"
    if not line.strip():
        return (
            "broken-continuation",
            start,
            start + 1,
            "the empty line ends the command above it",
            "remove the empty line",
        )
    if _OVERRIDES.search(line.decode("utf-8", "replace")):
        message = "the line is not continued: it does not end with a backslash"
        stripped = len(line) - len(line.lstrip())
        return "broken-continuation", at + stripped, end, message, "end it with a backslash"
    return None


def _first_of_block(unit: Unit, index: int) -> tuple[int, int]:
    """The first of several comment lines, one under the other; of very many, one of them."""
    data, comments = unit.script.text.data, unit.script.comment_at
    for _ in range(_MOST_COMMENTS):
        if not index or data[comments[index - 1][1] : comments[index][0]].strip():
            break
        index -= 1
    return comments[index]


def _end_before(data: bytes, at: int, blank: bytes) -> bytes:
    """The byte before a place, where some that do not count are left out."""
    while at and data[at - 1 : at] in blank:
        at -= 1
    return data[at - 1 : at]


class Ranges:
    """Parts of a script, none of which overlap; whether a place is in one of them.

    >>> 3 in Ranges([(7, 9), (2, 4)]), 4 in Ranges([(7, 9), (2, 4)])
    (True, False)
    """

    def __init__(self, ranges: Iterable[tuple[int, int]]) -> None:
        self._ranges = sorted(ranges)

    def __contains__(self, at: int) -> bool:
        index = bisect_right(self._ranges, at, key=lambda each: each[0]) - 1
        return index >= 0 and at < self._ranges[index][1]


def _quotes(launch: Launch, unit: Unit) -> Iterator[Finding]:
    in_commands = {word for command in unit.script.commands for word in command.words}
    for word in all_words(unit):
        curly = _CURLY.search(word.raw)
        outside = [piece for piece in word.pieces if piece.is_literal and not piece.quoted]
        if curly and any(_CURLY.search(piece.text) for piece in outside):
            message = f"{curly[0]} is not a quote to the shell but part of the word"
            yield Finding("typographic-quote", word.span, message, "it ends up in the value", "use a plain quote")
        if word in in_commands and _is_broken(word):
            message = "a quote inside the quotes ends them"
            why = "the text between the two is split and read by the outer shell"
            yield Finding("broken-quoting", _second_quote(word), message, why, 'write \\" inside, or use single quotes')


def all_words(unit: Unit) -> Iterator[Word]:
    for command in unit.script.commands:
        yield from command.words
    for assignment in unit.script.assignments:
        if assignment.value is not None:
            yield assignment.value
        yield from assignment.items or ()


def _is_broken(word: Word) -> bool:
    """Text in quotes over several lines, text without, text in quotes again."""
    kinds = [piece.quoted for piece in word.pieces]
    return "\n" in word.raw and any(kinds[i : i + 3] == [True, False, True] for i in range(len(kinds)))


def _second_quote(word: Word) -> Span:
    bare = next(i for i in range(1, len(word.pieces)) if not word.pieces[i].quoted and word.pieces[i - 1].quoted)
    span = word.pieces[bare].span
    return Span(span.start, span.end)


def _prompts(unit: Unit) -> Iterator[Finding]:
    for command in unit.script.commands:
        if command.words and re.match(r"\$\s", command.words[0].raw):
            message = "the shell prompt was copied along with the command"
            yield Finding(
                "shell-prompt", command.words[0].span, message, "the shell looks for a command named $", "remove the $"
            )


def _lists(training: Training) -> Iterator[Finding]:
    """`key=['a','b']`: the quotes go, and the rest is a pattern."""
    for word in training.command.words:
        literal = "".join(piece.text for piece in word.pieces if piece.is_literal and not piece.quoted)
        if OVERRIDE.match(word.raw) and "]" in literal.partition("[")[2] and "{" not in literal:
            message = f"the shell treats {word.raw} as a glob pattern"
            why = "bash may replace it with a file name, and zsh fails with: no matches found"
            yield Finding("unquoted-brackets", word.span, message, why, _quoted(word.raw))


def _quoted(raw: str) -> str:
    key, _, value = raw.partition("=")
    return f'write {key}="{value}"' if '"' not in value and "$" not in value else f"quote it: '{key}=...'"


def _forwarded(training: Training) -> Iterator[Finding]:
    for word in training.command.words:
        if word.raw in ("$@", "${@}", "$*"):
            message = f"unquoted {word.raw} splits arguments that contain spaces"
            why = "\"data.train_files=['a', 'b']\" becomes two words, and Hydra fails"
            yield Finding("unquoted-arguments", word.span, message, why, 'write "$@"')


def _exit_code(training: Training) -> Iterator[Finding]:
    """A pipe's exit code is that of its last program."""
    command, unit = training.command, training.unit
    if command.pipe is None:
        return
    later = [(c, words) for c, words in unit.pipelines[command.pipe[0]] if c.pipe and c.pipe[1] > command.pipe[1]]
    if not later or b"pipefail" in unit.script.text.data or b"PIPESTATUS" in unit.script.text.data:
        return
    other, words = later[-1]
    message = f"the exit code is that of {words[0].text if words else 'the last command'}, so a failed run looks fine"
    why = "a scheduler or a loop around the script carries on after a crash"
    first = other.words[0].span if other.words else other.span
    yield Finding("pipe-hides-failure", first, message, why, "add set -o pipefail at the top")
