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
    environment: str | None = None  # text of the file that agent.env names, read there, too


@dataclass(frozen=True)
class BridgeEnd:
    """Where those meet between whom weights travel (`teams.bridge_ranks`), and which of them this rank is."""

    host: str
    port: int
    rank: int
    size: int
    timeout_s: float
