"""Prompts: their order against the files', those that came back against those asked for, their tokens."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from devkit.smoke.checks.outcome import Outcome, look_at, times
from devkit.smoke.checks.plan import SAME_BY_CHANCE
from devkit.smoke.file_rows import DataPlan, FileRows, RowId, cut_to
from trainer import run
from trainer.data import dataset, loader
from trainer.group import WorkerGroup
from trainer.records import Prompts, Rollout, Sample

LOG_LIMIT = math.log(SAME_BY_CHANCE)
Mistake = tuple[str, Callable[..., Any]]  # what is wrong, and the function to look at
Steps = Mapping[int, Sequence[RowId]]  # the rows of each step, which count from 1, in their order


def rows_of(rollout: Rollout) -> list[RowId]:
    """The row of each prompt of a rollout, in their order."""
    prompts = rollout.prompts
    return [(row.file, row.index) for row, (_, sample) in zip(prompts.rows, prompts.samples, strict=True) if not sample]


# ------------------------------------------------------------------------------------------------ the order of the data


def in_order(steps: Steps, plan: DataPlan) -> Outcome:
    """No row twice in an epoch; the next epoch has the same rows in another order, or all are in the files' order."""
    if plan.doubled:
        return Outcome(None, "a file is given twice, so its rows cannot be distinguished")
    for said, where in _mistakes(steps, plan):
        return Outcome(False, f"{said}: {look_at(where)}")
    if plan.steps is None:
        return Outcome(True, f"{len(steps)} steps of {plan.batch} rows; the length of an epoch is unknown")
    how = "no two in the same order" if plan.shuffle else "in the order of the files"
    return Outcome(True, f"{len(steps)} steps: epochs of {plan.steps} x {plan.batch} rows, each row once, {how}")


def goes_on(step: int, before: Sequence[RowId], now: Sequence[RowId]) -> Outcome:
    """A step that was done before the run was resumed, and again after it, has the same rows."""
    if list(before) == list(now):
        return Outcome(True, f"step {step} has the same rows after resuming")
    said = f"after resuming, step {step} begins with {label_of(now[0])}, and began with {label_of(before[0])}"
    return Outcome(False, f"{said}: the data do not resume where they stopped: {look_at(run.resume)}")


