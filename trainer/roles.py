"""What one rank does in each phase: the models, the engine and the rewards behind `PPOWorker`.

Heavy imports live here and below; the driver never imports this module.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from trainer import ppo, profiling
from trainer.capsules import Held
from trainer.config.schema import Config
from trainer.errors import DeadlineError
from trainer.interfaces import Engine, Sampling
from trainer.learner import checkpoint, snapshot
from trainer.learner.forward import ForwardOptions
from trainer.learner.fsdp import Model, Trained, forward_only
from trainer.learner.models import DTYPES, Source, compute_dtype, first_loss_scale, sharded
from trainer.memory import Memory, measured
from trainer.network import require_interfaces
from trainer.records import LogProbs, Metrics, MiniBatch, Prompts, Rollout, Scores, Totals, TrainBatch, UpdateReport
from trainer.rewards import build_scorer, score_all
from trainer.rewards.scorer import Scorer
from trainer.rollout.build import build_engine
from trainer.rollout.sums import sums_of
from trainer.spec import RunSpec
from trainer.tokenizer import load_tokenizer
from trainer.transport import pack, unpack

NAMES = {dtype: name for name, dtype in DTYPES.items()}
Loss = Callable[[TrainBatch, Totals], tuple[Tensor, Metrics]]

_STORE: list[dist.TCPStore] = []  # rank 0's rendezvous lives as long as its process


def open_store(world_size: int, timeout_s: float) -> int:
    """A rendezvous in this process; gives its port."""
    store = dist.TCPStore(
        "0.0.0.0", 0, world_size, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=timeout_s)
    )
    _STORE[:] = [store]
    return int(store.port)


def connect(rank: int, world_size: int, host: str, port: int, timeout_s: float) -> None:
    """Join the process group: gloo for host tensors, NCCL beside it where there is CUDA.

    Raises ConfigError for a network interface that is not here, DeadlineError if the others can not be reached.
    """
    cuda, where = torch.cuda.is_available(), f"rank {rank}'s node ({socket.gethostname()})"
    require_interfaces(os.environ, where, nccl=cuda)
    timeout = timedelta(seconds=timeout_s)
    try:
        store = _STORE[0] if _STORE else dist.TCPStore(host, port, world_size, is_master=False, timeout=timeout)
        backend = "cpu:gloo,cuda:nccl" if cuda else "cpu:gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout)
    except RuntimeError as error:  # of torch's store, gloo or NCCL: a broken line, a closed port, a time limit
        raise DeadlineError(
            f"rank {rank} on {where} did not reach the other ranks by way of {host}:{port} within {timeout_s:.0f} s: "
            f"{str(error).splitlines()[0]}",
            hint="nodes must reach each other at all ports: `devkit doctor` tries each pair; NCCL_SOCKET_IFNAME and "
            "GLOO_SOCKET_IFNAME choose the network",
        ) from error


def leave() -> None:
    """Leave the process group and close the rendezvous."""
    dist.destroy_process_group()
    _STORE.clear()


def call(roles: Roles, phase: str, packed_args: tuple[Any, ...]) -> tuple[Any, Memory]:
    """`roles.phase(*args)`, unpacked and packed again, and what memory it took; a range of its own in a profile."""
    with torch.profiler.record_function(phase), measured(roles.device) as gauge:
        answer = pack(getattr(roles, phase)(*unpack(packed_args)))
    return answer, gauge.reading


class Roles:
    """Actor, critic, reference and engine of this rank. Methods marked *collective* need every rank."""

    def __init__(self, spec: RunSpec, rank: int, world_size: int) -> None:
        config = spec.config
        self.config = config
        self.rank = rank
        device_type = device_of(config)
        self.device = torch.device("cuda:0" if device_type == "cuda" else "cpu")
        if device_type == "cuda":
            torch.cuda.set_device(self.device)  # the one that Ray gave this rank
        self.tokenizer = load_tokenizer(config.actor_rollout_ref.model)
        self.score_response = build_scorer(config.custom_reward_function, spec.reward_source)
        mesh = init_device_mesh(device_type, (world_size,))
        part = config.actor_rollout_ref
        temperature = part.rollout.temperature if part.rollout.do_sample else 1.0
        source = Source(part.model.path, part.model.trust_remote_code, config.trainer.seed)
        # Before the models: what it may have of a GPU is a share of the whole.
        self.engine: Engine = build_engine(config, source, self.device, self.tokenizer)
        actor = sharded(
            *("causal_lm", source, part.actor.fsdp_config, mesh),
            checkpointing=part.model.enable_gradient_checkpointing,
            recompute=part.model.recompute_granularity,
        )
        self.actor = Trained(
            actor,
            self.device,
            part.actor.optim,
            grad_clip=part.actor.grad_clip,
            total_steps=spec.total_steps,
            temperature=temperature,
            options=ForwardOptions(part.model.use_remove_padding, part.actor.use_torch_compile),
            memory=part.actor.fsdp_config,
            loss_scale=first_loss_scale(part.actor.fsdp_config, device_type),
        )
        self.reference = None
        if config.uses_reference:
            reference = sharded("causal_lm", source, part.ref.fsdp_config, mesh, checkpointing=False)
            options = ForwardOptions(part.model.use_remove_padding, part.ref.use_torch_compile)
            self.reference = Model(
                reference.requires_grad_(False), self.device, temperature, options, memory=part.ref.fsdp_config
            )
        self.critic = _critic(config, mesh, self.device, spec.total_steps) if config.uses_critic else None
        self._profile: profiling.Recording | None = None
        self.sync_weights()

    # -- rollout and rewards

    def generate(self, prompts: Prompts, sampling: Sampling) -> Rollout:
        """A row with an empty mask has no response, because its engine died; see `revive_engines`."""
        rollout = self.engine.generate(prompts, sampling)
        if self.config.actor_rollout_ref.rollout.free_cache_engine:
            self.engine.sleep()
        return rollout

    def revive_engines(self) -> int:
        """Starts the engines that died, with the actor's weights; gives how many. Collective."""
        return self.engine.revive(self.actor.full_tensors())

    def score(self, rollout: Rollout) -> Scores:
        return score_responses(rollout, self.tokenizer, self.score_response)

    # -- forward passes: `passes` are the row numbers of each, equally many on every rank

    def log_probs(self, rollout: Rollout, passes: tuple[Tensor, ...]) -> LogProbs:
        """Of the actor as it is now. Collective."""
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
        with self.actor.training():
            return ppo.update(self.actor, shares, self._actor_loss())

    def update_critic(self, shares: tuple[MiniBatch, ...]) -> UpdateReport:
        """Collective."""
        assert self.critic is not None
        with self.critic.training():
            return ppo.update(self.critic, shares, self._critic_loss())

    def _actor_loss(self) -> Loss:
        return partial(ppo.actor_loss, self.actor, config=self.config.actor_rollout_ref.actor)

    def _critic_loss(self) -> Loss:
        assert self.critic is not None
        return partial(ppo.critic_loss, self.critic, config=self.config.critic)

    def sync_weights(self) -> None:
        """The actor's weights into this rank's engine, one tensor at a time. Collective."""
        self.engine.load_weights(self.actor.full_tensors(), self.engine.version + 1)

    # -- state

    def save(self, folder: str) -> None:
        """Shards of every rank, and on rank 0 what `transformers` needs to load the model. Collective."""
        contents = self.config.actor_rollout_ref.actor.checkpoint.save_contents
        keep_optimizer = "optimizer" in contents
        checkpoint.save(self.actor, Path(folder) / "actor", optimizer=keep_optimizer)
        if self.critic is not None:
            checkpoint.save(self.critic, Path(folder) / "critic", optimizer=keep_optimizer)
        if self.rank == 0:
            checkpoint.save_identity(self.actor.module, self.tokenizer, Path(folder) / "actor" / "huggingface")
        if "hf_model" in contents:
            checkpoint.export(self.actor, Path(folder) / "actor" / "huggingface", write=self.rank == 0)

    def load(self, folder: str) -> None:
        """What `save` wrote, on any number of ranks. Collective."""
        checkpoint.load(self.actor, Path(folder) / "actor")
        if self.critic is not None:
            checkpoint.load(self.critic, Path(folder) / "critic")
        self.sync_weights()

    # -- capsules

    def begin_capsule(self, path: str) -> Held:
        """Before a step: rank 0 begins the file `path`, with the models as they are. Collective."""
        contents, models = self.config.trainer.capsule_weights, self._models()
        states = snapshot.begin(Path(path), models, self.tokenizer, contents=contents, write=self.rank == 0)
        dtype = compute_dtype(self.config.actor_rollout_ref.actor.fsdp_config, self.device.type)
        return Held(self.device.type, NAMES[dtype], states)

    def moved_since_capsule(self, path: str) -> dict[str, dict[str, float]]:
        """After it: on rank 0, by role, how far the step has moved each tensor. Collective."""
        return snapshot.moved(Path(path), self._models(), read=self.rank == 0)

    def _models(self) -> dict[str, Model]:
        roles = {"actor": self.actor, "critic": self.critic, "reference": self.reference}
        return {role: model for role, model in roles.items() if model is not None}

    # -- profiles

    def start_profile(self) -> None:
        """On the ranks of `global_profiler.ranks`."""
        self._profile = profiling.start(self.config.global_profiler, self.rank, self.device)

    def stop_profile(self, stem: str) -> str | None:
        """The file that this rank has written, if it was chosen."""
        recording, self._profile = self._profile, None
        return recording.stop(Path(f"{stem}.rank_{self.rank}")) if recording else None

    # -- what the smoke test looks at

    def checksums(self, role: str) -> dict[str, str]:
        """A digest of each whole tensor of "actor", "critic", "reference" or "engine". Collective."""
        if role == "engine":
            return self.engine.checksums()
        return {name: digest(tensor) for name, tensor in getattr(self, role).full_tensors()}

    def shard_checksums(self, role: str) -> dict[str, str]:
        """A digest of this rank's part of each tensor of "actor" or "critic"."""
        return {name: digest(tensor) for name, tensor in getattr(self, role).local_tensors()}

    def probe_gradient(self, role: str, share: MiniBatch) -> tuple[dict[str, float], float]:
        """Losses and gradient norm of one mini-batch; no weight changes. Collective."""
        model = self.actor if role == "actor" else self.critic
        assert model is not None
        loss = self._actor_loss() if role == "actor" else self._critic_loss()
        with model.at_hand(), model.frozen():
            report = ppo.update(model, (share,), loss)
        losses = dict(report.steps[0])
        return losses, losses.pop("grad_norm")


