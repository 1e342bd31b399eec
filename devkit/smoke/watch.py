"""Observers that feed the checks while the trainer runs: one for the pipeline run, one for the learning gate."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import torch

from devkit.records import StepRecord
from devkit.smoke import plain_adamw, plain_update, recompute
from devkit.smoke.checks import draws, formulas, metrics, plan, prompts, recorded, updates, weights, whole_run
from devkit.smoke.checks.outcome import Digests, Outcome, step_reward
from devkit.smoke.draw_trial import DrawTrial
from devkit.smoke.file_rows import FileRows, RowId
from devkit.smoke.results import Results
from devkit.smoke.shrink import KILL_AT
from devkit.smoke.users import UsersOwn
from devkit.smoke.view import SmokeView
from trainer import ppo
from trainer.config.schema import Config
from trainer.group import WorkerGroup
from trainer.records import LogProbs, Rollout, TrainBatch, UpdateReport
from trainer.rewards import build_scorer, read_source, score_all
from trainer.rows import take
from trainer.run import Observer
from trainer.teams import ranks_of

# Of an update on made-up numbers, each of what the one before it leads to.
UPDATE_CHECKS = {
    "forward": updates.forward_as_computed,
    "losses": updates.losses_as_computed,
    "loss-gradient": updates.gradient_as_computed,
    "adamw": updates.moved_as_computed,
}
LOOK_EVERY = 5  # steps of the gate between looks at what an update did: each costs two forward passes


class StepWatch(Observer):
    """What both runs are looked at for: all that a step's own record shows, and the weights now and then."""

    look_every = 1  # steps between looks at the weights

    def __init__(self, results: Results, view: SmokeView, config: Config, tokenizer: Any) -> None:
        self.results = results
        self.view = view
        self.config = config
        self.tokenizer = tokenizer
        self.files = FileRows(config.data, tokenizer)
        self.rows: dict[int, list[RowId]] = {}  # of the training data, that each step had
        self.trained: dict[str, plan.Steps] = {}  # by role: the rows of its newest update
        self.final_actor: Digests = []
        self._reference: Digests = []
        self._kl_coef = config.algorithm.kl_ctrl.kl_coef  # by its formula, from step to step
        self._moved: set[str] = set()  # the roles that an update has moved

    def started(self, workers: WorkerGroup, progress: ppo.Progress) -> None:
        self._moved = {"actor", "critic"} if progress.step else set()
        if progress.step and self.config.algorithm.kl_ctrl.type != "fixed":
            self._kl_coef = progress.kl_coef  # which the check of resuming compares
        if self.config.uses_reference:
            self._reference = workers.checksums("reference")
        if progress.step:  # what a checkpoint held is in the engines before they generate
            self._look_at_weights(workers)

    def stepped(self, workers: WorkerGroup, result: ppo.StepResult) -> None:
        """The findings of this step. Under `--fail-fast`, raises FirstFailure if any was bad."""
        step = result.progress.step
        self.view.step(step, {"reward_mean": step_reward(result), **result.metrics})
        self._look_at_record(workers, result)
        if step % self.look_every == 1 % self.look_every:
            self._look_at_weights(workers)
        self.look(workers, result)
        self.results.settle()

    def look(self, workers: WorkerGroup, result: ppo.StepResult) -> None:
        """What only one of the runs is looked at for."""

    def _look_at_record(self, workers: WorkerGroup, result: ppo.StepResult) -> None:
        add, batch = self.results.add, result.batch
        seen = batch.experience
        add("rollout-logprobs", lambda: recorded.rollout_logprobs(seen.rollout, seen.old_logp_BT))
        longest = self.config.data.max_response_length
        add("masks", lambda: recorded.masks(batch, self.tokenizer.eos_token_id, longest))
        kl_coef, algorithm = self._kl_coef, self.config.algorithm
        self._kl_coef = recompute.next_kl_coef(kl_coef, seen, algorithm)
        if algorithm.use_kl_in_reward:
            told = result.progress
            add("kl-in-reward", lambda: recorded.kl_coef_as_configured(told.step, told.kl_coef, self._kl_coef))
        add("kl-in-reward", lambda: recorded.kl_in_reward(batch, kl_coef, algorithm))
        importance = recompute.importance_weights(seen, algorithm.rollout_correction)
        add("advantages", lambda: recorded.weights_as_computed(batch, importance))
        add(
            "advantages",
            lambda: recorded.advantages_as_computed(batch, recompute.advantages(batch, kl_coef, algorithm)),
        )
        if result.progress.step == 1:
            add("reference", lambda: recorded.reference_at_start(seen))
        if result.actor:
            actor = result.actor
            add("first-mini-batch", lambda: updates.first_mini_batch(actor))
        if critic := result.critic:
            first = workers.order(batch, self.config.critic, result.progress.step)[0].tolist()
            add("first-mini-batch", lambda: updates.first_values(critic, batch, first))
        for role, report in reports(result):
            add("gradients", partial(updates.gradients, role, report, batch, unmoved=role not in self._moved))
            self._moved |= {role} if report.lr else set()
            rate = self._rate(role, result.progress.step)
            add("learning-rate", partial(updates.rate_as_configured, role, report, rate))

        add("metrics", lambda: self._metrics_as_counted(result))
        for role in ("actor", "critic"):
            add("mini-batches", lambda role=role: self._trained_as_planned(role, workers, result))  # type: ignore[misc]
        self._look_at_prompts(result.progress.step, seen.rollout)

    def _metrics_as_counted(self, result: ppo.StepResult) -> Outcome:
        if taken := {"score", "rewards", "advantages", "returns", "values"} & set(result.scores.extras):
            return Outcome(None, f"the reward function reports a number called {min(taken)}, as the trainer does")
        return metrics.as_counted(result.metrics, result.batch, reports(result), self.config.data)

    def _look_at_prompts(self, step: int, rollout: Rollout) -> None:
        """Their order, which of them came back, and their tokens."""
        add, asked, n = self.results.add, self.files.plan, self.config.actor_rollout_ref.rollout.n
        rows, ranks = prompts.rows_of(rollout), ranks_of(self.config, "rollout")[:: self.config.ranks_per_engine]
        add("prompts", lambda: prompts.came_back(rollout.prompts.samples, step, asked, n, ranks))
        add("prompt-tokens", lambda: prompts.as_in_file(rollout.prompts, self.files))
        if prompts.twice(rollout.prompts.samples):
            add("data-order", lambda: Outcome(None, "samples came back twice (see prompts)"))
            return
        if step in self.rows:
            add("data-order", lambda: prompts.goes_on(step, self.rows[step], rows))
        self.rows[step] = rows
        add("data-order", lambda: prompts.in_order(self.rows, asked))

    def _trained_as_planned(self, role: str, workers: WorkerGroup, result: ppo.StepResult) -> Outcome:
        step, report = result.progress.step, dict(reports(result)).get(role)
        if report is None:
            return plan.no_update(role, step, wanted=plan.is_updated(role, self.config, step))
        ranks = [ranks_of(self.config, role)[speaker] for speaker in workers.grid_of(role).speakers()]
        samples, wanted = result.batch.experience.rollout.prompts.samples, plan.plan_of(role, self.config)
        found = plan.trained_as_planned(role, report, samples, wanted, ranks)
        before, self.trained[role] = self.trained.get(role), plan.rows_of(report, samples)
        if found.ok and before is not None:
            anew = plan.shuffled_anew(role, before, self.trained[role], wanted)
            return anew if anew.ok is False else found
        return found

    def _rate(self, role: str, step: int) -> float:
        """Of the role's update in that step, by the formula; `critic_warmup` of N leaves out N - 1 of the actor's."""
        trainer = self.config.trainer
        optim = self.config.actor_rollout_ref.actor.optim if role == "actor" else self.config.critic.optim
        late = max(0, trainer.critic_warmup - 1) if role == "actor" else 0
        update = step - 1 - late
        return optim.lr * plain_adamw.lr_factor(update, optim, trainer.total_training_steps or 0)

    def _look_at_weights(self, workers: WorkerGroup) -> None:
        actor, engine = workers.checksums("actor"), workers.checksums("engine")
        self.final_actor = actor
        self.results.add("weight-sync", lambda: weights.synced(actor, engine))
        self.results.add("ranks-equal", lambda: weights.ranks_equal(actor, engine))
        if self._reference:
            now = workers.checksums("reference")
            self.results.add("reference", lambda: weights.unchanged(self._reference, now))


