"""Reports of updates: what a loss was computed of is noted where it is computed, and the ranks' reports become one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor

from trainer.interfaces import Loss, Told
from trainer.records import Metrics, Sample, Totals, TrainBatch, UpdateReport


def noted(loss: Loss, seen: list[Sample]) -> Loss:
    """`loss`, and what it is computed of is added to `seen`: what was trained on is told from here, not from a plan."""

    def noting(rows: TrainBatch, totals: Totals) -> tuple[Tensor, Told]:
        seen.extend(rows.experience.rollout.prompts.samples)
        return loss(rows, totals)

    return noting


def read(told: Sequence[Told]) -> Metrics:
    """The figures of a mini-batch's passes, added up: here the host waits for them, when all else is queued.

    Raises NotFinite for a pass whose loss is NaN or infinite.
    """
    for each in told:
        each.check()
    sums: Metrics = {}
    numbers = torch.stack([torch.stack(list(each.figures.values())) for each in told]).tolist() if told else []
    for each, row in zip(told, numbers, strict=True):
        sums = {name: sums.get(name, 0.0) + number for name, number in zip(each.figures, row, strict=True)}
    return sums


def merge_reports(reports: Sequence[UpdateReport]) -> UpdateReport:
    """One report from the ranks', by copy of the model: losses add up; norms, rates and skips are the same on all."""
    first = reports[0]
    steps = []
    for parts in zip(*(report.steps for report in reports), strict=True):
        total = {name: sum(part[name] for part in parts) for name in parts[0]}
        steps.append(total | {"grad_norm": parts[0]["grad_norm"]})
    untrained = set(first.untrained).intersection(*(report.untrained for report in reports))
    trained = tuple(
        tuple(chain.from_iterable(of_copies)) for of_copies in zip(*(report.trained for report in reports), strict=True)
    )
    return replace(first, steps=tuple(steps), untrained=tuple(sorted(untrained)), trained=trained)
