"""The models of a rank, on the engine that `actor.strategy` and `critic.strategy` name."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from trainer.config.schema import ActorConfig, Config, FsdpConfig
from trainer.layout import actor_layout, critic_layout
from trainer.learner import checkpoint
from trainer.learner.fsdp import Model, Trained
from trainer.learner.megatron.build import Training, megatron_model
from trainer.learner.models import Source, compute_dtype, sharded


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

    def actor(self, source: Source) -> Any:
        part = self.config.actor_rollout_ref
        training = Training(part.actor.optim, part.actor.grad_clip, self.total_steps)
        if part.actor.strategy == "megatron":
            return self._on_megatron(source, training)
        checkpointing = part.model.enable_gradient_checkpointing
        return self._on_fsdp("causal_lm", source, part.actor.fsdp_config, checkpointing, training, self.temperature)

    def reference(self, source: Source) -> Any:
        """The frozen first actor, on the actor's engine."""
        part = self.config.actor_rollout_ref
        if part.actor.strategy == "megatron":
            return self._on_megatron(source, None)
        module = sharded("causal_lm", source, part.ref.fsdp_config, self.mesh, checkpointing=False)
        return Model(module.requires_grad_(False), self.device, self.temperature)

    def critic(self) -> Any:
        critic = self.config.critic
        source = Source(critic.model.path, critic.model.trust_remote_code, self.config.trainer.seed)
        training = Training(critic.optim, critic.grad_clip, self.total_steps)
        if critic.strategy == "megatron":
            layout = critic_layout(self.config, dist.get_world_size())
            return megatron_model("value", source, critic.megatron, layout, self.device, training)
        checkpointing = critic.model.enable_gradient_checkpointing
        return self._on_fsdp("value", source, critic.model.fsdp_config, checkpointing, training, 1.0)

    def _on_megatron(self, source: Source, training: Training | None) -> Any:
        megatron, layout = (
            self.config.actor_rollout_ref.actor.megatron,
            actor_layout(self.config, dist.get_world_size()),
        )
        return megatron_model("causal_lm", source, megatron, layout, self.device, training, self.temperature)

    def _on_fsdp(
        self,
        kind: str,
        source: Source,
        config: FsdpConfig,
        checkpointing: bool,
        training: Training,
        temperature: float,
    ) -> Trained:
        return Trained(
            sharded(kind, source, config, self.mesh, checkpointing=checkpointing),
            self.device,
            training.optim,
            grad_clip=training.grad_clip,
            total_steps=training.total_steps,
            temperature=temperature,
        )


def actor_dtype(config: ActorConfig, device_type: str) -> torch.dtype:
    """What the actor computes in, and so what a copy of it does."""
    return compute_dtype(config.megatron if config.strategy == "megatron" else config.fsdp_config, device_type)


def state_of(trained: Any) -> Any:
    """The module that saves and loads a model of this engine."""
    if isinstance(trained, Trained):
        return checkpoint
    from trainer.learner.megatron import checkpoint as megatron_checkpoint

    return megatron_checkpoint
