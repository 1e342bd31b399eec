"""Which rows each optimizer step saw, beside what the configuration's batch sizes say: plain arithmetic."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from devkit.smoke.checks.outcome import Outcome, look_at, times
from trainer import group, ppo
from trainer.config.schema import Config
from trainer.records import Sample, UpdateReport

Steps = Sequence[Sequence[Sequence[int]]]  # by optimizer step and copy of the model: numbers of rows in the batch

# Two shuffles of the same rows that are compared cut them into the same mini-batches once in so many times, or are not
# compared. A run compares about 200 pairs, and so says this of what is right in less than 2 of a million runs.
SAME_BY_CHANCE = 1e-8


@dataclass(frozen=True)
class Plan:
    """What an update is to do; numbers of rows are those of all ranks together."""

    rows: int  # of the batch
    mini: int  # per optimizer step
    epochs: int
    shuffle: bool

    @property
    def sizes(self) -> list[int]:
        """Rows of each optimizer step of one epoch; what is left over makes a smaller one.

        >>> Plan(rows=10, mini=4, epochs=1, shuffle=False).sizes
        [4, 4, 2]
        """
        return [min(self.mini, self.rows - start) for start in range(0, self.rows, self.mini)]

    @property
    def same_by_chance(self) -> float:
        """How probable it is that two shuffles make the same mini-batches.

        >>> Plan(rows=4, mini=2, epochs=1, shuffle=True).same_by_chance
        0.16666666666666666
        """
        return math.prod(map(math.factorial, self.sizes)) / math.factorial(self.rows)


def plan_of(role: str, config: Config) -> Plan:
    """From the sizes in the configuration alone."""
    part = config.actor_rollout_ref.actor if role == "actor" else config.critic
    n = config.actor_rollout_ref.rollout.n
    return Plan(config.data.train_batch_size * n, part.ppo_mini_batch_size * n, part.ppo_epochs, part.shuffle)


def is_updated(role: str, config: Config, step: int) -> bool:
    """Whether a step updates the model: the actor's warm-up of N leaves out N - 1 updates."""
    return config.uses_critic if role == "critic" else step >= config.trainer.critic_warmup


def no_update(role: str, step: int, *, wanted: bool) -> Outcome:
    """Of a step without an update."""
    if wanted:
        return Outcome(False, f"step {step} did not update the {role}: {look_at(ppo.step)}")
    return Outcome(None, f"no update of the {role} is due")


def trained_as_planned(
    role: str, report: UpdateReport, batch: Sequence[Sample], plan: Plan, ranks: Sequence[int]
) -> Outcome:
    """Each optimizer step saw its mini-batch, shared out among the ranks; each epoch saw every row once.

    `batch`: its rows in their order; `ranks`: the one that speaks for each copy of the model.
    """
    if len(set(batch)) < len(batch):
        return Outcome(None, "the batch contains the same sample twice, so its rows cannot be distinguished")
    steps = rows_of(report, batch)
    for said, where in _mistakes(steps, plan, ranks):
        return Outcome(False, f"the {role}'s {said}: {look_at(where)}")
    count = "1 optimizer step" if len(steps) == 1 else f"{len(steps)} optimizer steps"
    return Outcome(True, f"{role}: {count} of {plan.sizes[0]} rows; each row {times(plan.epochs)}, on one rank")


def rows_of(report: UpdateReport, batch: Sequence[Sample]) -> Steps:
    """Where in its batch each optimizer step's rows were; -1: it is not of this batch."""
    number = {sample: row for row, sample in enumerate(batch)}
    return [[[number.get(sample, -1) for sample in rows] for rows in by_copy] for by_copy in report.trained]


def shuffled_anew(role: str, before: Steps, now: Steps, plan: Plan) -> Outcome:
    """With `shuffle`, two updates one after the other draw different mini-batches."""
    if not plan.shuffle or plan.same_by_chance > SAME_BY_CHANCE:
        return Outcome(None, "no shuffles to compare")
    if _whole(before) == _whole(now):
        said = f"the {role}'s mini-batches have the rows of the step before, although shuffle is on"
        return Outcome(False, f"{said}: its order repeats: {look_at(group.WorkerGroup.order)}")
    return Outcome(True, f"{role}: mini-batches reshuffled")


Mistake = tuple[str, Callable[..., Any]]  # what is wrong, and the function to look at


def _mistakes(steps: Steps, plan: Plan, ranks: Sequence[int]) -> Iterator[Mistake]:
    """The one that explains most comes first."""
    sizes = plan.sizes * plan.epochs
    for i, by_copy in enumerate(steps):
        yield from _of_shares(f"optimizer step {i + 1} of {len(sizes)}", by_copy, ranks)
    whole = _whole(steps)
    yield from _of_counts(whole, plan)
    for epoch in range(plan.epochs):
        yield from _of_epoch(whole[epoch * len(plan.sizes) : (epoch + 1) * len(plan.sizes)], plan, epoch)
    yield from _of_order(whole, plan)


def _whole(steps: Steps) -> list[list[int]]:
    """The rows of each optimizer step, whichever rank had them."""
    return [sorted(row for rows in by_copy for row in rows) for by_copy in steps]


