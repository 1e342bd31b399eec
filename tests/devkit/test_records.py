"""The records of `--json`: their field names are a promise."""

from __future__ import annotations

import json
from typing import Any

import pytest

from devkit.records import CheckResult, Cut, SmokeRecord, Status, StepRecord


def record(*statuses: Status) -> SmokeRecord:
    checks = tuple(CheckResult(f"check_{i}", status, "found 1, limit 2", 0.25) for i, status in enumerate(statuses))
    return SmokeRecord(
        12.5,
        {"start": 2.0},
        checks,
        (StepRecord(1, 0.5, {"actor/entropy": 1.5}),),
        {"report": "r.html"},
        kept={"actor_rollout_ref.rollout.n": 4},
        cut=(Cut("trainer.device", "auto", "cpu", "no GPU", given=False),),
    )


def test_the_smoke_record_has_the_fields_of_its_promise() -> None:
    assert record("pass", "skip").to_json() == {
        "verdict": "pass",
        "seconds": 12.5,
        "phases": {"start": 2.0},
        "checks": [
            {"name": "check_0", "status": "pass", "detail": "found 1, limit 2", "seconds": 0.25},
            {"name": "check_1", "status": "skip", "detail": "found 1, limit 2", "seconds": 0.25},
        ],
        "steps": [{"step": 1, "reward_mean": 0.5, "actor/entropy": 1.5}],
        "artifacts": {"report": "r.html"},
        "kept": {"actor_rollout_ref.rollout.n": 4},
        "cut": [{"key": "trainer.device", "full": "auto", "tiny": "cpu", "why": "no GPU", "given": False}],
    }


@pytest.mark.parametrize(
    ("statuses", "verdict"),
    [
        (("pass",), "pass"),
        (("pass", "skip"), "pass"),
        (("pass", "fail"), "fail"),
        (("fail",), "fail"),
        (("skip", "skip"), "fail"),  # nothing was shown
        ((), "fail"),
    ],
)
def test_verdict(statuses: tuple[Status, ...], verdict: str) -> None:
    assert record(*statuses).verdict == verdict


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_figure_that_json_cannot_write_is_null(value: float) -> None:
    step: dict[str, Any] = json.loads(json.dumps(StepRecord(1, value, {"loss": value}).to_json(), allow_nan=False))
    assert step == {"step": 1, "reward_mean": None, "loss": None}


def test_a_metric_cannot_overwrite_the_promised_fields() -> None:
    assert StepRecord(3, 0.5, {"step": 9.0, "reward_mean": 9.0}).to_json() == {"step": 3, "reward_mean": 0.5}
