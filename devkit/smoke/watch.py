"""Observers that feed the checks while the trainer runs: one for the pipeline run, one for the learning gate."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch

from devkit.records import StepRecord
from devkit.smoke import checks
from devkit.smoke.results import Results
from devkit.smoke.shrink import KILL_AT
from devkit.smoke.view import SmokeView
from trainer import ppo
from trainer.config.schema import Config
from trainer.group import WorkerGroup
from trainer.records import LogProbs, TrainBatch, UpdateReport
from trainer.rewards import build_scorer, read_source, score_all
from trainer.run import Observer

LOOK_EVERY = 5  # steps of the gate between looks at what an update did: each costs two forward passes


class StepWatch(Observer):
    """What both runs are looked at for: all that a step's own record shows, and the weights now and then."""

    look_every = 1  # steps between looks at the weights

    def __init__(self, results: Results, view: SmokeView, config: Config, tokenizer: Any) -> None:
        self.results = results
        self.view = view
        self.config = config
        self.tokenizer = tokenizer
        self.final_actor: checks.Digests = []
        self._reference: checks.Digests = []
        self._kl_coef = 0.0

    def started(self, workers: WorkerGroup, progress: ppo.Progress) -> None:
        self._kl_coef = progress.kl_coef
        if self.config.uses_reference:
            self._reference = workers.checksums("reference")

    def stepped(self, workers: WorkerGroup, result: ppo.StepResult) -> None:
        """The findings of this step. Under `--fail-fast`, raises FirstFailure if any was bad."""
        step = result.progress.step
        self.view.step(step, {"reward_mean": checks.step_reward(result), **result.metrics})
        self._look_at_record(result)
        if step % self.look_every == 1 % self.look_every:
            self._look_at_weights(workers)
        self.look(workers, result)
        self.results.settle()

    def look(self, workers: WorkerGroup, result: ppo.StepResult) -> None:
        """What only one of the runs is looked at for."""

    def _look_at_record(self, result: ppo.StepResult) -> None:
        add, batch = self.results.add, result.batch
        seen = batch.experience
        add("rollout-logprobs", lambda: checks.rollout_logprobs(seen.rollout, seen.old_logp_BT))
        add("masks", lambda: checks.masks(batch, self.tokenizer.eos_token_id))
        add("kl-in-reward", lambda: checks.kl_in_reward(batch, self._kl_coef, self.config.algorithm))
        self._kl_coef = result.progress.kl_coef
        if result.progress.step == 1:
            add("reference", lambda: checks.reference_at_start(seen))
        if result.actor:
            actor = result.actor
            add("first-mini-batch", lambda: checks.first_mini_batch(actor))
        for role, report in reports(result):
            add("gradients", lambda role=role, report=report: checks.gradients(role, report, batch))  # type: ignore[misc]

    def _look_at_weights(self, workers: WorkerGroup) -> None:
        actor, engine = workers.checksums("actor"), workers.checksums("engine")
        self.final_actor = actor
        self.results.add("weight-sync", lambda: checks.synced(actor, engine))
        self.results.add("ranks-equal", lambda: checks.ranks_equal(actor, engine))
        if self._reference:
            now = workers.checksums("reference")
            self.results.add("reference", lambda: checks.unchanged(self._reference, now))


class PipelineWatch(StepWatch):
    """Keeps what the pipeline run showed, and kills a rank when the time has come."""

    def __init__(self, results: Results, view: SmokeView, config: Config, tokenizer: Any) -> None:
        super().__init__(results, view, config, tokenizer)
        self.metrics: dict[int, dict[str, float]] = {}
        self.saved_folders: list[Path] = []
        self.kill_pid: int | None = None  # the rank to kill after step KILL_AT; None: none
        self.killed = False

    def look(self, workers: WorkerGroup, result: ppo.StepResult) -> None:
        step = result.progress.step
        self.metrics[step] = dict(result.metrics)
        if step == KILL_AT and self.kill_pid is not None:
            os.kill(self.kill_pid, signal.SIGKILL)  # the next phase finds out
            self.killed = True

    def saved(self, folder: Path) -> None:
        self.saved_folders.append(folder)


