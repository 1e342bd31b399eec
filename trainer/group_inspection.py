"""What is asked of all ranks beside the phases of a step: the smoke test looks at weights and gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainer.balance import PassLimit
from trainer.config.schema import ActorConfig, Config, CriticConfig
from trainer.interfaces import Args, Calls
from trainer.records import MiniBatch, TrainBatch


class InspectedGroup:
    """The part of `group.WorkerGroup` that looks at the ranks and changes nothing of them."""

    config: Config
    calls: Calls

    def of(self, role: str, phase: str, *args: Any) -> list[Any]:
        raise NotImplementedError

    def _by_copy(self, role: str, args: Sequence[tuple[Any, ...]]) -> Args:
        raise NotImplementedError

    def _of_copies(self, role: str, answers: Sequence[Any]) -> list[Any]:
        raise NotImplementedError

    def shares(
        self, batch: TrainBatch, config: ActorConfig | CriticConfig, step: int, limit: PassLimit
    ) -> list[tuple[MiniBatch, ...]]:
        raise NotImplementedError

    def checksums(self, role: str) -> list[dict[str, str]]:
        """By rank that has it, a digest of each whole tensor of "actor", "critic", "reference" or "engine"."""
        return self.of({"reference": "ref", "engine": "rollout"}.get(role, role), "checksums", role)

    def shard_checksums(self, role: str) -> list[dict[str, str]]:
        """By rank that has it, a digest of its part of each tensor of "actor" or "critic"."""
        return self.of(role, "shard_checksums", role)

    def inert(self, role: str) -> tuple[str, ...]:
        """Settings of "actor" or "critic" that turned out to have no effect, and why. Known after the first pass."""
        return tuple(dict.fromkeys(text for told in self.of(role, "inert", role) for text in told))

    def probe_gradient(self, role: str, batch: TrainBatch, micro_size: int) -> tuple[dict[str, float], float]:
        """Losses and gradient norm of the batch's first mini-batch in passes of `micro_size` rows per copy."""
        config = self.config.actor_rollout_ref.actor if role == "actor" else self.config.critic
        shares = self.shares(batch, config, 0, PassLimit(rows=micro_size))
        args = self._by_copy(role, [(role, share[0]) for share in shares])
        answers = self._of_copies(role, self.calls.all("probe_gradient", args))
        losses = {name: sum(answer[0][name] for answer in answers) for name in answers[0][0]}
        return losses, answers[0][1]
