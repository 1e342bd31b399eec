"""What the driver does with a step that is done: keeps its samples, tells what is odd, or ends the run for it."""

from __future__ import annotations

from collections import Counter

from torch import Tensor

from trainer import drift, ppo
from trainer.agent import keep
from trainer.config.schema import Config
from trainer.data.reading import Data
from trainer.errors import NotFinite
from trainer.finite import DIVERGED
from trainer.phases import Phases
from trainer.records import Rollout, Scores
from trainer.samples import dump
from trainer.tracking import Tracker


def keep_samples(result: ppo.StepResult, config: Config, data: Data, phases: Phases) -> None:
    """Into `trainer.rollout_data_dir`, if there is one."""
    if config.trainer.rollout_data_dir is not None:
        with phases("dump_rollout_generations"):
            samples, rewards_BT = _samples(result, config)
            where = config.trainer.rollout_data_dir, result.progress.step
            dump(*where, samples, data.decode, rewards_BT, data.environment)


def _samples(result: ppo.StepResult, config: Config) -> tuple[list[tuple[Rollout, Scores]], Tensor | None]:
    """Whole conversations, also where their turns were trained on, and what rows were trained on."""
    kept = result.kept
    if kept is not None and kept.are_parts:
        return [(kept.whole, keep.scores(kept.whole, config.agent.reward))], None
    return [(result.batch.experience.rollout, result.scores)], result.batch.rewards_BT


def require_agreement(result: ppo.StepResult, config: Config, tracker: Tracker) -> None:
    """Raises DriftError where engine and trainer are too far apart, unless a warning is asked for.

    Its capsule and samples are written by now, and no checkpoint: a resumed run does not go on from what came of it.
    """
    error = drift.excess(result.progress.step, result.batch, config)
    if error is None:
        return
    if config.trainer.rollout_drift_action == "stop":
        tracker.log(result.progress.step, result.metrics)
        raise error
    tracker.note(f"{error.message}; {error.hint}")


def tell_failures(result: ppo.StepResult, tracker: Tracker) -> None:
    """Of conversations whose environment failed: how many, and the first."""
    failures = keep.failures(result.kept.played) if result.kept is not None else ()
    if failures:
        count = len(failures)
        tracker.note(
            f"step {result.progress.step}: {count} trajector{'ies' if count > 1 else 'y'} failed and "
            f"{'were' if count > 1 else 'was'} left out; the first: {failures[0]}"
        )


class Aftermath:
    """Looks at each step of a run. Raises what ends the run for it."""

    def __init__(self, config: Config, steps: int) -> None:
        self._config, self._steps = config, steps  # the run's
        self._taken, self._skipped = Counter[str](), Counter[str]()

    def look(self, result: ppo.StepResult, tracker: Tracker) -> None:
        """Raises DriftError, and NotFinite in the last step of a run in which a model was not trained in any."""
        require_agreement(result, self._config, tracker)
        tell_failures(result, tracker)
        for role, report in {"actor": result.actor, "critic": result.critic}.items():
            if report is not None and report.loss_scale is None:  # in fp16 that is how the loss scale is found
                self._taken[role] += len(report.steps) - report.skipped
                self._skipped[role] += report.skipped
                if report.skipped:
                    skipped = f"{report.skipped} of {len(report.steps)} optimizer steps of the {role} were skipped"
                    tracker.note(f"step {result.progress.step}: {skipped}: their gradient was not finite")
        if result.progress.step == self._steps:
            self._require_trained(result, tracker)

    def _require_trained(self, result: ppo.StepResult, tracker: Tracker) -> None:
        for role, count in self._skipped.items():
            if count and not self._taken[role]:
                tracker.log(result.progress.step, result.metrics)
                said = f"the {role} is as it was when this run began: all {count} of its optimizer steps were skipped"
                raise NotFinite(f"{said}, for their gradient was never finite", hint=DIVERGED)
