"""What one rank does in each phase: the models, the engine and the rewards behind `PPOWorker`.

Heavy imports live here and below; the driver never imports this module.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer import ppo
from trainer.agent.player import Player
from trainer.digests import Found, of_files
from trainer.fitting import settled
from trainer.inspection import Inspected
from trainer.interfaces import Engine, Loss, Sampling
from trainer.learner import checkpoint, lora_files
from trainer.learner.build import Builder, state_of
from trainer.learner.fsdp import forward_only
from trainer.learner.models import Source, device_of
from trainer.learner.protocol import TrainedLearner
from trainer.memory import measured
from trainer.records import LogProbs, MiniBatch, Prompts, Rollout, Scores, UpdateReport
from trainer.rewards import build_scorer, score_all
from trainer.rewards.scorer import Scorer
from trainer.rollout.bridge import Bridge
from trainer.rollout.build import build_engine, eos_ids
from trainer.rollout.source import actor_weights, gate_of, kind_of
from trainer.spec import RunSpec
from trainer.teams import Seat
from trainer.tokenizer import load_tokenizer
from trainer.transport import Packed, pack, unpack


def call(roles: Roles, phase: str, packed_args: Packed) -> Packed:
    """`roles.phase(*args)` and a `memory.Memory` of what it took, packed; a range of its own in a profile."""
    with torch.profiler.record_function(phase), measured(roles.device) as gauge, roles.rescued():
        answer = getattr(roles, phase)(*unpack(packed_args))
    return pack((answer, gauge.reading))


class Roles(Inspected):
    """Of actor, critic, reference and engine, what this rank has. *Collective* methods need every rank of its team."""

    def __init__(self, spec: RunSpec, seat: Seat, bridge: Bridge | None = None) -> None:
        """`bridge` leads from the actor to engines on other ranks."""
        config = spec.config
        self.seat = seat
        device_type = device_of(config)
        self.device = torch.device("cuda:0" if device_type == "cuda" else "cpu")
        if device_type == "cuda":
            torch.cuda.set_device(self.device)  # the one that Ray gave this rank
        self.tokenizer = load_tokenizer(config.actor_rollout_ref.model)
        self.score_response = build_scorer(config.custom_reward_function, spec.reward_source, config.reward_model)
        part = config.actor_rollout_ref
        source = Source(part.model.path, part.model.trust_remote_code, config.trainer.seed)
        has = seat.roles
        self.engine: Engine | None = None
        if "rollout" in has:  # before the models: what it may have of a GPU is a share of the whole
            self.engine = build_engine(config, source, self.device, self.tokenizer)
        self.player: Player | None = None
        if self.engine is not None and config.agent.env is not None:
            self.player = Player(spec, self.engine, self.tokenizer, eos_ids(self.tokenizer, source))
        self.config, self.chosen = settled(config, self.device, seat)
        build = Builder(self.config, self.device, spec.total_steps)
        self.actor = build.actor(source) if "actor" in has else None
        self.reference = build.reference(source, self.actor) if "ref" in has and config.uses_reference else None
        self.critic = build.critic() if "critic" in has and config.uses_critic else None
        kind = kind_of(config, self.device)
        gate = gate_of(config) if self.actor is not None and self.engine is None else None
        self._weights = partial(actor_weights, self.actor, self.engine, bridge, kind, seat, gate)
        if device_type == "cuda":  # of the models' loading alone were more of use: waking them costs a step up to 50 ms
            torch.set_num_threads(1)
        self.sync_weights()

    # -- rollout and rewards

    def generate(self, prompts: Prompts, sampling: Sampling) -> Rollout:
        """A row with an empty mask has no response, because its engine died; see `revive_engines`."""
        assert self.engine is not None
        rollout = (self.player.play if self.player else self.engine.generate)(prompts, sampling)
        if self.config.actor_rollout_ref.rollout.free_cache_engine and not self.seat.only_generates:
            self.engine.sleep()
        return rollout

    def revive_engines(self) -> int:
        """Starts the engines that died, with the actor's weights; gives how many. Collective, over all teams."""
        with self._weights() as tensors:
            return self.engine.revive(tensors) if self.engine is not None else 0

    def score(self, rollout: Rollout) -> Scores:
        return score_responses(rollout, self.tokenizer, self.score_response)

    # -- forward passes: `passes` are the row numbers of each, equally many on every rank

    def log_probs(self, rollout: Rollout, passes: tuple[Tensor, ...]) -> LogProbs:
        """Of the actor as it is now. Collective."""
        assert self.actor is not None
        with self.actor.at_hand():
            return forward_only(partial(self.actor.log_probs, entropy=True), rollout, passes)

    def ref_log_probs(self, rollout: Rollout, passes: tuple[Tensor, ...]) -> Tensor:
        """Collective."""
        assert self.reference is not None
        with self.reference.at_hand():
            return forward_only(partial(self.reference.log_probs, entropy=False), rollout, passes).logp_BT

    def values(self, rollout: Rollout, passes: tuple[Tensor, ...]) -> Tensor:
        """Collective."""
        assert self.critic is not None
        with self.critic.at_hand():
            return forward_only(self.critic.values, rollout, passes)

    # -- updates

    def update_actor(self, shares: tuple[MiniBatch, ...]) -> UpdateReport:
        """Collective."""
        assert self.actor is not None
        with self.actor.training():
            return ppo.update(self.actor, shares, self._actor_loss())

    def update_critic(self, shares: tuple[MiniBatch, ...]) -> UpdateReport:
        """Collective."""
        assert self.critic is not None
        with self.critic.training():
            return ppo.update(self.critic, shares, self._critic_loss())

    def _actor_loss(self) -> Loss:
        assert self.actor is not None
        return partial(ppo.actor_loss, self.actor, config=self.config.actor_rollout_ref.actor)

    def _critic_loss(self) -> Loss:
        assert self.critic is not None
        return partial(ppo.critic_loss, self.critic, config=self.config.critic)

    def sync_weights(self) -> None:
        """The actor's weights into the engines, never the whole model at once. Collective, over all teams."""
        with self._weights() as tensors:
            if self.engine is not None:
                self.engine.load_weights(tensors, self.engine.version + 1)

    # -- state

    def save(self, folder: str) -> None:
        """Shards of every rank, and on rank 0 what `transformers` needs to load the model. Collective."""
        contents = self.config.actor_rollout_ref.actor.checkpoint.save_contents
        keep_optimizer = "optimizer" in contents
        for name, model in self._trained().items():
            state_of(model).save(model, Path(folder) / name, optimizer=keep_optimizer)
        if self.actor is None:
            return
        identity, first = Path(folder) / "actor" / "huggingface", self.seat.rank == 0
        if first:
            checkpoint.save_identity(self.actor.module, self.tokenizer, identity)
        checkpoint.save_adapter(self.actor, Path(folder) / "actor" / lora_files.FOLDER, write=first)
        if "hf_model" in contents:
            checkpoint.export(self.actor, identity, write=first)

    def load(self, folder: str) -> None:
        """What `save` wrote, on any number of ranks. Collective, over all teams."""
        for name, model in self._trained().items():
            state_of(model).load(model, Path(folder) / name)
        self.sync_weights()

    def digests(self, folder: str, names: list[str]) -> Found:
        """Of files of a checkpoint, read by this rank."""
        return of_files(Path(folder), names)

    def _trained(self) -> dict[str, TrainedLearner]:
        return {name: m for name, m in (("actor", self.actor), ("critic", self.critic)) if m is not None}


def score_responses(rollout: Rollout, tokenizer: Any, scorer: Scorer) -> Scores:
    """Reward of each response, decoded without special tokens; observations are a part of it."""
    responses = [
        tokenizer.decode(ids[:length], skip_special_tokens=True)
        for ids, length in zip(rollout.response_BT.tolist(), rollout.context_BT.sum(-1).tolist(), strict=True)
    ]
    scores = score_all(responses, rollout.prompts.rows, scorer, rollout.episodes)
    extras = {name: torch.tensor(values, dtype=torch.float32) for name, values in scores.extras.items()}
    return Scores(torch.tensor(scores.scores, dtype=torch.float32), extras)
