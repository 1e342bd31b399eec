"""All ranks together, as `ppo.step` sees them: splits whole batches over the ranks and puts the answers together.

How a call reaches the ranks is behind `Calls`: Ray actors in a run (`cluster.py`), a plain object in unit tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from trainer import ppo
from trainer.config.schema import ActorConfig, Config, CriticConfig
from trainer.interfaces import Sampling
from trainer.layout import Layout, actor_layout, critic_layout
from trainer.records import (
    LogProbs,
    MiniBatch,
    Prompts,
    Rollout,
    Scores,
    TrainBatch,
    UpdateReport,
    concat,
    take,
)


class Calls(Protocol):
    """One phase on all ranks at once."""

    world_size: int

    def all(self, phase: str, args: Sequence[tuple[Any, ...]]) -> list[Any]:
        """`phase(*args[rank])` on each rank; gives the answers by rank. Raises what a rank raised."""
        ...


class WorkerGroup:
    """Implements `interfaces.Workers` over `Calls`."""

    def __init__(self, calls: Calls, config: Config) -> None:
        self.calls = calls
        self.config = config
        self.actor_layout = actor_layout(config, calls.world_size)
        self.critic_layout = critic_layout(config, calls.world_size)

    # -- rollout and rewards: no rank waits for another, so shares may differ in size

    def generate(self, prompts: Prompts, step: int, *, validate: bool) -> Rollout:
        sampling = sampling_of(self.config, step, validate=validate)
        shares = split_rows(prompts, self.calls.world_size)
        answers: list[Rollout] = self.calls.all("generate", [(share, sampling) for share in shares])
        return concat(answers)

    def score(self, rollout: Rollout) -> Scores:
        shares = split_rows(rollout, self.calls.world_size)
        answers: list[Scores] = self.calls.all("score", [(share,) for share in shares])
        names = sorted({name for answer in answers for name in answer.extras})
        nothing = [torch.full_like(answer.score_B, torch.nan) for answer in answers]
        extras = {
            name: torch.cat([a.extras.get(name, n) for a, n in zip(answers, nothing, strict=True)]) for name in names
        }
        return Scores(torch.cat([answer.score_B for answer in answers]), extras)

    # -- forward passes: collective, so shares must be equal; `config.check` has made sure

    def log_probs(self, rollout: Rollout) -> LogProbs:
        return self._forward("log_probs", rollout, self.actor_layout)  # type: ignore[no-any-return]

    def ref_log_probs(self, rollout: Rollout) -> Tensor:
        return self._forward("ref_log_probs", rollout, self.actor_layout)  # type: ignore[no-any-return]

    def values(self, rollout: Rollout) -> Tensor:
        return self._forward("values", rollout, self.critic_layout)  # type: ignore[no-any-return]

    def _forward(self, phase: str, rollout: Rollout, layout: Layout) -> Any:
        return concat(self._deal(layout, phase, [(share,) for share in split_rows(rollout, layout.data)]))

    def _deal(self, layout: Layout, phase: str, args: Sequence[tuple[Any, ...]]) -> list[Any]:
        """`args` and answers by copy of the model: its ranks take the same rows, and one of them answers for all."""
        answers = self.calls.all(phase, [args[layout.place(rank).data] for rank in range(self.calls.world_size)])
        return [answers[rank] for rank in layout.speakers()]

    # -- updates

    def update_actor(self, batch: TrainBatch, step: int) -> UpdateReport:
        shares = self.shares(batch, self.config.actor_rollout_ref.actor, step)
        return merge_reports(self._deal(self.actor_layout, "update_actor", [(share,) for share in shares]))

    def update_critic(self, batch: TrainBatch, step: int) -> UpdateReport:
        shares = self.shares(batch, self.config.critic, step)
        return merge_reports(self._deal(self.critic_layout, "update_critic", [(share,) for share in shares]))

    def shares(self, batch: TrainBatch, config: ActorConfig | CriticConfig, step: int) -> list[tuple[MiniBatch, ...]]:
        """By copy of the model, its part of every mini-batch. Which rows form one does not depend on the ranks."""
        copies = (self.critic_layout if config is self.config.critic else self.actor_layout).data
        rows = config.ppo_mini_batch_size * self.config.actor_rollout_ref.rollout.n
        seed = config.data_loader_seed + step if config.shuffle else None
        steps = list(ppo.mini_batches(batch, rows, config.ppo_epochs, seed))
        horizon = self.config.actor_rollout_ref.actor.loss_scale_factor or self.config.data.max_response_length
        shares: list[list[MiniBatch]] = [[] for _ in range(copies)]
        for index in steps:
            totals = ppo.totals_of(batch.experience.rollout.mask_BT[index], horizon)
            for copy, part in enumerate(index.tensor_split(copies)):
                shares[copy].append(MiniBatch(take(batch, part), totals))
        return [tuple(share) for share in shares]

    def sync_weights(self) -> None:
        self._everywhere("sync_weights")

    # -- state

    def save(self, folder: str) -> None:
        self._everywhere("save", folder)

    def load(self, folder: str) -> None:
        self._everywhere("load", folder)

    def checksums(self, role: str) -> list[dict[str, str]]:
        """By rank, a digest of each whole tensor of "actor", "critic", "reference" or "engine"."""
        return self._everywhere("checksums", role)

    def shard_checksums(self, role: str) -> list[dict[str, str]]:
        """By rank, a digest of its part of each tensor of "actor" or "critic"."""
        return self._everywhere("shard_checksums", role)

    def probe_gradient(self, role: str, batch: TrainBatch, micro_size: int) -> tuple[dict[str, float], float]:
        """Losses and gradient norm of the batch's first mini-batch in passes of `micro_size` rows per rank."""
        config = self.config.actor_rollout_ref.actor if role == "actor" else self.config.critic
        shares = self.shares(batch, config, 0)
        layout = self.actor_layout if role == "actor" else self.critic_layout
        answers = self._deal(layout, "probe_gradient", [(role, share[0], micro_size) for share in shares])
        losses = {name: sum(answer[0][name] for answer in answers) for name in answers[0][0]}
        return losses, answers[0][1]

    def _everywhere(self, phase: str, *args: Any) -> list[Any]:
        return self.calls.all(phase, [args] * self.calls.world_size)


