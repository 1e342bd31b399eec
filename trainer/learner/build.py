"""The models of a rank, on the training engine that `actor.strategy` and `critic.strategy` name."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from trainer.config.fits import FULL
from trainer.config.schema import (
    ActorConfig,
    Config,
    CriticConfig,
    CriticModelConfig,
    ModelConfig,
    TrainedFsdpConfig,
)
from trainer.grid import actor_grid, critic_grid
from trainer.learner import checkpoint
from trainer.learner.forward import ForwardOptions
from trainer.learner.fsdp import Model, Trained
from trainer.learner.lora import adapted, adapters_of
from trainer.learner.megatron.build import Training, frozen_model, trained_model
from trainer.learner.models import Source, first_loss_scale, sharded
from trainer.learner.protocol import Learner, TrainedLearner
from trainer.learner.unadapted import Unadapted


@dataclass(frozen=True)
class Builder:
    """Builds models on this rank. Its methods are collective and raise ModelError on every rank."""

    config: Config
    device: torch.device
    total_steps: int

    @cached_property
    def mesh(self) -> DeviceMesh:
        return init_device_mesh(self.device.type, (dist.get_world_size(),))

    @property
    def temperature(self) -> float:
        rollout = self.config.actor_rollout_ref.rollout
        return rollout.temperature if rollout.do_sample else 1.0

    def actor(self, source: Source) -> TrainedLearner:
        part = self.config.actor_rollout_ref
        if part.actor.strategy == "megatron":
            training = Training(part.actor.optim, part.actor.grad_clip, self.total_steps)
            grid = actor_grid(self.config, dist.get_world_size())
            return trained_model(
                *("causal_lm", source, part.actor.megatron, grid, self.device, training), temperature=self.temperature
            )
        options = ForwardOptions(part.model.use_remove_padding, part.actor.use_torch_compile)
        memory = part.actor.fsdp_config
        return self._trained("causal_lm", source, part.actor, part.model, memory, options, self.temperature)

    def reference(self, source: Source, actor: TrainedLearner | None) -> Learner:
        """The frozen first actor, on the actor's engine. An `actor` of the same ranks is it, without its adapters."""
        part = self.config.actor_rollout_ref
        if isinstance(actor, Trained) and adapted(actor.module):
            return Unadapted(actor)
        if part.actor.strategy == "megatron":
            grid = actor_grid(self.config, dist.get_world_size())
            return frozen_model("causal_lm", source, part.actor.megatron, grid, self.device, self.temperature)
        module = sharded("causal_lm", source, part.ref.fsdp_config, self.mesh, checkpointing=False)
        options = ForwardOptions(part.model.use_remove_padding, part.ref.use_torch_compile)
        frozen = module.requires_grad_(False)
        return Model(frozen, self.device, self.temperature, options, memory=part.ref.fsdp_config)

    def critic(self) -> TrainedLearner:
        critic = self.config.critic
        source = Source(critic.model.path, critic.model.trust_remote_code, self.config.trainer.seed)
        if critic.strategy == "megatron":
            training = Training(critic.optim, critic.grad_clip, self.total_steps)
            grid = critic_grid(self.config, dist.get_world_size())
            return trained_model("value", source, critic.megatron, grid, self.device, training)
        options = ForwardOptions(critic.model.use_remove_padding)
        return self._trained("value", source, critic, critic.model, critic.model.fsdp_config, options)

    def _trained(
        self,
        kind: str,
        source: Source,
        role: ActorConfig | CriticConfig,
        model: ModelConfig | CriticModelConfig,
        memory: TrainedFsdpConfig,
        options: ForwardOptions,
        temperature: float = 1.0,
    ) -> Trained:
        """On FSDP2."""
        return Trained(
            sharded(
                *(kind, source, memory, self.mesh),
                checkpointing=model.enable_gradient_checkpointing is not False,
                recompute=model.recompute_granularity or FULL,
                budget=model.activation_memory_budget,
                adapters=adapters_of(model, source.seed),
            ),
            self.device,
            role.optim,
            grad_clip=role.grad_clip,
            total_steps=self.total_steps,
            temperature=temperature,
            options=options,
            memory=memory,
            loss_scale=first_loss_scale(memory, self.device.type),
        )


class States(Protocol):
    """A model's state on disk: `learner/checkpoint.py`, `learner/megatron/checkpoint.py`."""

    def save(self, trained: Any, folder: Path, *, optimizer: bool = True) -> None: ...

    def load(self, trained: Any, folder: Path) -> None: ...


def state_of(trained: TrainedLearner) -> States:
    """What saves and loads a model of this engine."""
    if isinstance(trained, Trained):
        return checkpoint
    from trainer.learner.megatron import checkpoint as megatron_checkpoint  # needs megatron-core

    return megatron_checkpoint
