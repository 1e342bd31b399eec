"""Where a rank's engine gets the actor's weights from: the actor on the same rank, or over the bridge."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.config.schema import Config
from trainer.interfaces import Engine
from trainer.learner.models import actor_dtype
from trainer.learner.protocol import TrainedLearner
from trainer.rollout import deadlines
from trainer.rollout.bridge import Bridge, Kind
from trainer.rollout.build import MEGABYTE
from trainer.teams import Seat


@contextmanager
def actor_weights(
    actor: TrainedLearner | None,
    engine: Engine | None,
    bridge: Bridge | None,
    kind: Kind,
    seat: Seat,
    gate: Any = None,
) -> Iterator[Iterator[tuple[str, Tensor]]]:
    """The actor's tensors where this rank has an engine, which walks to the end of them.

    Without an engine they are gathered and sent, and nothing is left to walk through; before that, all of the actor's
    ranks wait at their `gate` until the engines are up. Collective, over all teams.
    Raises WeightMismatch if they came otherwise than they were sent.
    """
    if actor is not None and engine is not None:
        yield actor.full_tensors()
    elif actor is not None:
        if bridge is not None:
            bridge.await_receivers()
        if gate is not None:
            dist.barrier(group=gate)
        tensors = actor.full_tensors()
        if bridge is not None:
            bridge.send(tensors, kind)
        for _ in tensors:  # the gathering of each needs every rank
            pass
        yield iter(())
    elif bridge is not None:
        yield bridge.receive(kind)
        bridge.require_whole(seat.number)
    else:
        yield iter(())


def gate_of(config: Config) -> Any:
    """Where the actor's ranks wait for engines on other ranks: a group with the time that these have. In the models'
    own collectives they would give up sooner. Collective, over the team."""
    patience = timedelta(seconds=deadlines.beside(deadlines.of_call(config)))
    return dist.new_group(backend="gloo", timeout=patience)


def kind_of(config: Config, device: torch.device) -> Kind:
    """What travels over the bridge: the actor's computation type, in the buckets that an engine takes, too."""
    part = config.actor_rollout_ref
    bucket = part.rollout.update_weights_bucket_megabytes * MEGABYTE
    return Kind(device, actor_dtype(part.actor, device.type), bucket)
