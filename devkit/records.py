"""The records that `--json` prints. Field names are a promise: add, never rename."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal, TypedDict

Status = Literal["pass", "fail", "skip"]
Verdict = Literal["pass", "fail"]
Document = dict[str, Any]


@dataclass(frozen=True)
class ErrorRecord:
    """What went wrong, what to do about it, and the exit code of the command."""

    error: str
    hint: str
    exit_code: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class CheckResult:
    """One check: what it found, in one line that has the figure and its limit."""

    name: str
    status: Status
    detail: str
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "seconds": round(self.seconds, 6)}


@dataclass(frozen=True)
class AgentCheckRecord:
    """What `devkit agent check` found.

    >>> AgentCheckRecord("frozen_lake", (CheckResult("ends", "skip", "none did", 0.0),)).verdict
    'fail'
    """

    env: str
    checks: tuple[CheckResult, ...]

    @property
    def verdict(self) -> Verdict:
        """Fine when something was checked and nothing failed."""
        statuses = {check.status for check in self.checks}
        return "pass" if "pass" in statuses and "fail" not in statuses else "fail"

    def to_json(self) -> Document:
        return {"env": self.env, "verdict": self.verdict, "checks": [check.to_json() for check in self.checks]}


@dataclass(frozen=True)
class AgentReplayRecord:
    """What `devkit agent replay` found. `difference` is the first, with `turn`, `what`, `recorded` and `replayed`.

    >>> AgentReplayRecord("frozen_lake", 1, 7, 3, None).to_json()["verdict"]
    'pass'
    """

    env: str
    number: int  # of the conversation in its file
    seed: int
    answers: int  # that were compared, that of reset included
    difference: Mapping[str, Any] | None

    def to_json(self) -> Document:
        verdict: Verdict = "fail" if self.difference else "pass"
        return {**vars(self), "verdict": verdict}


@dataclass(frozen=True)
class AgentPlayRecord:
    """A conversation that a person has played. `turns` are as those of `devkit agent show`; ids are null without a
    tokenizer. `ended` is `left` where the input ended first.

    >>> AgentPlayRecord("frozen_lake", 7, "left", 0.0, "S F", (5, 6), (), None).to_json()["turns"]
    []
    """

    env: str
    seed: int
    ended: str
    score: float
    prompt: str
    prompt_ids: Sequence[int] | None
    turns: Sequence[Mapping[str, Any]]
    failure: str | None

    def to_json(self) -> Document:
        ids = None if self.prompt_ids is None else list(self.prompt_ids)
        return {**vars(self), "prompt_ids": ids, "turns": list(self.turns)}


@dataclass(frozen=True)
class StepRecord:
    """One PPO step: its mean reward, and what else was measured, under the trainer's metric names.

    >>> StepRecord(step=3, reward_mean=0.5, metrics={"actor/entropy": 1.25}).to_json()
    {'step': 3, 'reward_mean': 0.5, 'actor/entropy': 1.25}
    """

    step: int
    reward_mean: float
    metrics: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        promised = {"step": self.step, "reward_mean": _figure(self.reward_mean)}
        more = {name: _figure(value) for name, value in self.metrics.items() if name not in promised}
        return promised | more


@dataclass(frozen=True)
class Cut:
    """A key of the full run that the smoke test sets differently, and why."""

    key: str
    full: Any
    tiny: Any
    why: str
    given: bool  # the command set it; else it is a default

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class StepHead(TypedDict):
    """What every step has."""

    step: int
    reward_mean: float | None  # null: not a number


StepDocument = Annotated[Document, StepHead, dict[str, float | None]]  # and the trainer's metrics by their names


class SmokeDocument(TypedDict):
    """`devkit smoke`."""

    verdict: Verdict
    seconds: float  # from the command to the verdict
    phases: dict[str, float]  # seconds of each, in order
    checks: list[Annotated[Document, CheckResult]]
    steps: list[StepDocument]
    artifacts: dict[str, str]  # path of what the run left, by its name
    kept: dict[str, Any]  # keys of the full run, as it had them
    cut: list[Annotated[Document, Cut]]


@dataclass(frozen=True)
class SmokeRecord:
    """What `devkit smoke` found."""

    seconds: float  # from the command to the verdict
    phases: Mapping[str, float]  # seconds of each, in order
    checks: tuple[CheckResult, ...]
    steps: tuple[StepRecord, ...]
    artifacts: Mapping[str, str] = field(default_factory=dict)  # name -> path of what the run left
    kept: Mapping[str, Any] = field(default_factory=dict)  # keys of the full run, as it had them
    cut: tuple[Cut, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """Fine when something was checked and nothing failed: a run whose checks were all skipped shows nothing."""
        statuses = {check.status for check in self.checks}
        return "pass" if "pass" in statuses and "fail" not in statuses else "fail"

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the checks that failed."""
        return tuple(check.name for check in self.checks if check.status == "fail")

    def count(self, status: Status) -> int:
        return sum(check.status == status for check in self.checks)

    def to_json(self) -> SmokeDocument:
        return {
            "verdict": self.verdict,
            "seconds": round(self.seconds, 6),
            "phases": {name: round(seconds, 6) for name, seconds in self.phases.items()},
            "checks": [check.to_json() for check in self.checks],
            "steps": [step.to_json() for step in self.steps],
            "artifacts": dict(self.artifacts),
            "kept": dict(self.kept),
            "cut": [cut.to_json() for cut in self.cut],
        }


def _figure(value: float) -> float | None:
    """JSON has no NaN and no infinity: such a value is null."""
    return round(value, 6) if math.isfinite(value) else None
