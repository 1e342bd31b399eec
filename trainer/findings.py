"""What a replay finds: the stages of a step, one comparison each or more, and the table of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

STAGES = {
    "weights": "checksums of the models before the step",
    "rollout": "the tokens of the responses",
    "reward": "the scores",
    "old_log_prob": "the actor's log-probs before the step",
    "ref": "the reference's log-probs",
    "values": "the critic's values before the step",
    "adv": "rewards, advantages, returns, importance weights, KL coefficient",
    "mini_batches": "the rows of each optimizer step",
    "critic_loss": "the critic's losses",
    "critic_gradients": "its gradient norms",
    "critic_step": "how far the step moved each tensor",
    "actor_loss": "the actor's losses",
    "actor_gradients": "its gradient norms",
    "actor_step": "how far the step moved each tensor",
}


@dataclass(frozen=True)
class Finding:
    """One comparison. `difference` is over max(1, |what the run saw|); None where nothing could be compared."""

    stage: str
    compared: str
    difference: float | None
    limit: float
    note: str = ""

    @property
    def verdict(self) -> str:
        if self.difference is None:
            return "skipped"
        return "same" if self.difference <= self.limit else "OFF"  # not-a-number is off


def to_json(finding: Finding) -> dict[str, object]:
    """With its verdict; a difference that is infinite, which JSON has no word for, is None."""
    difference = finding.difference
    finite = difference is not None and math.isfinite(difference)
    return asdict(finding) | {"difference": difference if finite else None, "verdict": finding.verdict}


def table(findings: Sequence[Finding]) -> list[str]:
    """For people: stage, what is compared, the largest difference, its limit and the verdict."""
    rows = [("stage", "compared with the run's", "max difference", "limit", "verdict")]
    for each in findings:
        difference = "-" if each.difference is None else f"{each.difference:.2g}"
        limit = "-" if each.difference is None else f"{each.limit:.2g}"
        rows.append(
            (each.stage, each.compared, difference, limit, each.verdict + (f": {each.note}" if each.note else ""))
        )
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return ["  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]]) for row in rows]
