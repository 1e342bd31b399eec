"""What trainer and engine say to each other about weights: frozen records that travel as JSON text.

A *bucket* is memory that both can see: tensors lie one behind the other in it, and a `Load` tells where.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainer.errors import WeightMismatch
from trainer.rollout.sums import Sums

NAMED = 3  # findings that an error tells


@dataclass(frozen=True)
class Slot:
    """One tensor in a bucket."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # of torch: "bfloat16"
    offset: int  # bytes
    sums: Sums | None  # of the whole tensor, as the trainer has it; None: the sender does not verify


@dataclass(frozen=True)
class Load:
    """Take these tensors. `handles`: for each tensor-parallel rank, how it gets at the bucket's memory."""

    version: int
    slots: tuple[Slot, ...]
    handles: tuple[str, ...]
    first: bool = False  # of an update: forget the last one's findings


@dataclass(frozen=True)
class Look:
    """Say what stands in the model now, and let go of all buckets."""

    version: int


@dataclass(frozen=True)
class Standing:
    """What one tensor-parallel rank holds of one tensor of the trainer's model."""

    dim: int
    start: int
    stop: int
    total: int  # of the whole tensor, along `dim`
    dtype: str
    sums: Sums  # of the part, with its offsets: those of all parts add up to the whole's


@dataclass(frozen=True)
class Finding:
    """A tensor that is not as it should be, on one tensor-parallel rank; `name` "" if it is not about one tensor."""

    tp_rank: int
    name: str
    what: str


@dataclass(frozen=True)
class Report:
    """One tensor-parallel rank's answer."""

    tp_rank: int
    version: int
    findings: tuple[Finding, ...] = ()
    standing: Mapping[str, Standing] = field(default_factory=dict)


def encode(message: Load | Look | Report) -> str:
    """As text of one line."""
    return json.dumps({"kind": type(message).__name__, **dataclasses.asdict(message)})


def decode(text: str) -> Any:
    """What `encode` was given."""
    raw = json.loads(text)
    kind = raw.pop("kind")
    if kind == "Look":
        return Look(**raw)
    if kind == "Load":
        slots = tuple(
            Slot(**{**slot, "shape": tuple(slot["shape"]), "sums": slot["sums"] and Sums(**slot["sums"])})
            for slot in raw["slots"]
        )
        return Load(raw["version"], slots, tuple(raw["handles"]), raw["first"])
    if kind == "Report":
        standing = {name: Standing(**{**s, "sums": Sums(**s["sums"])}) for name, s in raw["standing"].items()}
        return Report(raw["tp_rank"], raw["version"], tuple(Finding(**f) for f in raw["findings"]), standing)
    raise ValueError(f"a message of kind {kind}")


def whole_sums(reports: Sequence[Report]) -> tuple[dict[str, Sums], tuple[Finding, ...]]:
    """The sums of each whole tensor from those of its parts, and what does not add up.

    Ranks may hold equal parts (key-value heads that are replicated): such a part counts once.
    """
    whole: dict[str, Sums] = {}
    findings: list[Finding] = []
    for name in sorted({name for report in reports for name in report.standing}):
        parts: dict[tuple[int, int], Standing] = {}
        for report in reports:
            held = report.standing.get(name)
            if held is None:
                findings.append(Finding(report.tp_rank, name, "is not there"))
            elif parts.setdefault((held.start, held.stop), held).sums != held.sums:
                findings.append(Finding(report.tp_rank, name, "differs from another rank's copy of the same part"))
        ends = [0, *(stop for _, stop in sorted(parts))]
        starts = [*(start for start, _ in sorted(parts)), next(iter(parts.values())).total]
        if ends != starts:
            findings.append(Finding(reports[0].tp_rank, name, "is not whole: its parts leave gaps or overlap"))
        total = Sums(0, 0)
        for part in parts.values():
            total += part.sums
        whole[name] = total
    return whole, tuple(findings)


def not_the_trainers(engine: str, told: Sequence[str], count: int) -> WeightMismatch:
    """The error for an engine's weights; `told` are the first of `count` findings."""
    more = f"; and {count - NAMED} more" if count > NAMED else ""
    return WeightMismatch(
        f"the weights of {engine} are not the trainer's: {'; '.join(told[:NAMED])}{more}",
        hint="the run has stopped before it could sample from them. Once: look at the device's health "
        "(`nvidia-smi -q -d ECC`). Every time: report the model",
    )
