"""The learning rate's course over a run, as a factor of `optim.lr`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from trainer.config.schema import OptimConfig


def warmup_steps(config: OptimConfig, total_steps: int) -> int:
    """Steps of linear warm-up: `lr_warmup_steps` if given, else the ratio of the run's steps."""
    return config.lr_warmup_steps if config.lr_warmup_steps >= 0 else int(config.lr_warmup_steps_ratio * total_steps)


def lr_factor(step: int, config: OptimConfig, total_steps: int) -> float:
    """Factor for update number `step`, counted from 0: linear warm-up from 0, then constant or cosine.

    >>> [round(lr_factor(s, OptimConfig(lr_warmup_steps=2), 10), 2) for s in range(4)]
    [0.0, 0.5, 1.0, 1.0]
    """
    warmup = warmup_steps(config, total_steps)
    if step < warmup:
        return step / max(1, warmup)
    if config.lr_scheduler_type == "constant":
        return 1.0
    done = (step - warmup) / max(1, total_steps - warmup)
    wave = 0.5 * (1.0 + math.cos(math.pi * 2.0 * config.num_cycles * min(1.0, done)))
    return config.min_lr_ratio + (1.0 - config.min_lr_ratio) * max(0.0, wave)


class Scheduled:
    """Of a model in training on any engine: the rate of its `optimizer` after each update, and a pause of learning."""

    def __init__(self, optimizer: Any, config: OptimConfig, total_steps: int) -> None:
        self.optimizer = optimizer
        self.config = config
        self.total_steps = total_steps
        self.learning = True
        self.set_updates(0)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Within it, updates compute and report everything but change neither weights nor schedule."""
        updates, self.learning = self.updates, False
        try:
            yield
        finally:
            self.learning = True
            self.set_updates(updates)

    def advance_schedule(self) -> float:
        """Ends the update; gives the learning rate that it used."""
        used = float(self.optimizer.param_groups[0]["lr"])
        self.set_updates(self.updates + 1)
        return used

    def set_updates(self, updates: int) -> None:
        """Continue the schedule after `updates` updates."""
        self.updates = updates
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.lr * lr_factor(updates, self.config, self.total_steps)
