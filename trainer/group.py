"""All ranks together, as `ppo.step` sees them: splits whole batches over the ranks and puts the answers together.

How a call reaches the ranks is behind `Calls`: Ray actors in a run (`cluster.py`), a plain object in unit tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer import ppo
from trainer.agent import keep
from trainer.asked import Asked, Talk, together
from trainer.balance import PassLimit, Share, shares
from trainer.config.batches import MicroBatches, micro_batch_sizes
from trainer.config.schema import ActorConfig, Config, CriticConfig
from trainer.digests import Found, dealt
from trainer.errors import EngineError
from trainer.grid import Grid, actor_grid, critic_grid, reference_grid
from trainer.group_inspection import InspectedGroup
from trainer.interfaces import Args, Calls, Clock, Sampling
from trainer.records import LogProbs, MiniBatch, Prompts, Rollout, Scores, TrainBatch, UpdateReport
from trainer.reports import merge_reports
from trainer.rollout.settings import sampling_of
from trainer.rows import concat, indices, split, split_rows, take
from trainer.teams import ROLES, ranks_of

REVIVALS = 3  # of engines in one generation


class WorkerGroup(InspectedGroup):
    """Implements `interfaces.Workers` over `Calls`."""

    def __init__(self, calls: Calls, config: Config) -> None:
        self.calls = calls
        self.config = config
        world = calls.world_size
        self._ranks = {role: ranks_of(config, role, world) for role in ROLES}
        grids = {"actor": actor_grid, "ref": reference_grid, "critic": critic_grid}
        self._grids = {role: grid(config, world) for role, grid in grids.items()}

    # -- rollout and rewards: no rank waits for another, so shares may differ in size

    def generate(self, prompts: Prompts, step: int, *, validate: bool) -> Rollout:
        """Prompts whose engine died on the way are given to the revived engine, up to REVIVALS times."""
        sampling = sampling_of(self.config, step, validate=validate)
        rollout = self._answers(prompts, sampling)
        for revived in range(REVIVALS + 1):
            answered_B = rollout.mask_BT.any(-1) if rollout.episodes is None else keep.answered(rollout)
            done, open_ = answered_B.nonzero().flatten(), (~answered_B).nonzero().flatten()
            if not len(open_):
                break
            if revived == REVIVALS:
                raise EngineError(
                    f"a rollout engine died {REVIVALS + 1} times in one generation",
                    hint="see Ray's logs on its node; running out of memory is the usual cause",
                )
            self.everywhere("revive_engines")
            again = self._answers(take(prompts, open_), sampling)
            rollout = take(concat([take(rollout, done), again]), torch.cat([done, open_]).argsort())
        return rollout

    def _answers(self, prompts: Prompts, sampling: Sampling) -> Rollout:
        """The ranks of an engine's group send what they have through the first of them."""
        size, ranks = self.config.ranks_per_engine, len(self._ranks["rollout"])
        shares = split_rows(prompts, ranks // size)
        nothing = take(prompts, slice(0, 0))
        by_rank = [nothing if rank % size else shares[rank // size] for rank in range(ranks)]
        answers: list[Rollout] = self._on("rollout", "generate", [(share, sampling) for share in by_rank])
        return concat(answers)

    def score(self, rollout: Rollout) -> Scores:
        if self.config.environment_scores:
            return keep.scores(rollout, self.config.agent.reward)
        shares = split_rows(rollout, self.calls.world_size)
        answers: list[Scores] = self.calls.all("score", [(share,) for share in shares])
        names = sorted({name for answer in answers for name in answer.extras})
        nothing = [torch.full_like(answer.score_B, torch.nan) for answer in answers]
        extras = {
            name: torch.cat([a.extras.get(name, n) for a, n in zip(answers, nothing, strict=True)]) for name in names
        }
        return Scores(torch.cat([answer.score_B for answer in answers]), extras)

    # -- phases that a step may ask for side by side

    def together(self, asked: Mapping[str, Asked[Any]], clock: Clock) -> dict[str, Any]:
        return together(self.calls, asked, clock)

    # -- forward passes: collective, so each copy of a model must do equally many

    def log_probs(self, rollout: Rollout) -> Asked[LogProbs]:
        return self._forward("actor", "log_probs", rollout, self._limits.old_log_prob)

    def ref_log_probs(self, rollout: Rollout) -> Asked[Tensor]:
        return self._forward("ref", "ref_log_probs", rollout, self._limits.ref_log_prob)

    def values(self, rollout: Rollout) -> Asked[Tensor]:
        return self._forward("critic", "values", rollout, self._limits.critic_forward)

    def _forward(self, role: str, phase: str, rollout: Rollout, limit: PassLimit) -> Asked[Any]:
        """The answers in the rows' own order, wherever they were computed."""

        def talk() -> Talk[Any]:
            dealt = self._deal(role, rollout.lengths_B, limit)
            answers = yield phase, self._by_copy(role, parts_of(rollout, dealt))
            joined = concat(self._of_copies(role, answers))
            return take(joined, torch.tensor([row for share in dealt for row in share.rows]).argsort())

        return Asked(self.calls, self._ranks[role], talk)

    def _deal(self, role: str, lengths_B: Tensor, limit: PassLimit) -> list[Share]:
        copies = self.grid_of(role).copies
        return shares(lengths_B.tolist(), copies, limit, balanced=self.config.trainer.balance_batch)

    def _by_copy(self, role: str, args: Sequence[tuple[Any, ...]]) -> Args:
        """By rank of the run, from `args` by copy of the model: its ranks take the same rows."""
        grid = self.grid_of(role)
        return self._by_rank(role, [args[grid.place(rank).data] for rank in range(grid.world_size)])

    def _of_copies(self, role: str, answers: Sequence[Any]) -> list[Any]:
        """By copy of the model, from answers by rank of the run: one of its ranks answers for all."""
        ranks = self._ranks[role]
        return [answers[ranks[speaker]] for speaker in self.grid_of(role).speakers()]

    def _by_rank(self, role: str, args: Sequence[tuple[Any, ...]]) -> Args:
        """By rank of the run, from `args` by rank of those that have the role; the others are not called."""
        mine = dict(zip(self._ranks[role], args, strict=True))
        return [mine.get(rank) for rank in range(self.calls.world_size)]

    def _on(self, role: str, phase: str, args: Sequence[tuple[Any, ...]]) -> list[Any]:
        """One phase now; `args` and answers by rank of those that have the role."""
        answers = self.calls.all(phase, self._by_rank(role, args))
        return [answers[rank] for rank in self._ranks[role]]

    @cached_property
    def _limits(self) -> MicroBatches:
        return micro_batch_sizes(self.config)

    # -- updates

    def update_actor(self, batch: TrainBatch, step: int) -> Asked[UpdateReport]:
        return self._update("actor", batch, self.config.actor_rollout_ref.actor, step, self._limits.actor_update)

    def update_critic(self, batch: TrainBatch, step: int) -> Asked[UpdateReport]:
        return self._update("critic", batch, self.config.critic, step, self._limits.critic_update)

    def _update(
        self, role: str, batch: TrainBatch, config: ActorConfig | CriticConfig, step: int, limit: PassLimit
    ) -> Asked[UpdateReport]:
        def talk() -> Talk[UpdateReport]:
            shares = ((share,) for share in self.shares(batch, config, step, limit))
            answers = yield f"update_{role}", self._by_copy(role, list(shares))
            return merge_reports(self._of_copies(role, answers))

        return Asked(self.calls, self._ranks[role], talk)

    def order(self, batch: TrainBatch, config: ActorConfig | CriticConfig, step: int) -> list[Tensor]:
        """The rows of each optimizer step of an update."""
        rows = config.ppo_mini_batch_size * self.config.actor_rollout_ref.rollout.n
        seed = config.data_loader_seed + step if config.shuffle else None
        return list(ppo.mini_batches(batch, rows, config.ppo_epochs, seed))

    def shares(
        self, batch: TrainBatch, config: ActorConfig | CriticConfig, step: int, limit: PassLimit
    ) -> list[tuple[MiniBatch, ...]]:
        """By copy of the model, its part of every mini-batch. Which rows form one does not depend on the ranks."""
        role = "critic" if config is self.config.critic else "actor"
        rollout = batch.experience.rollout
        horizon = self.config.actor_rollout_ref.actor.loss_scale_factor or self.config.data.max_response_length
        by_copy: list[list[MiniBatch]] = [[] for _ in range(self.grid_of(role).copies)]
        for index in self.order(batch, config, step):
            totals = ppo.totals_of(rollout.mask_BT[index], horizon)
            dealt = self._deal(role, rollout.lengths_B[index], limit)
            parts = split(batch, [index[share.rows].tolist() for share in dealt])
            for share, rows, of_copy in zip(dealt, parts, by_copy, strict=True):
                of_copy.append(MiniBatch(rows, totals, indices(share.passes)))
        return [tuple(of_copy) for of_copy in by_copy]

    def sync_weights(self) -> None:
        self.everywhere("sync_weights")

    # -- state

    def save(self, folder: str) -> None:
        self.everywhere("save", folder)

    def load(self, folder: str) -> None:
        self.everywhere("load", folder)

    def digests(self, folder: Path, names: Sequence[str]) -> Found:
        """Of files that all nodes see, each read by one rank: all ranks together."""
        shares = dealt(names, self.calls.world_size)
        answers: list[Found] = self.calls.all("digests", [(str(folder.resolve()), share) for share in shares])
        return {name: found for answer in answers for name, found in answer.items()}

    def grid_of(self, role: str) -> Grid:
        """Which of its ranks share the rows of "actor", "ref" or "critic"."""
        return self._grids[role]

    def of(self, role: str, phase: str, *args: Any) -> list[Any]:
        """One phase with the same arguments on the ranks that have the role; the answers by rank of these."""
        return self._on(role, phase, [args] * len(self._ranks[role]))

    def everywhere(self, phase: str, *args: Any) -> list[Any]:
        """One phase with the same arguments on all ranks; the answers by rank."""
        return self.calls.all(phase, [args] * self.calls.world_size)


def parts_of(rollout: Rollout, dealt: Sequence[Share]) -> list[tuple[Rollout, tuple[Tensor, ...]]]:
    """The rows of each share, and its passes: not kept here while the ranks compute."""
    parts = split(rollout, [share.rows for share in dealt])
    return [(part, indices(share.passes)) for part, share in zip(parts, dealt, strict=True)]