class GateWatch(StepWatch):
    """Follows the learning gate's reward, and looks at what updates do."""

    look_every = LOOK_EVERY

    def __init__(self, results: Results, view: SmokeView, config: Config, tokenizer: Any) -> None:
        super().__init__(results, view, config, tokenizer)
        self.scorer = build_scorer(config.custom_reward_function, read_source(config.custom_reward_function))
        self.steps: list[StepRecord] = []
        self.batches: list[TrainBatch] = []
        self.policy: list[tuple[TrainBatch, LogProbs]] = []
        self._shards: dict[str, checks.Digests] = {}  # of models that no update was seen of

    def started(self, workers: WorkerGroup, progress: ppo.Progress) -> None:
        super().started(workers, progress)
        self._shards = {role: workers.shard_checksums(role) for role in self._roles}

    @property
    def _roles(self) -> tuple[str, ...]:
        return ("actor", "critic") if self.config.uses_critic else ("actor",)

    def look(self, workers: WorkerGroup, result: ppo.StepResult) -> None:
        batch, step = result.batch, result.progress.step
        self.steps.append(StepRecord(step, checks.step_reward(result), dict(result.metrics)))
        self.batches.append(batch)
        self._look_at_optimizers(workers, result)
        if step == 1:
            self._look_at_splits(workers, batch)
        if step % self.look_every == 1:
            self.results.add("rewards", lambda: checks.rewards(batch.experience, self._scores(batch)))
            if result.actor:
                self.policy.append((batch, workers.log_probs(batch.experience.rollout).now()))

    def conclude(self, margin: float, window: int) -> None:
        """The findings on the whole run."""
        self.results.add("advantages", lambda: checks.advantages_follow_rewards(self.batches))
        self.results.add("policy-update", lambda: checks.policy_follows_advantages(self.policy))
        self.results.add("critic-update", lambda: checks.critic_learns(self.batches[-5:]))
        rewards = [step.reward_mean for step in self.steps]
        self.results.add("learning", lambda: checks.learned(rewards, margin, window))
        self.results.settle()

    def _look_at_optimizers(self, workers: WorkerGroup, result: ppo.StepResult) -> None:
        """Once for each model: after its first update that had a gradient."""
        for role, report in reports(result):
            if role in self._shards and any(step["grad_norm"] for step in report.steps):
                before, after = self._shards.pop(role), workers.shard_checksums(role)
                self.results.add(
                    "optimizer-step",
                    lambda role=role, before=before, after=after: checks.optimizer_moved(role, before, after),  # type: ignore[misc]
                )

    def _look_at_splits(self, workers: WorkerGroup, batch: TrainBatch) -> None:
        rows = self.config.actor_rollout_ref.actor.ppo_mini_batch_size * self.config.actor_rollout_ref.rollout.n
        for role in self._roles:
            per_copy = rows // workers.grid_of(role).copies
            whole = workers.probe_gradient(role, batch, per_copy)
            parts = workers.probe_gradient(role, batch, max(1, per_copy // 4))
            self.results.add(
                "micro-batches",
                lambda role=role, parts=parts, whole=whole: checks.split_invariance(role, parts, whole),  # type: ignore[misc]
            )

    def _scores(self, batch: TrainBatch) -> torch.Tensor:
        """Each response scored anew, here and alone."""
        rollout = batch.experience.rollout
        responses = [
            self.tokenizer.decode(ids[mask.bool()].tolist(), skip_special_tokens=True)
            for ids, mask in zip(rollout.response_BT, rollout.mask_BT, strict=True)
        ]
        return torch.tensor(score_all(responses, rollout.prompts.rows, self.scorer).scores)


def reports(result: ppo.StepResult) -> list[tuple[str, UpdateReport]]:
    """What the updates of a step reported, by role."""
    return [(role, report) for role, report in (("actor", result.actor), ("critic", result.critic)) if report]
