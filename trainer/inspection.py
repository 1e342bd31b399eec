"""What is asked of a rank beside the phases of a step: capsules, profiles, and what the smoke test looks at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from trainer import ppo, profiling
from trainer.capsules import Held
from trainer.config.schema import Config
from trainer.interfaces import Engine, Loss
from trainer.learner import snapshot
from trainer.learner.models import DTYPES, actor_dtype
from trainer.learner.protocol import Learner, TrainedLearner
from trainer.learner.unadapted import Unadapted
from trainer.records import MiniBatch
from trainer.teams import Seat

NAMES = {dtype: name for name, dtype in DTYPES.items()}


class Inspected:
    """The part of `roles.Roles` that looks at a rank and changes nothing of it."""

    config: Config
    seat: Seat
    device: torch.device
    tokenizer: Any
    engine: Engine | None
    actor: TrainedLearner | None
    reference: Learner | None
    critic: TrainedLearner | None
    _profile: profiling.Recording | None = None
    _failed: str = ""

    def _actor_loss(self) -> Loss:
        raise NotImplementedError

    def _critic_loss(self) -> Loss:
        raise NotImplementedError

    # -- capsules

    def begin_capsule(self, path: str) -> Held:
        """Before a step: rank 0 begins the file `path`, with the models as they are. Collective."""
        contents, models = self.config.trainer.capsule_weights, self._models()
        states = snapshot.begin(Path(path), models, self.tokenizer, contents=contents, write=self.seat.rank == 0)
        dtype = actor_dtype(self.config.actor_rollout_ref.actor, self.device.type)
        return Held(self.device.type, NAMES[dtype], states)

    def moved_since_capsule(self, path: str) -> dict[str, dict[str, float]]:
        """After it: on rank 0, by role, how far the step has moved each tensor. Collective."""
        return snapshot.moved(Path(path), self._models(), read=self.seat.rank == 0)

    def _models(self) -> dict[str, Learner]:
        roles: dict[str, Learner | None] = {"actor": self.actor, "critic": self.critic, "reference": self.reference}
        # A reference that is the actor without its adapters is in the actor.
        return {role: model for role, model in roles.items() if model is not None and not isinstance(model, Unadapted)}

    # -- profiles

    def start_profile(self, failed: str) -> None:
        """On the ranks of `global_profiler.ranks`. `failed` begins the name of what a phase that fails leaves."""
        self._profile = profiling.start(self.config.global_profiler, self.seat.number, self.device)
        self._failed = failed

    def rescued(self) -> profiling.Rescued:
        """Around a phase."""
        return profiling.Rescued(self._profile, f"{self._failed}.rank_{self.seat.number}")

    def stop_profile(self, stem: str) -> str | None:
        """The file that this rank has written, if it was chosen."""
        recording, self._profile = self._profile, None
        return recording.stop(Path(f"{stem}.rank_{self.seat.number}")) if recording else None

    # -- what the smoke test looks at

    def checksums(self, role: str) -> dict[str, str]:
        """A digest of each whole tensor of "actor", "critic", "reference" or "engine". Collective."""
        if role == "engine":
            assert self.engine is not None
            return self.engine.checksums()
        return {name: snapshot.digest(tensor) for name, tensor in getattr(self, role).full_tensors()}

    def shard_checksums(self, role: str) -> dict[str, str]:
        """A digest of this rank's part of each tensor of "actor" or "critic"."""
        return {name: snapshot.digest(tensor) for name, tensor in getattr(self, role).local_tensors()}

    def inert(self, role: str) -> tuple[str, ...]:
        """Settings of "actor" or "critic" that have no effect with its architecture, and why."""
        model = self.actor if role == "actor" else self.critic
        assert model is not None
        return tuple(model.inert)

    def probe_gradient(self, role: str, share: MiniBatch) -> tuple[dict[str, float], float]:
        """Losses and gradient norm of one mini-batch; no weight changes. Collective."""
        model = self.actor if role == "actor" else self.critic
        assert model is not None
        loss = self._actor_loss() if role == "actor" else self._critic_loss()
        with model.at_hand(), model.frozen():
            report = ppo.update(model, (share,), loss)
        losses = dict(report.steps[0])
        return losses, losses.pop("grad_norm")
