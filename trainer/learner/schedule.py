"""The learning rate's course over a run, as a factor of `optim.lr`."""

from __future__ import annotations

import math

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
