"""Asks a rank's device what `config/chosen.py` decides by, and settles what the command leaves open."""

from __future__ import annotations

import gc

import torch
import torch.distributed as dist

from trainer.config.chosen import CPU, Choice, Device, applied, choose
from trainer.config.schema import Config
from trainer.config.shape import Shape, shape_of
from trainer.errors import ModelError
from trainer.learner.compiling import compiler_works
from trainer.learner.models import Source, read_config
from trainer.teams import Seat


def settled(config: Config, device: torch.device, seat: Seat) -> tuple[Config, tuple[Choice, ...]]:
    """`config` with what it leaves open chosen, and the choices for roles of this seat; the same in all of its team.

    Before models are loaded, while an engine rests. Collective on CUDA.
    """
    if seat.only_generates or not choose(config, {}, CPU):  # all that trains is on Megatron
        return config, ()
    if device.type != "cuda":
        there = CPU
        choices = choose(config, {}, there)
    else:
        there = _least_of_all_ranks(device)
        choices = choose(config, {role: _loaded_shape(config, role) for role in ("actor", "critic")}, there)
    return applied(config, choices, there), tuple(choice for choice in choices if choice.role in seat.roles)


def _least_of_all_ranks(device: torch.device) -> Device:
    def least(*numbers: int) -> list[int]:
        found = torch.tensor(numbers, dtype=torch.int64)
        dist.all_reduce(found, op=dist.ReduceOp.MIN)
        return found.tolist()

    [compiles] = least(compiler_works(device.type))  # after it no rank waits for its engine to rest
    gc.collect()  # models of an earlier run of this process
    torch.cuda.empty_cache()
    free, total = least(*torch.cuda.mem_get_info(device))
    return Device(cuda=True, compiles=bool(compiles), free=free, total=total)


def _loaded_shape(config: Config, role: str) -> Shape | None:
    """By transformers, which knows what a configuration leaves out. What cannot be read, loading will say."""
    model = config.actor_rollout_ref.model if role == "actor" else config.critic.model
    if role == "critic" and not config.uses_critic:
        return None
    try:
        found = read_config(Source(model.path, model.trust_remote_code, config.trainer.seed))
    except ModelError:
        return None
    return shape_of(found.to_dict())
