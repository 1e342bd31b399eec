"""What a step reports of its batch and its updates, counted once more: curves are what people judge a run by."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from devkit.smoke.checks.outcome import AS_COMPUTED, Outcome, look_at
from devkit.smoke.recompute import tokens_of
from trainer import metrics as reported
from trainer.config.schema import DataConfig
from trainer.records import TrainBatch, UpdateReport

ROUNDING = 1e-6  # of the largest number of a sum in fp32, which may come out near 0
NO_DIVISION_BY_0 = 1e-5  # verl's, beside the returns' variance
Figures = Iterator[tuple[str, float, float]]  # name, what it should be, the largest number of which it is made


def as_counted(
    told: Mapping[str, float], batch: TrainBatch, updates: Sequence[tuple[str, UpdateReport]], limits: DataConfig
) -> Outcome:
    """`told`: the step's metrics. Names are those of verl's dashboards."""
    count = 0
    for name, should_be, largest in (*_of_batch(batch), *_of_lengths(batch, limits), *_of_updates(updates)):
        count += 1
        is_ = told.get(name)
        if is_ is None or not math.isclose(is_, should_be, rel_tol=AS_COMPUTED, abs_tol=ROUNDING * largest):
            where = reported.update_metrics if name.startswith("actor/") else reported.data_metrics
            said = f"{name} is {'missing' if is_ is None else f'{is_:.6g}'} but should be {should_be:.6g}"
            return Outcome(False, f"{said}: {look_at(where)}")
    return Outcome(True, f"{count} figures of each step match its batch and its updates")


def _of_batch(batch: TrainBatch) -> Figures:
    seen = batch.experience
    for name, x_BT in {"score": seen.scores_BT, "rewards": batch.rewards_BT}.items():
        yield from _summary(f"critic/{name}", [math.fsum(row) for row in tokens_of(x_BT, seen)])
    tokens = {"advantages": batch.advantages_BT, "returns": batch.returns_BT}
    tokens |= {} if seen.values_BT is None else {"values": seen.values_BT}
    for name, x_BT in tokens.items():
        yield from _summary(f"critic/{name}", [x for row in tokens_of(x_BT, seen) for x in row])
    if seen.values_BT is not None:
        values, returns = (
            [x for row in tokens_of(x_BT, seen) for x in row] for x_BT in (seen.values_BT, batch.returns_BT)
        )
        yield from _explained(values, returns)


def _explained(values: Sequence[float], returns: Sequence[float]) -> Figures:
    """The share of the returns' variance that the values explain; none of fewer than two tokens."""
    if len(returns) < 2:
        return
    left, all_ = _variance([r - v for r, v in zip(returns, values, strict=True)]), _variance(returns)
    largest, whole = max(map(abs, (*values, *returns))), all_ + NO_DIVISION_BY_0
    # Numbers that are rounded by a share of the largest one move a variance by that times its root, at most.
    moved = [largest * (math.sqrt(variance) + ROUNDING * largest) for variance in (left, all_)]
    yield "critic/vf_explained_var", 1 - left / whole, max(1.0, (moved[0] + moved[1] * left / whole) / whole)


def _variance(numbers: Sequence[float]) -> float:
    mean = math.fsum(numbers) / len(numbers)
    return math.fsum((x - mean) ** 2 for x in numbers) / (len(numbers) - 1)


def _of_lengths(batch: TrainBatch, limits: DataConfig) -> Figures:
    rollout = batch.experience.rollout
    masks = {"response": rollout.mask_BT, "prompt": rollout.prompts.mask_BP}
    longest = {"response": limits.max_response_length, "prompt": limits.max_prompt_length}
    for what, mask in masks.items():
        lengths = [float(sum(row)) for row in mask.tolist()]
        yield from _summary(f"{what}_length", lengths)
        yield f"{what}_length/clip_ratio", lengths.count(longest[what]) / len(lengths), 1.0


def _of_updates(updates: Sequence[tuple[str, UpdateReport]]) -> Figures:
    """Means over the optimizer steps, and the rate."""
    for role, report in updates:
        yield f"{role}/lr", report.lr, report.lr
        for name in report.steps[0]:
            numbers = [step[name] for step in report.steps]
            full = name if "/" in name else f"{role}/{name}"
            yield full, math.fsum(numbers) / len(numbers), max(map(abs, numbers))


def _summary(name: str, numbers: Sequence[float]) -> Figures:
    largest = max(map(abs, numbers))
    yield f"{name}/mean", math.fsum(numbers) / len(numbers), largest
    yield f"{name}/max", max(numbers), largest
    yield f"{name}/min", min(numbers), largest
