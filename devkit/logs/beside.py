"""What a run has left beside crashes: what it was warned of, and what it caught itself many times. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from devkit.debug.caught_view import Row, swallowed, swallowed_heading, swallowed_line
from devkit.debug.crash_table import clip
from devkit.debug.naming import count, short_path
from devkit.logs import redact
from devkit.logs.collect import Left
from devkit.logs.warned import OURS, Warned, explained, warned

SWALLOWED = 5  # lines
WARNINGS = 3  # that are shown
QUOTED = 100  # characters of a warning


def lines(left: Left, cwd: str | None = None) -> list[str]:
    """All of it, each part below its heading."""
    given, rows = warned(left.files), swallowed(left.caught, cwd)
    found = [warnings_heading(given), *(f"  {each}" for each in warning_lines(given, cwd))] if given else []
    return found + ([swallowed_heading(rows), *(f"  {each}" for each in swallowed_lines(rows))] if rows else [])


def in_short(left: Left) -> str:
    """Of how much there is; empty: of nothing."""
    given, rows = warned(left.files), swallowed(left.caught)
    kept = {row.is_kept for row in rows}
    how = " or ".join(
        ["the program caught itself"] * (False in kept) + ["tasks or Futures of it kept"] * (True in kept)
    )
    caught = f"{sum(each.times for each in rows)} errors that {how}"
    return " and ".join([*([count(len(given), "warning")] if given else ()), *([caught] if rows else ())])


def swallowed_lines(rows: Sequence[Row], most: int = SWALLOWED, more: str = "see --json") -> Iterator[str]:
    """The lines of the program's own that raised what was swallowed, the most frequent first."""
    for row in rows[:most]:
        yield redact.text(swallowed_line(row))
    if len(rows) > most:
        yield f"and {count(len(rows) - most, 'other line')}: {more}"


def warnings_heading(given: Sequence[Warned]) -> str:
    return "this was warned of:" if len(given) == 1 else "these warnings:"


def warning_lines(given: Sequence[Warned], cwd: str | None) -> Iterator[str]:
    """One line each: it may say where the first number went wrong. At last how many there are beside those."""
    for each in given[:WARNINGS]:
        more = f" and {len(each.roles) - 1} more" if len(each.roles) > 1 else ""
        said = redact.text(each.said)
        if not each.kind:
            yield said
            continue
        said = f"{each.kind}: {said}"
        told = said if each.kind == OURS else clip(said, QUOTED)
        who = f" ({each.roles[0]}{more})" if each.roles else ""
        yield f"{short_path(each.file, cwd)}:{each.line}  {told}{who}"
        if why := explained(each.said):
            yield f"  {why}"
    if len(given) > WARNINGS:
        yield f"and {len(given) - WARNINGS} more, which are in its output"


__all__ = ["in_short", "lines", "swallowed_lines", "warning_lines", "warnings_heading"]
