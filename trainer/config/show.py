"""Text about a configuration: `--print-config` for stdout, notes and problems for stderr. One line each."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from trainer.config import tree
from trainer.config.check import Report
from trainer.config.expected import expected
from trainer.config.load import Resolved
from trainer.config.overrides import format_value
from trainer.config.problems import Note, Problem

if TYPE_CHECKING:  # a configuration is read in workers, too, which print none
    from rich.console import Console
    from rich.text import Text

# Of fixed values, as legible on white as on black: a terminal's own yellow, cyan and green vanish on white.
CAUTION, NAME, GOOD = "color(130)", "turquoise4", "green4"
_STYLES = {"warning:": f"bold {CAUTION}", "error:": "bold red", "hint:": NAME, "note:": CAUTION}
_INERT = " has no effect: "
_WARNINGS = ("unmet", "risk")


def config_text(resolved: Resolved) -> str:
    """One `key = value   # origin` line per key, in the schema's order, aligned. A value is as an override takes it.

    Before them, as comments: the dialect, and what will be chosen for keys that are null.
    """
    return "".join(f"{line.plain.rstrip()}\n" for line in _config_lines(resolved))


def _config_lines(resolved: Resolved) -> list[Text]:
    from rich.text import Text

    values = {key: format_value(value).replace("\n", "\\n") for key, value in tree.flatten(resolved.config).items()}
    key_width = max(map(len, values))
    value_width = min(40, max(map(len, values.values())))  # a few long paths must not push every origin away
    lines = [Text(f"# dialect {resolved.dialect}: {resolved.dialect_reason}", style="dim")]
    for role, plan, why in expected(resolved.config).lines():
        lines.append(Text(f"# {role}: {plan}: {why}", style="dim"))
    for key, value in values.items():
        origin = resolved.origins[key]
        plain = origin == "default"
        lines.append(
            Text.assemble(
                (key.ljust(key_width), "" if plain else "bold"),
                (" = ", "dim"),
                (value.ljust(value_width), "" if plain else GOOD),
                (f"   # {origin}", "dim"),
            )
        )
    return lines


def print_config(resolved: Resolved, stream: TextIO) -> None:
    """`config_text`, in colour if `stream` is a terminal and NO_COLOR is not set."""
    console = _console(stream)
    if console is None:
        stream.write(config_text(resolved))
        return
    for line in _config_lines(resolved):
        console.print(line)


def problem_lines(problems: Iterable[Problem]) -> Iterator[str]:
    """An `error:` and a `hint:` line per problem."""
    for problem in problems:
        yield f"error: {_one_line(problem.message)}"
        yield f"hint: {_one_line(problem.hint)}"


def note_lines(notes: Sequence[Note]) -> Iterator[str]:
    """A `note:` line per note; keys without effect for one and the same reason share a line, at the end.

    What `warning_lines` says is left out.
    """
    shared: dict[str, list[str]] = {}
    for note in notes:
        if note.kind in _WARNINGS:
            continue
        if note.kind == "inert" and _INERT in note.message:
            shared.setdefault(note.message.split(_INERT, 1)[1], []).append(note.key)
        else:
            yield f"note: {_one_line(note.message)}"
    for why, keys in shared.items():
        verb = "has" if len(keys) == 1 else "have"
        yield f"note: {', '.join(keys)} {verb} no effect: {_one_line(why)}"


def warning_lines(notes: Iterable[Note]) -> Iterator[str]:
    """A `warning:` line for each thing that the command asks for, that changes what is learned, and may not be had."""
    yield from (f"warning: {_one_line(note.message)}" for note in notes if note.kind in _WARNINGS)


def report_lines(report: Report) -> Iterator[str]:
    """Notes, then problems. Warnings are said before or after all else: `warning_lines`."""
    yield from note_lines(report.notes)
    yield from problem_lines(report.problems)


def fact_lines(report: Report) -> Iterator[str]:
    """What a fit command will do; nothing for an unfit one."""
    if report.facts is None:
        return
    facts, sizes = report.facts, report.facts.micro_batches
    yield f"ranks = {facts.ranks}"
    yield f"train_rows = {facts.rows.train or 0}"
    yield f"val_rows = {facts.rows.val or 0}"
    yield f"steps_per_epoch = {facts.steps_per_epoch}"
    yield f"total_steps = {facts.total_steps}"
    yield f"actor_update = {sizes.actor_update}   # per pass on one rank, here and below"
    yield f"old_log_prob = {sizes.old_log_prob}"
    yield f"ref_log_prob = {sizes.ref_log_prob}"
    yield f"critic_update = {sizes.critic_update}"
    yield f"critic_forward = {sizes.critic_forward}"
    for role, plan, why in facts.expected.lines():
        yield f"{role}_training = {plan}   # {why}"


def print_lines(lines: Iterable[str], stream: TextIO) -> None:
    """Lines for people: the first word coloured if `stream` is a terminal and NO_COLOR is not set."""
    console = _console(stream)
    for line in lines:
        if console is None:
            stream.write(line + "\n")
        else:
            from rich.text import Text

            from trainer.wrapping import print_line

            word, _, rest = line.partition(" ")
            print_line(console, Text.assemble((word, _STYLES.get(word, "")), f" {rest}"))


def _console(stream: TextIO) -> Console | None:
    """None where text stays plain. NO_COLOR stands for every style: rich alone would keep bold and dim."""
    if not stream.isatty() or os.environ.get("NO_COLOR"):
        return None
    from rich.console import Console

    return Console(file=stream, soft_wrap=True)


def _one_line(text: str) -> str:
    return " ".join(text.split())
