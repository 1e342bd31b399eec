"""What lint found, and its document under `--json`. Field names are a promise: add, never rename."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, TypedDict

from devkit.lint.source import Span

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """One finding of a rule: `message` says what, `why` why it matters, `hint` what to write instead."""

    rule: str
    span: Span
    message: str
    why: str
    hint: str
    severity: Severity | None = None  # None: the rule's own


@dataclass(frozen=True)
class LintFinding:
    """A finding and where it is: lines and columns are counted from 1."""

    rule: str
    severity: Severity
    file: str
    line: int
    column: int
    width: int  # characters of the line that are meant
    source: str  # the line; of a long one the part around the finding
    message: str  # what
    why: str  # why it matters
    hint: str  # what to write instead
    source_column: int = 1  # where in its line `source` begins

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class LintTarget:
    """A training command, and the release of verl by which its keys were judged."""

    file: str
    line: int
    target: str  # verl-head, ..., search-r1, ours
    reason: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class LintDocument(TypedDict):
    """`devkit lint`."""

    findings: list[LintFinding]  # by file and line
    targets: list[LintTarget]
    errors: int
    warnings: int
    notes: int


@dataclass(frozen=True)
class LintRecord:
    """What `devkit lint` found."""

    findings: tuple[LintFinding, ...]
    targets: tuple[LintTarget, ...] = ()

    def count(self, severity: Severity) -> int:
        return sum(finding.severity == severity for finding in self.findings)

    @property
    def exit_code(self) -> int:
        return int(self.count("error") > 0)

    def to_json(self) -> dict[str, Any]:
        return {
            "findings": [finding.to_json() for finding in self.findings],
            "targets": [target.to_json() for target in self.targets],
            "errors": self.count("error"),
            "warnings": self.count("warning"),
            "notes": self.count("note"),
        }
