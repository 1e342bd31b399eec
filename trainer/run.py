"""A run from its first step to its last: resume, validate, train, save, log. The driver; it names phases only."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from trainer import checkpoints, drift, metrics, ppo
from trainer.config.schema import Config
from trainer.data.dataset import PromptDataset, load_prompts
from trainer.data.loader import PromptLoader
from trainer.group import WorkerGroup
from trainer.interfaces import Calls
from trainer.memory import Memory, memory_metrics
from trainer.profiling import Profiler
from trainer.recording import Recorder
from trainer.records import Metrics, Prompts, Rollout, Scores
from trainer.rewards import read_source, scorer_for
from trainer.rows import repeat
from trainer.samples import dump
from trainer.spec import RunSpec
from trainer.tokenizer import load_tokenizer
from trainer.tracking import Tracker


class Pool(Calls, Protocol):
    """The ranks of a run: `cluster.WorkerPool`, or a fake."""

    def build(self, spec: RunSpec) -> None: ...

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


class Phases:
    """Seconds and memory of each phase of one step, by name."""

    def __init__(self, take_memory: Callable[[], Memory | None]) -> None:
        self.seconds: dict[str, float] = {}
        self.memory: dict[str, Memory] = {}
        self._take_memory = take_memory

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started
        if (memory := self._take_memory()) is not None:
            self.memory[name] = memory


@dataclass(frozen=True)
class Data:
    """The prompts of a run. `validation` is None where no files are given."""

    train: PromptLoader
    validation: PromptLoader | None
    decode: Callable[[Sequence[int]], str]  # token ids to text
    notes: tuple[str, ...] = field(default=())


def read_data(config: Config) -> Data:
    """Tokenises all prompts. Raises DataError, and ModelError if there is no tokenizer.

    RewardError: a row's `data_source` has no reward function; now, and not after the first generation.
    """
    tokenizer = load_tokenizer(config.actor_rollout_ref.model)
    data, seed, pad = config.data, config.trainer.seed, tokenizer.pad_token_id
    seed = seed if data.seed is None else data.seed
    notes: list[str] = []

    def load(files: list[str], most: int) -> PromptDataset:
        rows = load_prompts(files, data, tokenizer, max_samples=most, seed=seed)
        if rows.dropped:
            notes.append(f"{rows.dropped} prompts over {data.max_prompt_length} tokens left out of {', '.join(files)}")
        if config.custom_reward_function.path is None:
            for source in rows.data_sources:
                scorer_for(source)
        return rows

    train = validation = None
    if not config.trainer.val_only:
        rows = load(data.train_files, data.train_max_samples)
        train = PromptLoader(rows, data.train_batch_size, pad_id=pad, shuffle=data.shuffle, seed=seed, drop_last=True)
    if data.val_files:
        rows = load(data.val_files, data.val_max_samples)
        size = data.val_batch_size or len(rows)
        validation = PromptLoader(rows, size, pad_id=pad, shuffle=False, seed=seed, drop_last=False)
    loader = train or validation  # with val_only there is nothing to train on
    assert loader is not None, "config.check asks for val_files with val_only"
    return Data(loader, validation, tokenizer.decode, tuple(notes))


def total_steps(config: Config, loader: PromptLoader) -> int:
    """Steps of the whole run, earlier parts of a resumed one included."""
    return config.trainer.total_training_steps or config.trainer.total_epochs * len(loader)


def train(config: Config, pool: Pool, data: Data, tracker: Tracker, observer: Observer | None = None) -> Metrics:
    """The whole run; gives the last metrics. Raises the TrainerError that ended it early."""
    observer = observer or Observer()
    steps = total_steps(config, data.train)
    spec = RunSpec(config, read_source(config.custom_reward_function), steps)
    pool.build(spec)
    workers = WorkerGroup(pool, config)
    progress = resume(config, workers, data.train, tracker)
    observer.started(workers, progress)
    last: Metrics = {}
    if data.validation and (config.trainer.val_before_train or config.trainer.val_only):
        last = validate(workers, data, config, progress.step)
        tracker.log(progress.step, last)
    if config.trainer.val_only:
        return last
    if progress.step >= steps:
        tracker.note(f"nothing left to do: step {progress.step} of {steps} is done")
    prompts, saved = endless(data.train), checkpoints.find(config.trainer)
    recorder, profiler = Recorder(spec, workers), Profiler(config.global_profiler, workers.everywhere, tracker.note)
    while progress.step < steps:
        phases = Phases(pool.take_memory)
        pool.take_memory()  # what loading and resuming took is no step's
        with phases("step"):
            capsule = recorder.begin(progress, saved, phases)
            with profiler.step(progress.step + 1):
                result = ppo.step(workers, next(prompts), progress, config, phases)
            recorder.end(capsule, progress, result, phases)
            keep_samples(result, config, data, phases)
            require_agreement(result, config, tracker)
            progress, last = result.progress, dict(result.metrics)
            final = progress.step == steps
            if data.validation and due(progress.step, config.trainer.test_freq, final):
                with phases("testing"):
                    last |= validate(workers, data, config, progress.step)
            observer.stepped(workers, result)
            saved = None
            if due(progress.step, config.trainer.save_freq, final):
                with phases("save_checkpoint"):
                    saved = save(config, workers, progress, data.train)
                    observer.saved(saved)
        rollout = result.batch.experience.rollout
        last |= metrics.timing_metrics(phases.seconds, rollout, pool.world_size)
        last |= memory_metrics(phases.memory)
        last |= {"training/global_step": float(progress.step), "training/epoch": float(data.train.epoch)}
        tracker.log(progress.step, last)
    profiler.close(progress.step)
    return last


def keep_samples(result: ppo.StepResult, config: Config, data: Data, phases: Phases) -> None:
    """Into `trainer.rollout_data_dir`, if there is one."""
    if config.trainer.rollout_data_dir is not None:
        with phases("dump_rollout_generations"):
            samples = [(result.batch.experience.rollout, result.scores)]
            dump(
                *(config.trainer.rollout_data_dir, result.progress.step, samples, data.decode),
                result.batch.rewards_BT,
            )


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


def resume(config: Config, workers: WorkerGroup, loader: PromptLoader, tracker: Tracker) -> ppo.Progress:
    """Continue from the checkpoint that `resume_mode` names, or start anew."""
    folder = checkpoints.find(config.trainer)
    if folder is None:
        return ppo.Progress(kl_coef=config.algorithm.kl_ctrl.kl_coef)
    state = checkpoints.read_state(folder)
    if not config.trainer.val_only:
        loader.load_state_dict(state.data)
    workers.load(str(folder.resolve()))
    tracker.note(f"resumed from {folder} at step {state.progress.step}")
    control = config.algorithm.kl_ctrl
    return replace(state.progress, kl_coef=control.kl_coef) if control.type == "fixed" else state.progress


def save(config: Config, workers: WorkerGroup, progress: ppo.Progress, loader: PromptLoader) -> Path:
    root = Path(config.trainer.default_local_dir).expanduser().resolve()
    state = checkpoints.State(progress, loader.state_dict())
    return checkpoints.save(root, state, workers.save, config.trainer.max_actor_ckpt_to_keep)


def validate(workers: WorkerGroup, data: Data, config: Config, step: int) -> Metrics:
    """Mean scores over the validation set, by data source."""
    rollouts: list[Rollout] = []
    scores: list[Scores] = []
    assert data.validation is not None
    for prompts in data.validation:
        rollouts.append(
            workers.generate(repeat(prompts, config.actor_rollout_ref.rollout.val_kwargs.n), 0, validate=True)
        )
        scores.append(workers.score(rollouts[-1]))
    samples = list(zip(rollouts, scores, strict=True))
    dump(config.trainer.validation_data_dir, step, samples, data.decode)
    return metrics.validation_metrics(rollouts, scores)


def due(step: int, every: int, final: bool) -> bool:
    """Whether something that happens `every` so many steps, and at the end, happens now; -1 is never."""
    return every > 0 and (final or step % every == 0)


def endless(loader: PromptLoader) -> Iterator[Prompts]:
    """Epoch after epoch, from the loader's position on."""
    while True:
        yield from loader
