"""What the driver tells every worker before the run."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.config.schema import Config


@dataclass(frozen=True)
class RunSpec:
    """What a worker needs to know of the run, beside its rank."""

    config: Config
    reward_source: str | None  # text of custom_reward_function.path, read on the driver's machine
    total_steps: int
