"""Findings for people, as a compiler shows them: where, what, the line, why, what to write instead."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from devkit.lint.records import SEVERITIES, LintFinding, LintRecord
from devkit.palette import CAUTION, NAME

_STYLE = {"error": "bold red", "warning": f"bold {CAUTION}", "note": f"bold {NAME}"}
_WIDTH = 100  # of a source line; of a longer one the part around the finding is shown
_LEAST = 20
_MARGIN = 8  # columns before it


def lines(record: LintRecord, width: int | None = None) -> Iterator[Text]:
    """`width` is the terminal's, if there is one: the marks stand below what they mark only on an unbroken line."""
    room = _WIDTH if width is None else max(_LEAST, min(_WIDTH, width - _MARGIN))
    for finding in record.findings:
        yield from _finding(finding, room)
        yield Text()
    for target in record.targets:
        yield Text(f"{target.file}:{target.line}: checked as {target.target} ({target.reason})", style="dim")
    yield summary(record)


def _finding(finding: LintFinding, room: int) -> Iterator[Text]:
    style = _STYLE[finding.severity]
    place = f"{finding.file}:{finding.line}:{finding.column}: "
    rule = (f" [{finding.rule}]", "dim")
    yield Text.assemble((place, "bold"), (f"{finding.severity}: ", style), finding.message, rule)
    number = f"{finding.line:5} | "
    shown, start = _around(finding, room)
    yield Text.assemble((number, "dim"), shown)
    width = max(1, min(finding.width, len(shown) - start))
    yield Text.assemble((" " * 5 + " | ", "dim"), " " * start, ("^" * width, style))
    yield Text.assemble(("   why: ", "bold"), finding.why)
    yield Text.assemble(("  hint: ", "bold"), finding.hint)


def _around(finding: LintFinding, room: int) -> tuple[str, int]:
    """The line, or `room` columns of it, and where in them the finding begins."""
    line = "".join(c if c.isprintable() else " " for c in finding.source)
    start = min(finding.column - finding.source_column, len(line))
    if len(line) <= room:
        return line, start
    first = max(0, min(start - 10, len(line) - room))
    return line[first : first + room], start - first


def summary(record: LintRecord) -> Text:
    counts = [(record.count(severity), severity) for severity in SEVERITIES]
    if not any(count for count, _ in counts):
        checked = "" if record.targets else "; there is no training command in it, so only its shell was checked"
        return Text(f"lint: no problems found{checked}")
    said = ", ".join(f"{count} {severity}{'s' if count > 1 else ''}" for count, severity in counts if count)
    return Text(f"lint: {said}")
