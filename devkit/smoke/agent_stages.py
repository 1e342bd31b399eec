"""The stages of `devkit smoke --agent`, over the trainer's own code: set up, learn and be killed, resume."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import ray

from devkit.records import StepRecord
from devkit.smoke import conversing
from devkit.smoke.agent_watch import AgentWatch
from devkit.smoke.checks import whole_run
from devkit.smoke.checks.outcome import Outcome, look_at
from devkit.smoke.cluster import SmokeCluster
from devkit.smoke.conversing import KILL_AT, LAST, MARGINS, SAVE_AT, WINDOW
from devkit.smoke.results import Results
from devkit.smoke.shrink import Plan
from devkit.smoke.view import SmokeView
from devkit.smoke.warm_process import WarmProcess
from trainer.cluster import WorkerPool
from trainer.config import check_command, load
from trainer.config.problems import ConfigErrors
from trainer.data.reading import read_data, total_steps
from trainer.errors import TrainerError
from trainer.retrieval.nodes import retrievers
from trainer.run import Observer, train
from trainer.tokenizer import load_tokenizer
from trainer.tracking import make_tracker
from trainer.waiting import UnderWay


class AgentStages:
    """One smoke test of conversations, from its first process to its last step."""

    def __init__(
        self,
        agent: str,
        plan: Plan,
        results: Results,
        view: SmokeView,
        folder: Path,
        cluster: SmokeCluster,
        warm: WarmProcess,
        clock: Callable[[str], AbstractContextManager[None]],
        seed: int,
    ) -> None:
        self.agent, self.plan, self.results, self.view = agent, plan, results, view
        self.folder, self.cluster, self.clock, self.seed = folder, cluster, clock, seed
        self.warm = warm
        self.steps: list[StepRecord] = []
        self.all = (self.set_up, self.learn, self.resume)

    def close(self) -> None:
        """Nothing is left open."""

    def set_up(self) -> None:
        """The model and its environment, and the driver joins Ray. Raises ConfigErrors."""
        with self.clock("set-up"):
            conversing.write(self.agent, self.folder / "agent", self.seed)
            own = (*self.plan.overrides, f"trainer.seed={self.seed}")
            words = conversing.words_of(self.agent, self.folder / "agent", own)
            found = check_command(words, self.plan.dialect)
            if found.problems:
                raise ConfigErrors(found.problems)
            self.config = load(words, self.plan.dialect).config
            self.tokenizer = load_tokenizer(self.config.actor_rollout_ref.model)
            self.cluster.connect()

    def learn(self) -> None:
        """From scratch, until a rank is killed on purpose."""
        self.before = AgentWatch(self.results, self.view, self.config, self.tokenizer)
        with self.clock("learning gate"):
            pool = WorkerPool(self.config, name="smoke")
            pool.connect()
            victim = pool.infos[-1]
            self.before.kill_pid = victim.pid
            self.steps = self.before.steps
            try:
                self._train(pool, self.before)
                death = Outcome(False, f"{victim} was killed and the run did not notice: {look_at(UnderWay.take)}")
            except (TrainerError, ray.exceptions.RayError) as error:
                if not self.before.killed:
                    raise
                death = whole_run.death_named(error, str(victim))
            finally:
                pool.close()
        done = [*self.before.metrics]
        self.results.add("steps", lambda: whole_run.steps_done("run", done, range(1, KILL_AT + 1)))
        rewards = [step.reward_mean for step in self.before.steps]
        self.results.add("learning", lambda: whole_run.learned(rewards, MARGINS[self.agent], WINDOW))
        self.results.add("killed-rank", lambda: death)
        self.results.settle()

    def resume(self) -> None:
        """In new processes, from the last checkpoint to the end."""
        before, after = self.before, AgentWatch(self.results, self.view, self.config, self.tokenizer)
        with self.clock("resume"):
            pool = WorkerPool(self.config, name="smoke-resumed")
            pool.connect()
            try:
                self._train(pool, after)
            finally:
                pool.close()
        self.results.add("resume", lambda: whole_run.resumed_equal(before.metrics, after.metrics, by_turns=True))
        self.results.add("resume", lambda: whole_run.resumed_weights(before.weights, after.weights))
        done = [*after.metrics]
        self.results.add("steps", lambda: whole_run.steps_done("resumed run", done, range(SAVE_AT + 1, LAST + 1)))
        self.results.settle()

    def _train(self, pool: WorkerPool, observer: Observer) -> None:
        data = read_data(self.config)
        tracker = make_tracker(self.config, total_steps(self.config, data.train))
        tracker.note = self.view.note  # type: ignore[method-assign]
        with retrievers(self.config, pool, self.view.note):
            train(self.config, pool, data, tracker, observer)
        tracker.close()
