"""The stages of the smoke test, over the trainer's own code: set up, learn, train and be killed, resume, export."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import ray  # whole: two threads that each begin with another part of it would meet half-made modules

from devkit.errors import DevkitError
from devkit.records import StepRecord
from devkit.smoke import gate, plain_update, validations
from devkit.smoke.checks import updates, validated, whole_run
from devkit.smoke.checks.outcome import Outcome, look_at, named
from devkit.smoke.cluster import SmokeCluster
from devkit.smoke.draw_trial import DrawTrial
from devkit.smoke.problems import write_parquet
from devkit.smoke.results import Results
from devkit.smoke.shrink import KILL_AT, LAST, SAVE_AT, Plan, replaced
from devkit.smoke.tiny import HEADS
from devkit.smoke.users import UsersOwn
from devkit.smoke.users_files import look_at_command
from devkit.smoke.view import SmokeView
from devkit.smoke.warm_process import WarmProcess
from devkit.smoke.watch import GateWatch, PipelineWatch
from trainer.cluster import WorkerPool
from trainer.config import load
from trainer.config.lora import ALL_LINEAR, matches, models_of
from trainer.config.overrides import format_value
from trainer.config.schema import Config
from trainer.data.parquet import read_parts
from trainer.data.reading import read_data, total_steps
from trainer.errors import CheckpointError, DataError, TrainerError
from trainer.export import export
from trainer.run import Observer, train
from trainer.tokenizer import load_tokenizer
from trainer.tracking import make_tracker
from trainer.waiting import UnderWay

PROBLEMS = 128  # word problems, where no data are given and for the gate
TEXTS = 256  # prompts that the tokenizer is trained on
FILTER = "data.filter_overlong_prompts"
PACKING = "actor_rollout_ref.model.use_remove_padding"
FILTERED_STEPS = 2  # of an epoch, at least, that the filter is to leave
LOUD = 10.0  # of an output layer that does not train: a new one says nearly the same of each token
VALIDATIONS = "validations"  # a folder below that of the test
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
        self.own: UsersOwn | None = None  # once the data are there
        self.all = (self.set_up, self.learn, self.train, self.resume, self.export)

    def close(self) -> None:
        """Ends what calls the reward function."""
        if self.own is not None:
            self.own.close()

    # -- set-up

    def set_up(self) -> None:
        """Data and the tiny model, and the driver joins Ray."""
        with self.clock("set-up"):
            problems = self.folder / "problems"
            problems.mkdir()
            self.problems = write_parquet(problems, PROBLEMS, self.seed)
            self.config = self._pipeline_config()
            texts = [str(text) for text in prompt_texts(self.config)]
            spec: dict[str, Any] = {"folder": self.model, "like": self.plan.like, "seed": self.seed}
            if self.config.actor_rollout_ref.rollout.name == "vllm":
                spec["heads"] = HEADS // 2  # its attention on a CPU knows no heads of less than 32
            if self.config.actor_rollout_ref.model.lora_rank:
                spec["loudness"] = LOUD
            self.warm.tell("build", texts=texts, max_positions=POSITIONS, **spec)
            self.cluster.connect()
            self._keep_targets(self.warm.answer()["modules"])
            self.tokenizer = load_tokenizer(self.config.actor_rollout_ref.model)
            if self.plan.full.data.filter_overlong_prompts:
                self._keep_filter()
            log = self.folder / "reward.log"
            self.own = UsersOwn(self.plan.full, self.config, self.tokenizer, self.results, log)
            look_at_command(self.plan.full, self.results)

    def _keep_filter(self) -> None:
        """The filter of the full command stays where it leaves enough rows: only the tiny tokenizer shows that."""
        config = self._pipeline_config({FILTER: True})
        try:
            steps = len(read_data(config).train)
        except DataError:  # too few rows are left; any other reason ends the run as it starts
            steps = 0
        if steps < FILTERED_STEPS:
            self.view.note(
                f"reduced: {FILTER} True -> False: it leaves only {steps} steps of rows in the tiny model's tokens"
            )
            return
        self.config = config
        cut = tuple(each for each in self.plan.cut if each.key != FILTER)
        self.plan = replace(self.plan, cut=cut, kept={**self.plan.kept, FILTER: True})
        self.view.note(f"kept: {FILTER}=True after all: enough prompts are short")

    def _keep_targets(self, modules: Sequence[str]) -> None:
        """The modules of the full command that have adapters, unless the tiny model has none of them."""
        for section, model in models_of(self.config).items():
            targets, exclude = model.target_modules, model.exclude_modules or []
            chosen = modules if ALL_LINEAR in targets else [name for name in modules if matches(name, targets)]
            if not model.lora_rank or any(not matches(name, exclude) for name in chosen):
                continue
            every = {f"{section}.target_modules": [ALL_LINEAR], f"{section}.exclude_modules": None}
            self.plan = replace(self.plan, overrides=replaced(self.plan.overrides, every))
            self.config = self._pipeline_config()
            said = f"{section}.target_modules {format_value(list(targets))} -> {ALL_LINEAR}"
            self.view.note(f"reduced: {said}: the tiny model has none of these")

    def _pipeline_config(self, more: dict[str, Any] | None = None) -> Config:
        own = {"data.train_files": [self.problems[0]], "data.val_files": [self.problems[1]]}
        data: dict[str, Any] = dict(own) if self.plan.own_data else {}
        if not self.plan.own_data and not self.plan.full.data.val_files:
            data = {"data.val_files": self.plan.full.data.train_files}
        data["trainer.validation_data_dir"] = str(self.folder / VALIDATIONS)
        own_paths = {**data, "trainer.default_local_dir": str(self.checkpoints), "data.seed": self.seed}
        return self._config({**own_paths, **(more or {})})

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
        config = self._config(gate.settings(self.plan.full, self.config, self.problems[0], self.folder))
        trial = DrawTrial(self.warm, self.model, self.seed)
        watch = GateWatch(self.results, self.view, config, self.tokenizer, self.folder / "made-up", trial)
        with self.clock("learning gate"):
            self.pool = WorkerPool(self.config, name="smoke")
            self.steps = watch.steps
            self._train(config, self.pool, watch, connect=True)
            self._look_at_steps("learning gate", [step.step for step in watch.steps], range(1, gate.STEPS + 1))
            watch.conclude(gate.MARGIN, gate.WINDOW)
            for role, inert in watch.inert.items():
                self.results.add(
                    "settings", partial(updates.settings_act, role, inert, asked=PACKING in self.plan.kept)
                )
            self._look_at_updates(config, watch)

    def _look_at_updates(self, config: Config, watch: GateWatch) -> None:
        """The last updates of the gate once more, in the process that has torch and transformers."""
        for role in watch.made_up:
            settings = asdict(plain_update.settings_of(config, role, gate.STEPS))
            self.warm.tell("expect", folder=str(watch.folder), model=self.model, settings=settings)
            try:
                answer = self.warm.answer()
            except DevkitError as error:  # of a model of another make
                watch.pass_over_update(f"the {role}'s update could not be recomputed: {error.message}")
                continue
            watch.look_at_update(role, plain_update.heard(answer))
        self.results.settle()

    # -- the pipeline: train, validate, save, be killed, resume, export

    def train(self) -> None:
        """Until a rank is killed on purpose."""
        self.before = PipelineWatch(self.results, self.view, self.config, self.tokenizer, self.own)
        victim = self.pool.infos[-1]
        self.before.kill_pid = victim.pid
        with self.clock("pipeline"):
            try:
                self._train(self.config, self.pool, self.before)
                death = Outcome(False, f"{victim} was killed and the run did not notice: {look_at(UnderWay.take)}")
            except (TrainerError, ray.exceptions.RayError) as error:
                if not self.before.killed:
                    raise
                death = whole_run.death_named(error, str(victim))
            finally:
                self.pool.close()
        self._look_at_steps("pipeline run", [*self.before.metrics], range(1, KILL_AT + 1))
        self.results.add("killed-rank", lambda: death)
        self.results.settle()

    def resume(self) -> None:
        """In new processes, from the last checkpoint to the end."""
        self.after = PipelineWatch(self.results, self.view, self.config, self.tokenizer, self.own)
        self.after.rows = self.before.rows
        with self.clock("resume"):
            pool = WorkerPool(self.config, name="smoke-resumed")
            try:
                self._train(self.config, pool, self.after, connect=True)
            finally:
                pool.close()
        engine = self.config.actor_rollout_ref.rollout.name
        before, after = self.before, self.after
        self.results.add("resume", lambda: whole_run.resumed_equal(before.metrics, after.metrics, engine))
        self.results.add("resume", lambda: whole_run.resumed_weights(before.weights, after.weights, engine))
        self._look_at_steps("resumed run", [*after.metrics], range(SAVE_AT + 1, LAST + 1))
        saved = [int(folder.name.rpartition("_")[2]) for folder in (*before.saved_folders, *after.saved_folders)]
        due = [step for step in range(1, LAST + 1) if step % SAVE_AT == 0 or step == LAST]
        self.results.add("steps", lambda: whole_run.kept_when_due("checkpoints", saved, due))
        self._look_at_validations()
        self.results.settle()

    def _look_at_steps(self, stage: str, done: Sequence[int], wanted: Sequence[int]) -> None:
        self.results.add("steps", lambda: whole_run.steps_done(stage, done, wanted))

    def _look_at_validations(self) -> None:
        """Before the first step, after resuming, and at the end."""
        folder, log = self.folder / VALIDATIONS, self.checkpoints / "metrics.jsonl"
        done = sorted(int(path.stem) for path in folder.glob("*.jsonl"))
        self.results.add("steps", lambda: whole_run.kept_when_due("validations", done, [0, SAVE_AT, LAST]))
        self.results.add("validation-rows", lambda: validated.means_as_counted(self.seed))
        assert self.own is not None
        for found in validations.findings(folder, log, self.config, self.tokenizer, self.own.score_again):
            self.results.add("validation-rows", lambda found=found: found)  # type: ignore[misc]

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
            return Outcome(False, f"exported weights differ from the actor's: {named(odd)}: {look_at(export)}")
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
