"""The driver's part of a capsule: which steps have one, and what goes into it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainer import capsules, ppo
from trainer.capsules import Held, Seen
from trainer.config.schema import ActorConfig, CriticConfig
from trainer.group import WorkerGroup
from trainer.interfaces import Clock
from trainer.records import UpdateReport
from trainer.spec import RunSpec


@dataclass(frozen=True)
class Begun:
    """A capsule before its step."""

    partial: Path
    held: Held
    checkpoint: str | None  # that holds the weights


class Recorder:
    """Writes the capsules of a run."""

    def __init__(self, spec: RunSpec, workers: WorkerGroup) -> None:
        self._spec = spec
        self._workers = workers

    def begin(self, before: ppo.Progress, checkpoint: Path | None, clock: Clock) -> Begun | None:
        """Before a step; None where it has no capsule. `checkpoint` has the weights as they are now, if any has.

        Raises CapsuleError.
        """
        trainer, step = self._spec.config.trainer, before.step + 1
        if trainer.capsule_dir is None or (step % trainer.capsule_freq and step != self._spec.total_steps):
            return None
        folder = Path(trainer.capsule_dir).expanduser().resolve()
        partial = folder / (capsules.name_of(step) + capsules.PARTIAL)
        with clock("capsule"):
            held: Held = self._workers.of("actor", "begin_capsule", str(partial))[0]
        return Begun(partial, held, str(checkpoint.resolve()) if checkpoint else None)

    def end(self, begun: Begun | None, before: ppo.Progress, result: ppo.StepResult, clock: Clock) -> None:
        """After the step: the capsule, whole, if one was begun. Raises CapsuleError."""
        if begun is not None:
            with clock("capsule"):
                capsules.finish(begun.partial, self._seen(begun, before, result))

    def _seen(self, begun: Begun, before: ppo.Progress, result: ppo.StepResult) -> Seen:
        spec, config, step = self._spec, self._spec.config, result.progress.step
        contents = config.trainer.capsule_weights
        inside = contents in ("all", "model")
        moved = self._workers.of("actor", "moved_since_capsule", str(begun.partial))[0] if inside else {}
        updated: dict[str, tuple[UpdateReport | None, ActorConfig | CriticConfig]] = {
            "actor": (result.actor, config.actor_rollout_ref.actor),
            "critic": (result.critic, config.critic),
        }
        order = {
            role: [rows.tolist() for rows in self._workers.order(result.batch, part, step)]
            for role, (report, part) in updated.items()
            if report is not None
        }
        return Seen(
            config=config,
            reward_source=spec.reward_source,
            total_steps=spec.total_steps,
            step=step,
            kl_coef=before.kl_coef,
            next_kl_coef=result.progress.kl_coef,
            batch=result.batch,
            scores=result.scores,
            order=order,
            actor=result.actor,
            critic=result.critic,
            held=begun.held,
            moved=moved,
            contents=contents,
            checkpoint=begun.checkpoint if contents == "checkpoint" else None,
            versions=capsules.versions(),
        )