def score_responses(rollout: Rollout, tokenizer: Any, scorer: Scorer) -> Scores:
    """Reward of each response, decoded without special tokens."""
    responses = [
        tokenizer.decode(ids[:length], skip_special_tokens=True)
        for ids, length in zip(rollout.response_BT.tolist(), rollout.mask_BT.sum(-1).tolist(), strict=True)
    ]
    scores = score_all(responses, rollout.prompts.rows, scorer)
    extras = {name: torch.tensor(values, dtype=torch.float32) for name, values in scores.extras.items()}
    return Scores(torch.tensor(scores.scores, dtype=torch.float32), extras)


def device_of(config: Config) -> str:
    """`trainer.device`, with `auto` told from what the worker was given."""
    wanted = config.trainer.device
    return ("cuda" if torch.cuda.is_available() else "cpu") if wanted == "auto" else wanted


def digest(tensor: Tensor) -> str:
    """Equal for equal bytes, and what an engine says of the same tensor, however it has cut it."""
    return str(sums_of(tensor))


def _critic(config: Config, mesh: Any, device: torch.device, total_steps: int) -> Trained:
    model = config.critic.model
    source = Source(model.path, model.trust_remote_code, config.trainer.seed)
    module = sharded(
        *("value", source, model.fsdp_config, mesh),
        checkpointing=model.enable_gradient_checkpointing,
        recompute=model.recompute_granularity,
    )
    return Trained(
        module,
        device,
        config.critic.optim,
        grad_clip=config.critic.grad_clip,
        total_steps=total_steps,
        options=ForwardOptions(model.use_remove_padding),
        memory=model.fsdp_config,
        loss_scale=first_loss_scale(model.fsdp_config, device.type),
    )
