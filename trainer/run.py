"""A run from its first step to its last: resume, validate, train, save, log. The driver; it names phases only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from trainer import checkpoints, forecast, metrics, ppo, resuming, runlock
from trainer.aftermath import Aftermath, keep_samples
from trainer.agent.player import read_environment
from trainer.config.absolute import absolute
from trainer.config.chosen import Choice
from trainer.config.schema import Config
from trainer.data.loader import PromptLoader
from trainer.data.reading import Data, endless, total_steps
from trainer.group import WorkerGroup
from trainer.interfaces import Calls
from trainer.leaving import Leaving
from trainer.memory import Memory, memory_metrics
from trainer.phases import Phases
from trainer.profiling import Profiler
from trainer.recording import Recorder
from trainer.records import Metrics, Prompts
from trainer.rewards import read_source
from trainer.spec import RunSpec
from trainer.state import State
from trainer.tracking import Tracker
from trainer.validation import validate


class Pool(Calls, Protocol):
    """The ranks of a run: `cluster.WorkerPool`, or a fake."""

    def build(self, spec: RunSpec) -> tuple[Choice, ...]: ...

    def take_memory(self) -> Memory | None:
        """The most memory that a rank took in the calls since it was last asked; None without any."""
        ...


class Observer:
    """Looks at a run from outside; the smoke test does. Nothing it is shown may be changed."""

    def started(self, workers: WorkerGroup, progress: ppo.Progress) -> None:
        """Models are in place, nothing is trained yet."""

    def stepped(self, workers: WorkerGroup, result: ppo.StepResult) -> None:
        """A step is done, its checkpoint not yet written."""

    def saved(self, folder: Path) -> None:
        """A checkpoint is whole."""


def train(
    config: Config,
    pool: Pool,
    data: Data,
    tracker: Tracker,
    observer: Observer | None = None,
    leaving: Leaving | None = None,
) -> Metrics:
    """The whole run; gives the last metrics. Raises the TrainerError that ended it early.

    A step in which `leaving` is asked for is the last, and is saved; KeyboardInterrupt follows.
    """
    with runlock.held(config.trainer, tracker.note):
        return _train(config, pool, data, tracker, observer or Observer(), leaving or Leaving())


def _train(config: Config, pool: Pool, data: Data, tracker: Tracker, observer: Observer, leaving: Leaving) -> Metrics:
    steps = total_steps(config, data.train)
    texts = read_source(config.custom_reward_function), read_environment(config)
    spec = RunSpec(absolute(config), texts[0], steps, texts[1])
    tracker.phase("loading models", forecast.of_start(config))
    chosen = pool.build(spec)
    for line in forecast.of_training(chosen):
        tracker.note(line)
    workers = WorkerGroup(pool, config)
    progress, saved = resume(config, workers, data.train, tracker)
    observer.started(workers, progress)
    if progress.step >= steps and not config.trainer.val_only:
        tracker.note(resuming.nothing_left(progress.step, steps))
        return {}
    last: Metrics = {}
    if data.validation and (config.trainer.val_before_train or config.trainer.val_only):
        tracker.phase("validating")
        last = validate(workers, data, config, progress.step)
        tracker.log(progress.step, last)
    if config.trainer.val_only:
        return last
    recorder, profiler = Recorder(spec, workers), Profiler(config.global_profiler, workers.everywhere, tracker.note)
    aftermath, prompts = Aftermath(config, steps), endless(data.train)
    loop = Loop(config, pool, workers, data, tracker, observer, recorder, profiler, leaving, prompts, steps, aftermath)
    tracker.phase(forecast.at_first_step(config, chosen), forecast.of_first_step(config, chosen))
    while progress.step < steps:
        with leaving.step():
            progress, saved, last = loop.step(progress, saved)
            tracker.log(progress.step, last)
            if leaving.asked:  # what is after this `with` is not come to
                profiler.close(progress.step)
    profiler.close(progress.step)
    return last


@dataclass(frozen=True)
class Loop:
    """What is the same in each step."""

    config: Config
    pool: Pool
    workers: WorkerGroup
    data: Data
    tracker: Tracker
    observer: Observer
    recorder: Recorder
    profiler: Profiler
    leaving: Leaving
    prompts: Iterator[Prompts]
    steps: int  # of the run
    aftermath: Aftermath

    def step(self, progress: ppo.Progress, saved: Path | None) -> tuple[ppo.Progress, Path | None, Metrics]:
        """One step with what belongs to it -> (progress, its checkpoint if it has one, metrics).

        `saved` is a checkpoint of the weights as they are, if there is one.
        """
        config = self.config
        phases = Phases(self.pool.take_memory)
        self.pool.take_memory()  # what loading and resuming took is no step's
        with phases.step():
            capsule = self.recorder.begin(progress, saved, phases)
            with self.profiler.step(progress.step + 1, phases):
                with phases("data"):
                    prompts = next(self.prompts)
                result = ppo.step(self.workers, prompts, progress, config, phases)
            self.recorder.end(capsule, progress, result, phases)
            keep_samples(result, config, self.data, phases)
            with phases("metrics"):
                self.aftermath.look(result, self.tracker)
            progress, last = result.progress, dict(result.metrics)
            last |= self._validated(progress, phases)
            self.observer.stepped(self.workers, result)
            saved = self._saved(progress, phases)
        last |= metrics.timing_metrics(phases.seconds, result.batch.experience.rollout, self.pool.world_size)
        last |= memory_metrics(phases.memory)
        last |= {"training/global_step": float(progress.step), "training/epoch": float(self.data.train.epoch)}
        return progress, saved, last

    def _validated(self, progress: ppo.Progress, phases: Phases) -> Metrics:
        final = progress.step == self.steps
        if self.data.validation is None or self.leaving.asked:
            return {}
        if not due(progress.step, self.config.trainer.test_freq, final):
            return {}
        with phases("testing"):
            return validate(self.workers, self.data, self.config, progress.step)

    def _saved(self, progress: ppo.Progress, phases: Phases) -> Path | None:
        final = progress.step == self.steps
        if not (due(progress.step, self.config.trainer.save_freq, final) or self.leaving.asked):
            return None
        with phases("save_checkpoint"):
            saved = save(self.config, self.workers, progress, self.data.train)
            self.observer.saved(saved)
        return saved


def resume(
    config: Config, workers: WorkerGroup, loader: PromptLoader, tracker: Tracker
) -> tuple[ppo.Progress, Path | None]:
    """Continue from the checkpoint that `resume_mode` names, or start anew -> (where the run is, that checkpoint)."""
    control = config.algorithm.kl_ctrl
    found = resuming.choose(config.trainer, workers.digests, tracker.note)
    if found is None:
        return ppo.Progress(kl_coef=control.kl_coef), None
    folder, state = found
    if not config.trainer.val_only:
        loader.load_state_dict(state.data)
    workers.load(str(folder.resolve()))
    tracker.note(f"resumed from {folder} at step {state.progress.step}")
    fixed = control.type == "fixed"
    return replace(state.progress, kl_coef=control.kl_coef) if fixed else state.progress, folder


def save(config: Config, workers: WorkerGroup, progress: ppo.Progress, loader: PromptLoader) -> Path:
    root = Path(config.trainer.default_local_dir).expanduser().resolve()
    state = State(progress, loader.state_dict())
    keep = config.trainer.max_actor_ckpt_to_keep
    return checkpoints.save(root, state, workers.save, keep, workers.digests)


def due(step: int, every: int, final: bool) -> bool:
    """Whether something that happens `every` so many steps, and at the end, happens now; -1 is never."""
    return every > 0 and (final or step % every == 0)
