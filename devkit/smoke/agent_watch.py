"""The observer of a run with conversations: what each step shows goes to the checks, and a rank is killed in time."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

from devkit.records import StepRecord
from devkit.smoke.checks import conversations, recorded, updates, weights
from devkit.smoke.checks.outcome import Digests, Outcome, step_reward
from devkit.smoke.conversing import KILL_AT
from devkit.smoke.results import Results
from devkit.smoke.view import SmokeView
from trainer import ppo
from trainer.agent.again import environment_facts
from trainer.agent.source import Source, makes_tasks
from trainer.agent.speech import CHAT, PLAIN
from trainer.config.schema import Config
from trainer.group import WorkerGroup
from trainer.records import TrainBatch
from trainer.run import Observer


class AgentWatch(Observer):
    """Follows one run of conversations."""

    def __init__(self, results: Results, view: SmokeView, config: Config, tokenizer: Any) -> None:
        self.results, self.view, self.config, self.tokenizer = results, view, config, tokenizer
        self.steps: list[StepRecord] = []
        self.metrics: dict[int, dict[str, float]] = {}
        self.weights: dict[int, dict[str, Digests]] = {}  # after each step
        self.kill_pid: int | None = None  # the rank to kill after step KILL_AT; None: none
        self.killed = False
        env = config.agent.env
        assert env is not None
        facts = environment_facts(config, None)
        self._source = Source(env, None, facts["kwargs"]) if makes_tasks(env) else None
        self._style = CHAT if tokenizer.chat_template and makes_tasks(env) else PLAIN

    def started(self, workers: WorkerGroup, progress: ppo.Progress) -> None:
        if progress.step:  # what a checkpoint held is in the engines before they generate
            self._look_at_weights(workers, progress.step)

    def stepped(self, workers: WorkerGroup, result: ppo.StepResult) -> None:
        """The findings of this step. Under `--fail-fast`, raises FirstFailure if any was bad."""
        step, batch, add = result.progress.step, result.batch, self.results.add
        seen = batch.experience
        self.view.step(step, {"reward_mean": step_reward(result), **result.metrics})
        self.steps.append(StepRecord(step, step_reward(result), dict(result.metrics)))
        self.metrics[step] = dict(result.metrics)
        add("turns", lambda: conversations.turns_as_played(seen.rollout, self.tokenizer))
        most = self.config.agent.max_observation_tokens
        add("glue", lambda: conversations.glue(seen.rollout, self.tokenizer, self._style, most))
        add("turn-rewards", lambda: conversations.rewards_of_turns(seen, self._source))
        add("rollout-logprobs", lambda: recorded.rollout_logprobs(seen.rollout, seen.old_logp_BT))
        if result.actor:
            actor = result.actor
            add("first-mini-batch", lambda: updates.first_mini_batch(actor))
            add("gradients", lambda: updates.gradients("actor", actor, batch, unmoved=step == 1))
        if step == 1:
            add("mask-proof", lambda: self._mask_proof(workers, batch))
        self._look_at_weights(workers, step)
        self.results.settle()
        if step == KILL_AT and self.kill_pid is not None:
            os.kill(self.kill_pid, signal.SIGKILL)  # the next phase finds out
            self.killed = True

    def saved(self, folder: Path) -> None:
        """Nothing to look at."""

    def _mask_proof(self, workers: WorkerGroup, batch: TrainBatch) -> Outcome:
        """On the real ranks: their own losses and gradients, of conversations that end with an observation."""
        pair = conversations.cut_behind_first_answer(batch, len(self.tokenizer))
        if pair is None:
            return Outcome(None, "no conversation of the first step had a second turn")
        rows = self.config.actor_rollout_ref.actor.ppo_mini_batch_size * self.config.actor_rollout_ref.rollout.n
        before, after = (workers.probe_gradient("actor", each, rows) for each in pair)
        return conversations.mask_proof(before, after, len(pair[0]))

    def _look_at_weights(self, workers: WorkerGroup, step: int) -> None:
        actor, engine = workers.checksums("actor"), workers.checksums("engine")
        self.weights[step] = {"actor": actor}
        self.results.add("weight-sync", partial(weights.synced, actor, engine))
        self.results.add("ranks-equal", partial(weights.ranks_equal, actor, engine))
