"""Observers that feed the checks while the trainer runs: one for the pipeline run, one for the learning gate."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from devkit.records import CheckResult, StepRecord
from devkit.smoke import checks
from devkit.smoke.checks import Outcome
from devkit.smoke.shrink import KILL_AT
from devkit.smoke.view import SmokeView
from trainer import ppo
from trainer.config.schema import Config
from trainer.group import WorkerGroup
from trainer.records import LogProbs, TrainBatch
from trainer.rewards import build_scorer, read_source, score_all
from trainer.run import Observer

LOOK_EVERY = 5  # steps of the gate between looks at what an update did: each costs two forward passes


class Results:
    """What the checks found so far: a failure stays, whatever later steps show."""

    def __init__(self) -> None:
        self._found: dict[str, CheckResult] = {}

    def add(self, name: str, look: Callable[[], Outcome]) -> None:
        """Carries out a check and keeps the first failure, else the latest finding."""
        started = time.perf_counter()
        outcome = look()
        seconds = time.perf_counter() - started
        status = "skip" if outcome.ok is None else "pass" if outcome.ok else "fail"
        known = self._found.get(name)
        if known is None:
            self._found[name] = CheckResult(name, status, outcome.detail, seconds)  # type: ignore[arg-type]
        elif known.status == "fail" or (status == "skip" and known.status == "pass"):
            self._found[name] = replace(known, seconds=known.seconds + seconds)
        else:
            self._found[name] = CheckResult(name, status, outcome.detail, known.seconds + seconds)  # type: ignore[arg-type]

    def has(self, name: str) -> bool:
        return name in self._found

    @property
    def all(self) -> tuple[CheckResult, ...]:
        return tuple(self._found.values())


class PipelineWatch(Observer):
    """Looks at each step of the pipeline run, and kills a rank when the time has come."""

    def __init__(self, results: Results, view: SmokeView, config: Config, tokenizer: Any) -> None:
        self.results = results
        self.view = view
        self.config = config
        self.eos_id = tokenizer.eos_token_id
        self.metrics: dict[int, dict[str, float]] = {}
        self.saved_folders: list[Path] = []
        self.kill_pid: int | None = None  # the rank to kill in the step after KILL_AT; None: no longer
        self.final_actor: checks.Digests = []
        self._reference: checks.Digests = []
        self._kl_coef = 0.0

    def started(self, workers: WorkerGroup, progress: ppo.Progress) -> None:
        self._kl_coef = progress.kl_coef
        if self.config.uses_reference:
            self._reference = workers.checksums("reference")

    def stepped(self, workers: WorkerGroup, result: ppo.StepResult) -> None:
        add, batch, step = self.results.add, result.batch, result.progress.step
        seen = batch.experience
        self.view.step(step, {"reward_mean": checks.step_reward(result), **result.metrics})
        self.metrics[step] = dict(result.metrics)
        add("rollout-logprobs", lambda: checks.rollout_logprobs(seen.rollout, seen.old_logp_BT))
        add("masks", lambda: checks.masks(batch, self.eos_id))
        add("kl-in-reward", lambda: checks.kl_in_reward(batch, self._kl_coef, self.config.algorithm))
        self._kl_coef = result.progress.kl_coef
        if result.actor:
            actor = result.actor
            add("first-mini-batch", lambda: checks.first_mini_batch(actor))
        for role, report in (("actor", result.actor), ("critic", result.critic)):
            if report:
                add("gradients", lambda role=role, report=report: checks.gradients(role, report))  # type: ignore[misc]
        if step == 1:
            add("reference", lambda: checks.reference_at_start(seen))
            self._look_at_splits(workers, batch)
        self._look_at_weights(workers)
        if step == KILL_AT and self.kill_pid is not None:
            os.kill(self.kill_pid, signal.SIGKILL)  # the next phase finds out

    def saved(self, folder: Path) -> None:
        self.saved_folders.append(folder)

    def _look_at_weights(self, workers: WorkerGroup) -> None:
        actor, engine = workers.checksums("actor"), workers.checksums("engine")
        self.final_actor = actor
        self.results.add("weight-sync", lambda: checks.synced(actor, engine))
        self.results.add("ranks-equal", lambda: checks.ranks_equal(actor, engine))
        if self._reference:
            now = workers.checksums("reference")
            self.results.add("reference", lambda: checks.unchanged(self._reference, now))

    def _look_at_splits(self, workers: WorkerGroup, batch: TrainBatch) -> None:
        rows = self.config.actor_rollout_ref.actor.ppo_mini_batch_size * self.config.actor_rollout_ref.rollout.n
        per_rank = rows // self.config.world_size
        for role in ("actor", "critic") if self.config.uses_critic else ("actor",):
            whole = workers.probe_gradient(role, batch, per_rank)
            parts = workers.probe_gradient(role, batch, max(1, per_rank // 4))
            self.results.add(
                "micro-batches",
                lambda role=role, parts=parts, whole=whole: checks.split_invariance(role, parts, whole),  # type: ignore[misc]
            )


class GateWatch(Observer):
    """Follows the learning gate's reward, and now and then what an update did."""

    def __init__(self, results: Results, view: SmokeView, config: Config, tokenizer: Any) -> None:
        self.results = results
        self.view = view
        self.config = config
        self.tokenizer = tokenizer
        self.scorer = build_scorer(config.custom_reward_function, read_source(config.custom_reward_function))
        self.steps: list[StepRecord] = []
        self.batches: list[TrainBatch] = []
        self.policy: list[tuple[TrainBatch, LogProbs]] = []

    def stepped(self, workers: WorkerGroup, result: ppo.StepResult) -> None:
        batch, step = result.batch, result.progress.step
        self.steps.append(StepRecord(step, checks.step_reward(result), dict(result.metrics)))
        self.view.step(step, {"reward_mean": self.steps[-1].reward_mean, **result.metrics})
        self.batches.append(batch)
        if step % LOOK_EVERY != 1:
            return
        rollout = batch.experience.rollout
        self.results.add("rewards", lambda: checks.rewards(batch.experience, self._scores(batch)))
        if result.actor:
            self.policy.append((batch, workers.log_probs(rollout)))

    def conclude(self, margin: float, window: int) -> None:
        """The findings on the whole run."""
        self.results.add("advantages", lambda: checks.advantages_follow_rewards(self.batches))
        self.results.add("policy-update", lambda: checks.policy_follows_advantages(self.policy))
        self.results.add("critic-update", lambda: checks.critic_learns(self.batches[-5:]))
        rewards = [step.reward_mean for step in self.steps]
        self.results.add("learning", lambda: checks.learned(rewards, margin, window))

    def _scores(self, batch: TrainBatch) -> torch.Tensor:
        """Each response scored anew, here and alone."""
        rollout = batch.experience.rollout
        responses = [
            self.tokenizer.decode(ids[mask.bool()].tolist(), skip_special_tokens=True)
            for ids, mask in zip(rollout.response_BT, rollout.mask_BT, strict=True)
        ]
        return torch.tensor(score_all(responses, rollout.prompts.rows, self.scorer).scores)