def _of_shares(step: str, by_copy: Sequence[Sequence[int]], ranks: Sequence[int]) -> Iterator[Mistake]:
    """The ranks' shares are disjoint, and equally large, one row more or less."""
    deal = group.WorkerGroup.shares
    for copy, rows in enumerate(by_copy):
        if -1 in rows:
            yield f"{step} saw a row on rank {ranks[copy]} that is not in this batch", deal
        if twice := [row for row, times in Counter(rows).items() if times > 1]:
            yield f"{step} saw {_rows(twice)} more than once on rank {ranks[copy]}", ppo.update
        for other in range(copy):
            if common := sorted(set(rows) & set(by_copy[other])):
                yield f"{step}: rank {ranks[copy]} took {_rows(common)}, which rank {ranks[other]} took too", deal
    shares = [len(rows) for rows in by_copy]
    if len(by_copy) != len(ranks):
        yield f"{step} ran on {len(by_copy)} of {len(ranks)} copies of the model", deal
    elif max(shares) - min(shares) > 1:
        most, least = shares.index(max(shares)), shares.index(min(shares))
        yield (
            f"{step} saw {shares[least]} rows on rank {ranks[least]} and {shares[most]} on rank {ranks[most]}",
            ppo.update,
        )


def _of_counts(whole: Sequence[Sequence[int]], plan: Plan) -> Iterator[Mistake]:
    """So many optimizer steps, of so many rows."""
    sizes = plan.sizes * plan.epochs
    wanted = f"{len(sizes)} optimizer steps ({plan.rows} rows, {plan.mini} in a mini-batch, ppo_epochs={plan.epochs})"
    if len(whole) != len(sizes):
        epochs, rest = divmod(len(whole), len(plan.sizes))
        said = f"update did {len(whole)} of {wanted}"
        if epochs and not rest and all(len(rows) == size for rows, size in zip(whole, plan.sizes, strict=False)):
            yield f"{said}: {epochs} epochs instead of {plan.epochs}", ppo.mini_batches
        never = sorted(set(range(plan.rows)).difference(*whole))
        yield f"{said}" + (f": {_rows(never)} never trained on" if never else ""), ppo.update
    for i, (rows, size) in enumerate(zip(whole, sizes, strict=False)):
        if len(rows) != size:
            yield f"optimizer step {i + 1} of {len(sizes)} saw {len(rows)} rows of {size}", ppo.update


def _of_epoch(steps: Sequence[Sequence[int]], plan: Plan, epoch: int) -> Iterator[Mistake]:
    """Every row once."""
    times = Counter(row for rows in steps for row in rows)
    never = [row for row in range(plan.rows) if row not in times]
    more = sorted(row for row, count in times.items() if count > 1)
    if not never and not more:
        return
    first = f"{epoch * len(plan.sizes) + 1} to {epoch * len(plan.sizes) + len(steps)}"
    said = f"optimizer steps {first}, epoch {epoch + 1}, saw {_rows(more)} more than once and {_rows(never)} never"
    again = [(a, b) for b in range(len(steps)) for a in range(b) if steps[a] == steps[b]]
    if again:
        a, b = (epoch * len(plan.sizes) + each + 1 for each in again[0])
        said = f"optimizer step {b} trained on the mini-batch of step {a} again; {_rows(never)} never trained on"
    yield said, ppo.mini_batches


def _of_order(whole: Sequence[Sequence[int]], plan: Plan) -> Iterator[Mistake]:
    """Without shuffling the rows come in the batch's order; with it, they do not, and in another one in each epoch."""
    of_epoch = len(plan.sizes)
    starts = [sum(plan.sizes[:i]) for i in range(of_epoch)]
    in_order = [list(range(start, start + size)) for start, size in zip(starts, plan.sizes, strict=True)]
    epochs = [whole[i : i + of_epoch] for i in range(0, len(whole), of_epoch)]
    if not plan.shuffle:
        for number, epoch in enumerate(epochs, 1):
            if list(epoch) != in_order:
                yield (
                    f"mini-batches of epoch {number} are not in the batch's order, and shuffle is off",
                    ppo.mini_batches,
                )
        return
    if plan.same_by_chance > SAME_BY_CHANCE:
        return
    for number, epoch in enumerate(epochs):
        if list(epoch) == in_order:
            yield f"mini-batches of epoch {number + 1} are not shuffled", ppo.mini_batches
        if epoch in epochs[:number]:
            yield (
                f"mini-batches of epoch {number + 1} are those of an earlier epoch: its order repeats",
                ppo.mini_batches,
            )


def _rows(rows: Sequence[int]) -> str:
    """
    >>> _rows([4, 5, 6, 7]), _rows([3]), _rows([1, 3, 6]), _rows([])
    ('rows 4 to 7', 'row 3', 'row 1 and 2 more', 'none')
    """
    if not rows:
        return "none"
    if len(rows) == 1:
        return f"row {rows[0]}"
    if list(rows) == list(range(rows[0], rows[-1] + 1)):
        return f"rows {rows[0]} to {rows[-1]}"
    return f"row {rows[0]} and {len(rows) - 1} more"
