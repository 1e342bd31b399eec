"""What a check says, and what several of them need."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

import trainer
from trainer.ppo import StepResult
from trainer.records import TrainBatch

Digests = Sequence[Mapping[str, str]]  # by rank: tensor name -> digest

# fp32 and float64 of the same few operations; a wrong formula is off by a share of the number itself.
AS_COMPUTED = 1e-4
# The very same forward pass twice, old and new policy being the same: 0 up to the order of sums.
SAME_POLICY_TOLERANCE = 1e-5


@dataclass(frozen=True)
class Outcome:
    """What a check found; `ok` None: there was nothing to check."""

    ok: bool | None
    detail: str


def look_at(function: Callable[..., Any]) -> str:
    """Where to look: `look at trainer/ppo.py:152`."""
    return f"look at {place_of(function)}"


def place_of(function: Callable[..., Any]) -> str:
    """As an editor opens it."""
    code = function.__code__
    return f"{os.path.relpath(code.co_filename, Path(trainer.__file__).parents[1])}:{code.co_firstlineno}"


def different(a: Digests, b: Digests) -> list[str]:
    """Names of the tensors whose digests differ on some rank."""
    return sorted({name for x, y in zip(a, b, strict=True) for name in x if x[name] != y.get(name)})


def named(names: Sequence[str]) -> str:
    """The first of some names, and how many more there are."""
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def times(count: int) -> str:
    """
    >>> times(1), times(3)
    ('once', '3 times')
    """
    return "once" if count == 1 else f"{count} times"


def mask_of(batch: TrainBatch) -> Tensor:
    return batch.experience.rollout.mask_BT


def mean_over_tokens(x_BT: Tensor, batch: TrainBatch) -> Tensor:
    mask_BT = mask_of(batch)
    return (x_BT * mask_BT).sum(-1) / mask_BT.sum(-1)


def centred(x_B: Tensor) -> Tensor:
    return x_B - x_B.mean()


def step_reward(result: StepResult) -> float:
    return float(result.metrics["critic/score/mean"])
