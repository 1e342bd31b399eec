"""What one rank does in each phase: the models, the engine and the rewards behind `PPOWorker`.

Heavy imports live here and below; the driver never imports this module.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainer import ppo
from trainer.config.batches import micro_batch_sizes
from trainer.config.schema import Config
from trainer.interfaces import Engine, Sampling
from trainer.learner import checkpoint
from trainer.learner.build import Builder, actor_dtype, state_of
from trainer.learner.fsdp import forward_only
from trainer.learner.models import Source, empty_causal_lm, local_path, read_config
from trainer.records import LogProbs, Metrics, MiniBatch, Prompts, Rollout, Scores, Totals, TrainBatch, UpdateReport
from trainer.rewards import build_scorer, score_all
from trainer.rollout.hf import HfEngine
from trainer.spec import RunSpec
from trainer.tokenizer import load_tokenizer
from trainer.transport import pack, unpack

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
    """Join the process group: gloo for host tensors, NCCL beside it where there is CUDA."""
    timeout = timedelta(seconds=timeout_s)
    store = _STORE[0] if _STORE else dist.TCPStore(host, port, world_size, is_master=False, timeout=timeout)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "cpu:gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout)


def leave() -> None:
    """Leave the process group and close the rendezvous."""
    dist.destroy_process_group()
    _STORE.clear()


def call(roles: Roles, phase: str, packed_args: tuple[Any, ...]) -> Any:
    """`roles.phase(*args)`, unpacked and packed again."""
    return pack(getattr(roles, phase)(*unpack(packed_args)))


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
        self.micro = micro_batch_sizes(config)
        self.tokenizer = load_tokenizer(config.actor_rollout_ref.model)
        self.score_response = build_scorer(config.custom_reward_function, spec.reward_source)
        part = config.actor_rollout_ref
        source = Source(part.model.path, part.model.trust_remote_code, config.trainer.seed)
        models = Builder(config, self.device, spec.total_steps)
        self.actor = models.actor(source)
        self.reference = models.reference(source) if config.uses_reference else None
        self.critic = models.critic() if config.uses_critic else None
        self.engine: Engine = _engine(config, source, self.device, self.tokenizer)
        self.sync_weights()

    # -- rollout and rewards

    def generate(self, prompts: Prompts, sampling: Sampling) -> Rollout:
        return self.engine.generate(prompts, sampling)

    def score(self, rollout: Rollout) -> Scores:
        """Reward of each response, decoded without special tokens."""
        responses = [
            self.tokenizer.decode(ids[:length], skip_special_tokens=True)
            for ids, length in zip(rollout.response_BT.tolist(), rollout.mask_BT.sum(-1).tolist(), strict=True)
        ]
        scores = score_all(responses, rollout.prompts.rows, self.score_response)
        extras = {name: torch.tensor(values, dtype=torch.float32) for name, values in scores.extras.items()}
        return Scores(torch.tensor(scores.scores, dtype=torch.float32), extras)

    # -- forward passes

    def log_probs(self, rollout: Rollout) -> LogProbs:
        """Of the actor as it is now. Collective."""
        compute: Callable[[Rollout], LogProbs] = partial(self.actor.log_probs, entropy=True)
        return forward_only(compute, rollout, self.micro.old_log_prob)

    def ref_log_probs(self, rollout: Rollout) -> Tensor:
        """Collective."""
        assert self.reference is not None
        compute: Callable[[Rollout], LogProbs] = partial(self.reference.log_probs, entropy=False)
        return forward_only(compute, rollout, self.micro.ref_log_prob).logp_BT

    def values(self, rollout: Rollout) -> Tensor:
        """Collective."""
        assert self.critic is not None
        compute: Callable[[Rollout], Tensor] = self.critic.values
        return forward_only(compute, rollout, self.micro.critic_forward)

    # -- updates

    def update_actor(self, shares: tuple[MiniBatch, ...]) -> UpdateReport:
        """Collective."""
        return ppo.update(self.actor, shares, self.micro.actor_update, self._actor_loss())

    def update_critic(self, shares: tuple[MiniBatch, ...]) -> UpdateReport:
        """Collective."""
        assert self.critic is not None
        return ppo.update(self.critic, shares, self.micro.critic_update, self._critic_loss())

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
        state_of(self.actor).save(self.actor, Path(folder) / "actor", optimizer=keep_optimizer)
        if self.critic is not None:
            state_of(self.critic).save(self.critic, Path(folder) / "critic", optimizer=keep_optimizer)
        if self.rank == 0:
            checkpoint.save_identity(self.actor.module, self.tokenizer, Path(folder) / "actor" / "huggingface")
        if "hf_model" in contents:
            checkpoint.export(self.actor, Path(folder) / "actor" / "huggingface", write=self.rank == 0)

    def load(self, folder: str) -> None:
        """What `save` wrote, on any number of ranks. Collective."""
        state_of(self.actor).load(self.actor, Path(folder) / "actor")
        if self.critic is not None:
            state_of(self.critic).load(self.critic, Path(folder) / "critic")
        self.sync_weights()

    # -- what the smoke test looks at

    def checksums(self, role: str) -> dict[str, str]:
        """A digest of each whole tensor of "actor", "critic", "reference" or "engine". Collective."""
        tensors = self.engine.named_weights() if role == "engine" else getattr(self, role).full_tensors()
        return {name: digest(tensor) for name, tensor in tensors}

    def shard_checksums(self, role: str) -> dict[str, str]:
        """A digest of this rank's part of each tensor of "actor" or "critic"."""
        return {name: digest(tensor) for name, tensor in getattr(self, role).local_tensors()}

    def probe_gradient(self, role: str, share: MiniBatch, micro_size: int) -> tuple[dict[str, float], float]:
        """Losses and gradient norm of one mini-batch in passes of `micro_size` rows; no weight changes. Collective."""
        model = self.actor if role == "actor" else self.critic
        assert model is not None
        loss = self._actor_loss() if role == "actor" else self._critic_loss()
        with model.frozen():
            report = ppo.update(model, (share,), micro_size, loss)
        losses = dict(report.steps[0])
        return losses, losses.pop("grad_norm")


def device_of(config: Config) -> str:
    """`trainer.device`, with `auto` told from what the worker was given."""
    wanted = config.trainer.device
    return ("cuda" if torch.cuda.is_available() else "cpu") if wanted == "auto" else wanted


def digest(tensor: Tensor) -> str:
    """Equal for equal bytes."""
    raw = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.blake2b(raw, digest_size=8).hexdigest()


def _engine(config: Config, source: Source, device: torch.device, tokenizer: Any) -> Engine:
    """The engine `rollout.name`; only `hf` is here, the check on the driver has refused the others."""
    structure = read_config(source)
    dtype = actor_dtype(config.actor_rollout_ref.actor, device.type)
    with device:
        model = empty_causal_lm(source, structure, dtype)
    return HfEngine(
        model,
        eos_ids=eos_ids(tokenizer, source),
        pad_id=tokenizer.pad_token_id,
        max_sequences=config.actor_rollout_ref.rollout.max_num_seqs,
    )


def eos_ids(tokenizer: Any, source: Source) -> list[int]:
    """The tokens that end a response: the tokenizer's, and those of the model's generation configuration."""
    from transformers import GenerationConfig

    ids = [tokenizer.eos_token_id]
    try:
        declared = GenerationConfig.from_pretrained(local_path(source.path)).eos_token_id
    except OSError:  # a model folder may do without one
        declared = None
    ids += declared if isinstance(declared, list) else [declared]
    return [i for i in ids if i is not None]
