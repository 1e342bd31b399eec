"""The stages of the smoke test, over the trainer's own code: set up, learn, train and be killed, resume, export."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import ray  # whole: two threads that each begin with another part of it would meet half-made modules

from devkit.errors import DevkitError
from devkit.records import StepRecord
from devkit.smoke import checks, gate
from devkit.smoke.checks import Outcome
from devkit.smoke.cluster import SmokeCluster
from devkit.smoke.problems import write_parquet
from devkit.smoke.results import Results
from devkit.smoke.shrink import Plan, replaced
from devkit.smoke.tiny import HEADS
from devkit.smoke.view import SmokeView
from devkit.smoke.warm_process import WarmProcess
from devkit.smoke.watch import GateWatch, PipelineWatch
from trainer.cluster import WorkerPool
from trainer.config import load
from trainer.config.schema import Config
from trainer.data.parquet import read_parts
from trainer.errors import CheckpointError, TrainerError
from trainer.export import export
from trainer.run import Observer, read_data, total_steps, train
from trainer.tokenizer import load_tokenizer
from trainer.tracking import make_tracker

PROBLEMS = 128  # word problems, where no data are given and for the gate
TEXTS = 256  # prompts that the tokenizer is trained on
POSITIONS = 512  # of the tiny model: more than prompt and response together


class Stages:
    """One smoke test from its first process to its last file."""

    def __init__(
        self,
        plan: Plan,
        results: Results,
        view: SmokeView,
        folder: Path,
        cluster: SmokeCluster,
        warm: WarmProcess,
        clock: Callable[[str], AbstractContextManager[None]],
        seed: int,
    ) -> None:
        self.plan = plan
        self.results = results
        self.view = view
        self.folder = folder
        self.cluster = cluster
        self.warm = warm
        self.clock = clock
        self.seed = seed
        self.steps: list[StepRecord] = []
        self.model = str(folder / "model")
        self.checkpoints = folder / "pipeline"

    # -- set-up

    def set_up(self) -> None:
        """Data and the tiny model, and the driver joins Ray."""
        with self.clock("set-up"):
            problems = self.folder / "problems"
            problems.mkdir()
            self.problems = write_parquet(problems, PROBLEMS, self.seed)
            self.config = self._pipeline_config()
            texts = [str(text) for text in prompt_texts(self.config)]
            spec = {"folder": self.model, "like": self.plan.like, "max_positions": POSITIONS, "seed": self.seed}
            if self.config.actor_rollout_ref.rollout.name == "vllm":
                spec["heads"] = HEADS // 2  # its attention on a CPU knows no heads of less than 32
            self.warm.tell("build", texts=texts, **spec)
            self.cluster.connect()
            self.warm.answer()
            self.tokenizer = load_tokenizer(self.config.actor_rollout_ref.model)

    def _pipeline_config(self) -> Config:
        own = {"data.train_files": [self.problems[0]], "data.val_files": [self.problems[1]]}
        data = own if self.plan.own_data else {}
        if not self.plan.own_data and not self.plan.full.data.val_files:
            data = {"data.val_files": self.plan.full.data.train_files}
        return self._config({**data, "trainer.default_local_dir": str(self.checkpoints), "data.seed": self.seed})

    def _config(self, more: dict[str, Any]) -> Config:
        model = {
            "actor_rollout_ref.model.path": self.model,
            "critic.model.path": self.model,
            "trainer.seed": self.seed,
        }
        return load(replaced(self.plan.overrides, model | more), self.plan.dialect).config

    # -- the learning gate

    def learn(self) -> None:
        """From scratch, on a task that a tiny model can learn: the reward must rise."""
        config = self._config(gate.settings(self.plan.full, self.problems[0], self.folder))
        watch = GateWatch(self.results, self.view, config, self.tokenizer)
        with self.clock("learning gate"):
            self.pool = WorkerPool(self.config, name="smoke")
            self.steps = watch.steps
            self._train(config, self.pool, watch, connect=True)
            watch.conclude(gate.MARGIN, gate.WINDOW)

    # -- the pipeline: train, validate, save, be killed, resume, export

    def train(self) -> None:
        """Until a rank is killed on purpose."""
        self.before = PipelineWatch(self.results, self.view, self.config, self.tokenizer)
        victim = self.pool.infos[-1]
        self.before.kill_pid = victim.pid
        with self.clock("pipeline"):
            try:
                self._train(self.config, self.pool, self.before)
                death = Outcome(False, f"{victim} was killed and nobody noticed")
            except (TrainerError, ray.exceptions.RayError) as error:
                if not self.before.killed:
                    raise
                death = checks.death_named(error, str(victim))
            finally:
                self.pool.close()
        self.results.add("killed-rank", lambda: death)
        self.results.settle()

    def resume(self) -> None:
        """In new processes, from the last checkpoint to the end."""
        self.after = PipelineWatch(self.results, self.view, self.config, self.tokenizer)
        with self.clock("resume"):
            pool = WorkerPool(self.config, name="smoke-resumed")
            try:
                self._train(self.config, pool, self.after, connect=True)
            finally:
                pool.close()
        engine = self.config.actor_rollout_ref.rollout.name
        self.results.add("resume", lambda: checks.resumed_equal(self.before.metrics, self.after.metrics, engine))
        self.results.settle()

    def export(self) -> None:
        """The last checkpoint as transformers loads it, compared with the actor that trained."""
        with self.clock("export"):
            self.results.add("export", self._exported)

    def _exported(self) -> Outcome:
        output = self.folder / "exported"
        try:
            parameters = export(self.after.saved_folders[-1], output)
            self.warm.tell("digests", folder=str(output))
            loaded = self.warm.answer()["digests"]
        except (CheckpointError, DevkitError, IndexError) as error:
            return Outcome(False, str(error))
        trained = self.after.final_actor[0]
        odd = sorted(name for name in loaded if loaded[name] != trained.get(name))
        if odd:
            return Outcome(False, f"exported weights differ from the actor's: {checks.named(odd)}")
        return Outcome(True, f"transformers loads all {parameters:,} parameters, equal to the actor's")

    def _train(self, config: Config, pool: WorkerPool, observer: Observer, *, connect: bool = False) -> None:
        data = read_data(config)
        tracker = make_tracker(config, total_steps(config, data.train))
        tracker.note = self.view.note  # type: ignore[method-assign]
        if connect:
            pool.connect()
        train(config, pool, data, tracker, observer)
        tracker.close()


def prompt_texts(config: Config) -> Sequence[Any]:
    """The first prompts of the training data, as text: what the tokenizer learns from."""
    texts: list[Any] = []
    for part in read_parts(config.data.train_files, config.data):
        for index in range(min(len(part), TEXTS - len(texts))):
            prompt = part.value(config.data.prompt_key, index)
            texts.append(prompt if isinstance(prompt, str) else "\n".join(m["content"] for m in prompt))
    return texts