def split_rows(record: Any, parts: int) -> list[Any]:
    """A record's rows in `parts` runs whose lengths differ by one at most."""
    return [take(record, index) for index in torch.arange(len(record)).tensor_split(parts)]


def sampling_of(config: Config, step: int, *, validate: bool) -> Sampling:
    """How to sample in training or validation; each training step draws from streams of its own."""
    rollout = config.actor_rollout_ref.rollout
    kwargs = rollout.val_kwargs if validate else rollout
    return Sampling(
        max_new_tokens=config.data.max_response_length,
        temperature=kwargs.temperature,
        top_p=kwargs.top_p,
        top_k=kwargs.top_k,
        do_sample=kwargs.do_sample,
        ignore_eos=rollout.ignore_eos,
        # Validation draws the same at every step, so that its curve shows the model and not the dice.
        seed=(config.trainer.seed * 1_000_003 + (-1 if validate else step)) % 2**63,
    )


def merge_reports(reports: Sequence[UpdateReport]) -> UpdateReport:
    """One report from the ranks': their losses add up; norms, rates and skips are the same on all."""
    first = reports[0]
    steps = []
    for parts in zip(*(report.steps for report in reports), strict=True):
        total = {name: sum(part[name] for part in parts) for name in parts[0]}
        steps.append(total | {"grad_norm": parts[0]["grad_norm"]})
    untrained = set(first.untrained).intersection(*(report.untrained for report in reports))
    return UpdateReport(tuple(steps), tuple(sorted(untrained)), first.lr, first.skipped)
