"""How long ranks wait for an engine, and others meanwhile for these ranks. Seconds; no torch, for the driver asks, too.

Who waits only because another waits for an engine must wait longer: the error of the latter names the engine.
"""

from __future__ import annotations

from trainer.config.schema import Config

MARGIN_S = 120.0  # a part of it goes into ending the processes of an engine that died
IN_TIME = 0.9


def of_call(config: Config) -> float:
    """An engine's start, or any call; in a generation, from one answer to the next."""
    return float(config.actor_rollout_ref.rollout.engine_timeout)


def of_update(config: Config) -> float:
    """A call in an update: ranks without this engine wait meanwhile in a collective of the models."""
    return min(of_call(config), IN_TIME * config.actor_rollout_ref.nccl_timeout)


def beside(call_s: float) -> float:
    """For a rank that waits for those that wait for an engine."""
    return call_s + MARGIN_S
