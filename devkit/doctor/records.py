"""What `devkit doctor` found, and its document under `--json`. Field names are a promise: add, never rename."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, TypedDict

from devkit.doctor.onnode.facts import Collective, NodeFacts, Pair
from devkit.doctor.plan import Plan
from devkit.logs import redact

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """What a rule says, and by what it knows. `what` is one sentence; there is no finding without evidence."""

    rule: str
    where: tuple[str, ...]  # nodes; empty: the command, or this machine's devkit
    what: str
    why: str
    fix: str  # a command, or what to do
    evidence: tuple[str, ...]
    severity: Severity | None = None  # None: the rule's own

    def __post_init__(self) -> None:
        if not self.evidence or not all(self.evidence):
            raise ValueError(f"a finding of {self.rule} without evidence")


@dataclass(frozen=True)
class DoctorFinding:
    """A finding as it is shown."""

    rule: str
    severity: Severity
    where: tuple[str, ...]
    what: str
    why: str
    fix: str
    evidence: tuple[str, ...]


@dataclass(frozen=True)
class DoctorNode:
    """A node, or this machine where there is no cluster."""

    node_id: str  # empty without a cluster
    name: str
    ip: str
    head: bool
    alive: bool
    answered: bool
    cpus: float  # as Ray counts them
    gpus: float
    free_cpus: float
    free_gpus: float
    clock_offset: float | None  # seconds ahead of the head's clock
    facts: NodeFacts | None


class DoctorDocument(TypedDict):
    """`devkit doctor`."""

    gcs_address: str  # empty without a cluster
    seconds: float
    nodes: list[DoctorNode]
    pairs: list[Pair]
    collectives: list[Collective]
    plans: list[Plan]
    findings: list[DoctorFinding]  # errors first
    errors: int
    warnings: int
    notes: int


@dataclass(frozen=True)
class DoctorRecord:
    """What was seen, and what it means."""

    gcs_address: str
    seconds: float
    nodes: tuple[DoctorNode, ...]
    pairs: tuple[Pair, ...]
    collectives: tuple[Collective, ...]
    plans: tuple[Plan, ...]
    findings: tuple[DoctorFinding, ...]
    is_unreachable: bool = False  # a cluster was named, and could not be looked at

    def count(self, severity: Severity) -> int:
        return sum(finding.severity == severity for finding in self.findings)

    @property
    def exit_code(self) -> int:
        """0 without an error, 1 with one; 3 where the cluster could not be reached."""
        return 3 if self.is_unreachable else int(self.count("error") > 0)

    def to_json(self) -> dict[str, Any]:
        document = {
            "gcs_address": self.gcs_address,
            "seconds": round(self.seconds, 3),
            "nodes": [asdict(node) for node in self.nodes],
            "pairs": [asdict(pair) for pair in self.pairs],
            "collectives": [asdict(collective) for collective in self.collectives],
            "plans": [asdict(plan) for plan in self.plans],
            "findings": [asdict(finding) for finding in self.findings],
            "errors": self.count("error"),
            "warnings": self.count("warning"),
            "notes": self.count("note"),
        }
        return dict(redact.texts(document))  # other people's command lines are in it, and URLs
