"""What a run's own validations were of, and what they said: rows, prompts, scores, and the mean that is logged."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from devkit.smoke.checks.outcome import Outcome, look_at
from devkit.smoke.checks.prompts import label_of
from devkit.smoke.file_rows import RowId
from devkit.smoke.made_up_batches import experience
from trainer import validation
from trainer.data import reading
from trainer.records import Rollout, Scores

SAME_SCORE = 1e-6  # the rounding of fp32
KEY = "val/test_score/"  # then the data source


@dataclass(frozen=True)
class Answered:
    """One response of a validation, as the run wrote it down."""

    row: RowId
    source: str
    prompt: str
    score: float
    direct: float | None = None  # the score by a direct call; None: there is none to compare


@dataclass(frozen=True)
class Wanted:
    """What the configuration asks for: so many of these rows, with their prompts."""

    count: int | None  # None: it depends on which they are
    prompts: Mapping[RowId, str]
    in_order: bool  # all of them, in their order; else any


def as_configured(step: int, answered: Sequence[Answered], wanted: Wanted, logged: Mapping[str, float]) -> Outcome:
    """One validation."""
    for said, where in (_rows(answered, wanted), _scores(answered), _means(answered, logged)):
        if said:
            return Outcome(False, f"the validation at step {step} {said}: look at {where}")
    means = ", ".join(f"{value:.3g} for {source}" for source, value in _by_source(answered).items())
    return Outcome(True, f"{len(answered)} rows of data.val_files, each once; logged as {means}")


def means_as_counted(seed: int) -> Outcome:
    """Of made-up scores of two sources, in two batches: those of a new model may all be 0."""
    batches, answered = [experience(seed), experience(seed + 1, groups=3)], []
    for seen in batches:
        rows = seen.rollout.prompts.rows
        answered += [
            Answered((row.file, row.index), f"source {row.index % 2}", "", sum(scores))
            for row, scores in zip(rows, seen.scores_BT.tolist(), strict=True)
        ]
    rollouts = [_of_two_sources(seen.rollout) for seen in batches]
    logged = validation.validation_metrics(rollouts, [Scores(seen.scores_BT.sum(-1), {}) for seen in batches])
    said, where = _means(answered, logged)
    return Outcome(False, f"a validation {said}: look at {where}") if said else Outcome(None, "means are counted right")


def _of_two_sources(rollout: Rollout) -> Rollout:
    rows = tuple(replace(row, data_source=f"source {row.index % 2}") for row in rollout.prompts.rows)
    return replace(rollout, prompts=replace(rollout.prompts, rows=rows))


def _rows(answered: Sequence[Answered], wanted: Wanted) -> tuple[str, str]:
    where = look_at(reading.read_data).removeprefix("look at ")
    rows = [each.row for each in answered]
    if strange := [row for row in rows if row not in wanted.prompts]:
        return f"was of {label_of(strange[0])}, which is not in data.val_files", where
    count = len(rows) if wanted.count is None else wanted.count
    if len(set(rows)) < len(rows) or len(rows) != count:
        return f"was of {len(set(rows))} rows in {len(rows)} responses, of {count} rows", where
    if wanted.in_order and rows != list(wanted.prompts):
        return "has its rows in another order than the files", where
    for each in answered:
        if each.prompt != wanted.prompts[each.row]:
            return f"has another prompt for {label_of(each.row)} than the file", where
    return "", ""


def _scores(answered: Sequence[Answered]) -> tuple[str, str]:
    for each in answered:
        if each.direct is not None and not abs(each.score - each.direct) <= SAME_SCORE * max(1.0, abs(each.direct)):
            said = f"scores the response to {label_of(each.row)} {each.score:.6g}, a direct call {each.direct:.6g}"
            return said, look_at(validation.validate).removeprefix("look at ")
    return "", ""


def _means(answered: Sequence[Answered], logged: Mapping[str, float]) -> tuple[str, str]:
    for source, mean in _by_source(answered).items():
        is_ = logged.get(f"{KEY}{source}")
        if is_ is None or not math.isclose(is_, mean, rel_tol=1e-5, abs_tol=1e-7):
            said = f"logs {KEY}{source} as {is_}, and its scores have a mean of {mean:.6g}"
            return said, look_at(validation.validation_metrics).removeprefix("look at ")
    return "", ""


def _by_source(answered: Sequence[Answered]) -> dict[str, float]:
    scores: dict[str, list[float]] = {}
    for each in answered:
        scores.setdefault(each.source, []).append(each.score)
    return {source: math.fsum(of) / len(of) for source, of in scores.items()}