class PipelineWatch(StepWatch):
    """Keeps what the pipeline run showed, and kills a rank when the time has come."""

    def __init__(
        self, results: Results, view: SmokeView, config: Config, tokenizer: Any, own: UsersOwn | None = None
    ) -> None:
        super().__init__(results, view, config, tokenizer)
        self.own = own
        self.metrics: dict[int, dict[str, float]] = {}
        self.weights: dict[int, dict[str, Digests]] = {}  # after each step, by role
        self.saved_folders: list[Path] = []
        self.kill_pid: int | None = None  # the rank to kill after step KILL_AT; None: none
        self.killed = False

    def look(self, workers: WorkerGroup, result: ppo.StepResult) -> None:
        step = result.progress.step
        self.metrics[step] = dict(result.metrics)
        self.weights[step] = {"actor": self.final_actor}
        if self.config.uses_critic:
            self.weights[step]["critic"] = workers.checksums("critic")
        if self.own is not None:
            self.own.look(workers, result.batch.experience)
        if step == KILL_AT and self.kill_pid is not None:
            os.kill(self.kill_pid, signal.SIGKILL)  # the next phase finds out
            self.killed = True

    def saved(self, folder: Path) -> None:
        self.saved_folders.append(folder)


class GateWatch(StepWatch):
    """Follows the learning gate's reward, and looks at what updates do."""

    look_every = LOOK_EVERY

    def __init__(
        self, results: Results, view: SmokeView, config: Config, tokenizer: Any, folder: Path, trial: DrawTrial
    ) -> None:
        """`folder` takes the saves around the update on a made-up mini-batch."""
        super().__init__(results, view, config, tokenizer)
        self.folder = folder
        self.inert: dict[str, tuple[str, ...]] = {}  # settings that switched themselves off, by role
        self.made_up: dict[str, UpdateReport] = {}  # what that update reported, by role
        self.trial = trial
        self.scorer = build_scorer(config.custom_reward_function, read_source(config.custom_reward_function))
        self.steps: list[StepRecord] = []
        self.batches: list[TrainBatch] = []
        self.policy: list[tuple[TrainBatch, LogProbs]] = []
        self._shards: dict[str, Digests] = {}  # of models that no update was seen of
        self._engine: Digests = []  # after that update, of an actor with adapters

    def started(self, workers: WorkerGroup, progress: ppo.Progress) -> None:
        super().started(workers, progress)
        self._shards = {role: workers.shard_checksums(role) for role in self._roles}
        self.trial.begin(workers)

    @property
    def _roles(self) -> tuple[str, ...]:
        return ("actor", "critic") if self.config.uses_critic else ("actor",)

    def look(self, workers: WorkerGroup, result: ppo.StepResult) -> None:
        batch, step = result.batch, result.progress.step
        self.steps.append(StepRecord(step, step_reward(result), dict(result.metrics)))
        self.batches.append(batch)
        self._look_at_optimizers(workers, result)
        if step == 1:
            self.results.add("formulas", lambda: formulas.as_published(self.config.trainer.seed))
            self._look_at_splits(workers, plain_update.shortened(batch))
            self.inert = {role: workers.inert(role) for role in self._roles}
            self._look_at_draws(batch.experience.rollout)
        if step % self.look_every == 1:
            self.results.add("rewards", lambda: recorded.rewards(batch.experience, self._scores(batch)))
            if result.actor:
                self.policy.append((batch, workers.log_probs(batch.experience.rollout).now()))
        if step == self.config.trainer.total_training_steps:
            self._update_on_made_up_numbers(workers, batch, step + 1)

    def conclude(self, margin: float, window: int) -> None:
        """The findings on the whole run."""
        self.results.add("advantages", lambda: recorded.advantages_differ(self.batches))
        self.results.add("policy-update", lambda: whole_run.policy_follows_advantages(self.policy))
        self.results.add("critic-update", lambda: whole_run.critic_learns(self.batches[-5:]))
        rewards = [step.reward_mean for step in self.steps]
        self.results.add("learning", lambda: whole_run.learned(rewards, margin, window))
        self.results.settle()

    def _look_at_optimizers(self, workers: WorkerGroup, result: ppo.StepResult) -> None:
        """Once for each model: after its first update that had a gradient and a rate."""
        for role, report in reports(result):
            if role in self._shards and report.lr and any(step["grad_norm"] for step in report.steps):
                before, after = self._shards.pop(role), workers.shard_checksums(role)
                self.results.add(
                    "optimizer-step",
                    lambda role=role, before=before, after=after: weights.optimizer_moved(role, before, after),  # type: ignore[misc]
                )

    def _look_at_splits(self, workers: WorkerGroup, batch: TrainBatch) -> None:
        for role in self._roles:
            config = self.config.actor_rollout_ref.actor if role == "actor" else self.config.critic
            rows, copies = (
                config.ppo_mini_batch_size * self.config.actor_rollout_ref.rollout.n,
                workers.grid_of(role).copies,
            )
            per_copy, first = rows // copies, take(batch, torch.arange(rows))
            whole = workers.probe_gradient(role, first, per_copy)
            parts = workers.probe_gradient(role, first, max(1, per_copy // 4))
            if copies > 1:  # so that each rank has other rows
                other = workers.probe_gradient(role, take(first, torch.arange(rows).flip(0)), per_copy)
                self.results.add("micro-batches", partial(updates.sharing_invariance, role, other, whole))
            self.results.add(
                "micro-batches",
                lambda role=role, parts=parts, whole=whole: updates.split_invariance(role, parts, whole),  # type: ignore[misc]
            )

    def _update_on_made_up_numbers(self, workers: WorkerGroup, batch: TrainBatch, step: int) -> None:
        """The last thing of the gate, for its weights are of no use any more: a real update between two saves."""
        if why := self._why_no_saves():
            self.pass_over_update(why)
            return
        self.folder.mkdir()
        made = {role: self._made_up(role, workers, batch, step) for role in self._roles}
        workers.save(str(self.folder / "before"))
        self.made_up = {role: getattr(workers, f"update_{role}")(made[role], step).now() for role in made}
        workers.save(str(self.folder / "after"))
        if self.config.actor_rollout_ref.model.lora_rank:
            workers.sync_weights()
            self._engine = workers.checksums("engine")

    def _made_up(self, role: str, workers: WorkerGroup, batch: TrainBatch, seed: int) -> TrainBatch:
        """One mini-batch of the role, which is written down with what its model says of it."""
        config = self.config.actor_rollout_ref.actor if role == "actor" else self.config.critic
        count = config.ppo_mini_batch_size * self.config.actor_rollout_ref.rollout.n
        rows = plain_update.shortened(take(batch, torch.arange(count)))
        rollout = rows.experience.rollout
        logp_BT = workers.log_probs(rollout).now().logp_BT
        values_BT = workers.values(rollout).now() if self.config.uses_critic else None
        made = plain_update.made_up(rows, logp_BT, values_BT, self.config, seed)
        first = role == "actor" and self.config.uses_reference
        reference_BT = workers.ref_log_probs(rollout).now() if first else None
        said_BT = logp_BT if values_BT is None or role == "actor" else values_BT
        plain_update.write(made, said_BT, self.folder, role, reference_BT)
        return made

    def _why_no_saves(self) -> str:
        if self.config.uses_megatron:
            return "strategy=megatron stores its optimizer in a different form"
        keeps = "optimizer" in self.config.actor_rollout_ref.actor.checkpoint.save_contents
        return "" if keeps else "checkpoint.save_contents does not include the optimizer"

    def pass_over_update(self, why: str) -> None:
        for name in UPDATE_CHECKS:
            self.results.add(name, lambda: Outcome(None, why))

    def _look_at_draws(self, first: Rollout) -> None:
        for name, found in draws.findings(self.trial.end(first, self.config)).items():
            self.results.add(name, lambda found=found: found)  # type: ignore[misc]

    def look_at_update(self, role: str, expected: plain_update.Expected) -> None:
        """`expected`: the update on made-up numbers, as it comes out in plain torch. What follows is no finding."""
        if (merged := expected.merged) is not None:
            self.results.add("weight-sync", lambda: weights.merged_as_computed(self._engine, merged))
        if expected.reference:
            reference = expected.reference
            self.results.add("reference", lambda: updates.reference_as_computed(reference))
        spoiled = ""
        for name, check in UPDATE_CHECKS.items():
            found = Outcome(None, spoiled) if spoiled else check(role, self.made_up[role], expected)
            self.results.add(name, lambda found=found: found)  # type: ignore[misc]
            spoiled = spoiled or (f"the {role}'s update already differs (see {name})" if found.ok is False else "")

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