def _mistakes(steps: Steps, plan: DataPlan) -> Iterator[Mistake]:
    yield from _of_steps(steps, plan)
    if plan.steps is None:
        return
    epochs: dict[int, list[int]] = {}  # by number, its steps
    for step in sorted(steps):
        epochs.setdefault((step - 1) // plan.steps, []).append(step)
    for number, of_epoch in epochs.items():
        yield from _of_epoch(number, of_epoch, steps)
    yield from _of_part(epochs, steps, plan)
    yield from _of_shuffles(epochs, steps, plan) if plan.shuffle else _of_file_order(steps, plan)


def _of_steps(steps: Steps, plan: DataPlan) -> Iterator[Mistake]:
    """Each step has a batch of rows of the files; the next one has another."""
    batches = loader.PromptLoader.__iter__
    known = None if plan.rows is None else set(plan.rows)
    for step, rows in sorted(steps.items()):
        if len(rows) != plan.batch:
            yield f"step {step} has {len(rows)} prompts, but data.train_batch_size is {plan.batch}", batches
        for row in rows:
            if not 0 <= row[1] < plan.sizes.get(row[0], 0) or (known is not None and row not in known):
                yield f"step {step} has {label_of(row)}, which should not be trained on", dataset.load_prompts
        if list(steps.get(step - 1, ())) == list(rows) and _must_differ(step, plan):
            yield f"step {step} has the batch of step {step - 1} again", batches


def _must_differ(step: int, plan: DataPlan) -> bool:
    """Whether a step cannot have the rows of the one before it, in their order."""
    if plan.steps is None:
        return plan.shuffle and _log_chance(plan.batch, plan.batch) <= LOG_LIMIT
    return (step - 1) % plan.steps > 0


def _of_epoch(number: int, of_epoch: Sequence[int], steps: Steps) -> Iterator[Mistake]:
    """No row twice."""
    seen: dict[RowId, int] = {}
    for step in of_epoch:
        for row in steps[step]:
            if row in seen:
                said = f"{label_of(row)} comes twice in epoch {number + 1}: in steps {seen[row]} and {step}"
                yield said, loader.PromptLoader.__iter__
            seen[row] = step


def _of_part(epochs: Mapping[int, Sequence[int]], steps: Steps, plan: DataPlan) -> Iterator[Mistake]:
    """All epochs are of the same rows: no more different ones than are trained on."""
    seen = {row for rows in steps.values() for row in rows}
    assert plan.kept is not None and plan.steps is not None
    if len(seen) > plan.kept:
        said = f"{len(seen)} different rows were trained on in {len(epochs)} epochs, and an epoch has {plan.kept}"
        yield said, dataset.load_prompts


def _of_file_order(steps: Steps, plan: DataPlan) -> Iterator[Mistake]:
    assert plan.rows is not None and plan.steps is not None  # a random part is there with shuffling alone
    for step, rows in sorted(steps.items()):
        start = (step - 1) % plan.steps * plan.batch
        for row, wanted in zip(rows, plan.rows[start : start + plan.batch], strict=True):
            if row != wanted:
                said = (
                    f"data.shuffle is off, but step {step} has {label_of(row)} where the files have {label_of(wanted)}"
                )
                yield said, loader.PromptLoader._order


def _of_shuffles(epochs: Mapping[int, Sequence[int]], steps: Steps, plan: DataPlan) -> Iterator[Mistake]:
    """Every epoch is shuffled, and anew, into other batches."""
    order = loader.PromptLoader._order
    for number, of_epoch in epochs.items():
        rows = [row for step in of_epoch for row in steps[step]]
        if rows == _sorted(rows, plan) and _log_chance(len(rows), len(rows)) <= LOG_LIMIT:
            yield f"data.shuffle is on, but the rows of epoch {number + 1} are in the files' order", order
        for earlier in range(number):
            pairs = [(step - (number - earlier) * (plan.steps or 0), step) for step in of_epoch]
            pairs = [(a, b) for a, b in pairs if a in steps]
            yield from _of_two_epochs(earlier + 1, number + 1, [(steps[a], steps[b]) for a, b in pairs], plan)


def _of_two_epochs(
    one: int, other: int, pairs: Sequence[tuple[Sequence[RowId], Sequence[RowId]]], plan: DataPlan
) -> Iterator[Mistake]:
    """`pairs`: the rows of the same batches of each. Nothing is said where chance could make it."""
    assert plan.kept is not None
    count = sum(len(a) for a, _ in pairs)
    order = loader.PromptLoader._order
    if _log_chance(plan.kept, count) <= LOG_LIMIT and all(list(a) == list(b) for a, b in pairs):
        yield f"epoch {other} has the order of epoch {one}: the order of the data repeats", order
    same_sets = _log_chance(plan.kept, count) + sum(math.lgamma(len(a) + 1) for a, _ in pairs)
    if same_sets <= LOG_LIMIT and all(set(a) == set(b) for a, b in pairs):
        yield f"epoch {other} has the batches of epoch {one}: rows are shuffled only within them", order


def _log_chance(rows: int, drawn: int) -> float:
    """Logarithm of the chance that the first `drawn` of `rows` shuffled rows come in an order that was named before.

    >>> round(math.exp(_log_chance(5, 2)), 3)
    0.05
    """
    return math.lgamma(rows - drawn + 1) - math.lgamma(rows + 1)


def _sorted(rows: Sequence[RowId], plan: DataPlan) -> list[RowId]:
    files = list(plan.sizes)
    return sorted(rows, key=lambda row: (files.index(row[0]), row[1]))


def label_of(row: RowId) -> str:
    return f"row {row[1]} of {row[0].rsplit('/', 1)[-1]}"


# ------------------------------------------------------------------------------------- the prompts that came back


def came_back(samples: Sequence[Sample], step: int, plan: DataPlan, n: int, ranks: Sequence[int]) -> Outcome:
    """Each prompt asked for came back `n` times, and nothing else did. `samples`: of the rollout, in its order.

    `ranks`: those that generate, in the order in which they are given equal runs of the prompts. The uids asked for are
    known without asking the loader: they count the prompts of all epochs.
    """
    uids = sorted({uid for uid, _ in samples})
    first = uids[0] if plan.kept is None or not plan.steps else _first_uid(step, plan.kept, plan.steps, plan.batch)
    asked = [(first + place, sample) for place in range(plan.batch) for sample in range(n)]
    where = look_at(WorkerGroup._answers)
    for sample in twice(samples)[:1]:
        places = [place for place, each in enumerate(samples) if each == sample]
        one, other = (_rank_at(place, len(samples), ranks) for place in places[:2])
        who = f"rank {other} generated for prompts of rank {one}" if one != other else f"rank {one} generated twice"
        said = f"{who}: prompt uid {sample[0]}, sample {sample[1]} came back {len(places)} times"
        return Outcome(False, f"{said}: {where}")
    missing = [sample for sample in asked if sample not in set(samples)]
    if missing or len(samples) != len(asked):
        strange = len(set(samples) - set(asked))
        said = f"{len(missing)} of {len(asked)} requested samples did not come back"
        said += f": prompt uid {missing[0][0]}, sample {missing[0][1]}" if missing else ""
        said += f"; {strange} were not requested" if strange else ""
        return Outcome(False, f"{said}: {where}")
    return Outcome(True, f"{plan.batch} prompts came back {times(n)} each, from {len(ranks)} engines")


def twice(samples: Sequence[Sample]) -> list[Sample]:
    """Those that came back more than once, in their order."""
    return [sample for sample, times in Counter(samples).items() if times > 1]


def _first_uid(step: int, kept: int, steps: int, batch: int) -> int:
    epoch, place = divmod(step - 1, steps)
    return epoch * kept + place * batch


def _rank_at(place: int, rows: int, ranks: Sequence[int]) -> int:
    """Of runs whose lengths differ by one at most, the longer first.

    >>> [_rank_at(place, 5, [0, 2]) for place in range(5)]
    [0, 0, 0, 2, 2]
    """
    size, more = divmod(rows, len(ranks))
    ends = [size * (number + 1) + min(number + 1, more) for number in range(len(ranks))]
    return next(rank for rank, end in zip(ranks, ends, strict=True) if place < end)


# ---------------------------------------------------------------------------------------------- their tokens


def as_in_file(given: Prompts, files: FileRows) -> Outcome:
    """Each prompt is its row's, made from the file here, and cut, or left out, where it is too long."""
    limit, side = files.data.max_prompt_length, files.data.truncation
    rows, cut = [(row.file, row.index) for row in given.rows], set[RowId]()
    for row, ids, mask in zip(rows, given.ids_BP.tolist(), given.mask_BP.tolist(), strict=True):
        found, whole = [token for token, real in zip(ids, mask, strict=True) if real], files.tokens(row)
        if len(whole) > limit and files.data.filter_overlong_prompts:
            said = f"has {len(whole)} tokens: data.filter_overlong_prompts should drop it (limit {limit})"
            return Outcome(False, f"the prompt of {label_of(row)} {said}: {look_at(dataset._fit)}")
        if found != cut_to(whole, limit, side):
            said, where = _difference(found, row, {*rows, *_beside(row, files)}, files)
            return Outcome(False, f"the prompt of {label_of(row)} {said}: {look_at(where)}")
        cut |= {row} if len(whole) > limit else set()
    how = f"{len(cut)} of them cut on the {side} to {limit} tokens"
    return Outcome(True, f"{len(set(rows))} prompts match the files; {how}")


def _beside(row: RowId, files: FileRows) -> set[RowId]:
    """The rows before and after it in its file."""
    file, index = row
    return {(file, (index + by) % files.plan.sizes[file]) for by in (-1, 1)}


def _difference(given: list[int], row: RowId, others: set[RowId], files: FileRows) -> Mistake:
    """What a wrong prompt is."""
    limit, side, whole = files.data.max_prompt_length, files.data.truncation, files.tokens(row)
    for other in ("left", "right", "middle"):
        if given == cut_to(whole, limit, other):
            return f"is cut on the {other}, and data.truncation={side}", dataset.truncated
    for another in sorted(others):
        if given == cut_to(files.tokens(another), limit, side):
            return f"is that of {label_of(another)}", dataset.PromptDataset.__getitem__
    if len(given) > limit:
        return f"has {len(given)} tokens, but data.max_prompt_length={limit}", dataset._fit
    wanted = cut_to(whole, limit, side)
    if len(given) != len(wanted):
        return f"has {len(given)} tokens but should have {len(wanted)}", dataset._text
    place = next(place for place, pair in enumerate(zip(given, wanted, strict=True)) if pair[0] != pair[1])
    return f"differs from its row's at token {place}", dataset._text
