"""What an update saw is told from its losses, and each mistake in who sees what has a name."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch

from devkit.smoke.checks import plan
from devkit.smoke.checks.outcome import Outcome, times
from tests.trainer.batches import train_batch
from trainer import ppo
from trainer.config import load
from trainer.config.schema import Config
from trainer.group import WorkerGroup
from trainer.interfaces import StepOutcome, Told
from trainer.records import TrainBatch, UpdateReport
from trainer.reports import noted
from trainer.rows import take
from trainer.teams import ranks_of

BASE = (
    "data.train_batch_size=16",
    "actor_rollout_ref.rollout.n=2",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",
    "critic.ppo_micro_batch_size_per_gpu=2",
    "trainer.nnodes=2",
    "trainer.n_gpus_per_node=2",
)
TWO_EPOCHS = "actor_rollout_ref.actor.ppo_epochs=2"
SHUFFLED = "actor_rollout_ref.actor.shuffle=True"
DYNAMIC = ("actor_rollout_ref.actor.use_dynamic_bsz=True", "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=2048")
MEGATRON = (
    "actor_rollout_ref.actor.strategy=megatron",
    "critic.strategy=megatron",
    "actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=2",
)


def config_of(*words: str) -> Config:
    return load([*BASE, *words]).config


def batch_of(config: Config) -> TrainBatch:
    """As after a rollout: each prompt n times, and uids that do not begin with 0."""
    prompts, n = config.data.train_batch_size, config.actor_rollout_ref.rollout.n
    batch = train_batch(prompts * n)
    rollout = batch.experience.rollout
    numbered = dataclasses.replace(
        rollout.prompts,
        uid_B=100 + torch.arange(prompts).repeat_interleave(n),
        sample_B=torch.arange(n).repeat(prompts),
    )
    seen = dataclasses.replace(batch.experience, rollout=dataclasses.replace(rollout, prompts=numbered))
    return dataclasses.replace(batch, experience=seen)


class Nothing:
    """A `Trainable` that computes the loss of each pass, and learns nothing."""

    device = torch.device("cpu")
    parameter_names = frozenset[str]()

    def accumulate(self, passes: Iterable[TrainBatch], totals: Any, loss: Any) -> Iterator[Told]:
        for rows in passes:
            yield loss(rows, totals)[1]

    def optimizer_step(self) -> StepOutcome:
        return StepOutcome(1.0, True, frozenset())

    def advance_schedule(self) -> float:
        return 0.1


class Ranks:
    """`Calls` whose ranks do the trainer's own update with such a model; all but a copy's speaker have no losses."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.world_size = config.world_size

    def all(self, phase: str, args: Any) -> list[Any]:
        return [arg and self._updated(*arg) for arg in args]

    def _updated(self, shares: Any) -> UpdateReport:
        return ppo.update(
            Nothing(), shares, lambda rows, totals: (torch.zeros(()), Told({"loss": torch.tensor(float(len(rows)))}))
        )


def looked_at(config: Config, role: str = "actor", spoil: Callable[[Any], Any] = lambda trained: trained) -> Outcome:
    batch = batch_of(config)
    workers = WorkerGroup(Ranks(config), config)
    report = getattr(workers, f"update_{role}")(batch, 3).now()
    ranks = [ranks_of(config, role)[speaker] for speaker in workers.grid_of(role).speakers()]
    report = dataclasses.replace(report, trained=spoil(report.trained))
    samples = batch.experience.rollout.prompts.samples
    return plan.trained_as_planned(role, report, samples, plan.plan_of(role, config), ranks)


@pytest.mark.parametrize("role", ["actor", "critic"])
@pytest.mark.parametrize(
    "words",
    [
        (),
        (TWO_EPOCHS,),
        (TWO_EPOCHS, SHUFFLED),
        (*DYNAMIC, SHUFFLED),
        ("trainer.balance_batch=False", TWO_EPOCHS),
        ("actor_rollout_ref.model.use_remove_padding=True",),
        ("trainer.device_mapping.actor=[1,3]", "trainer.device_mapping.rollout=[0,2]"),
        MEGATRON,
    ],
    ids=" ".join,
)
def test_right_updates_pass(words: tuple[str, ...], role: str) -> None:
    """On copies with and without balance, in micro-batches of rows and of tokens."""
    found = looked_at(config_of(*words), role)
    epochs = 2 if TWO_EPOCHS in words else 1
    steps = 2 * epochs
    assert found == Outcome(True, f"{role}: {steps} optimizer steps of 16 rows; each row {times(epochs)}, on one rank")


def test_report_is_of_the_rows_that_losses_had() -> None:
    """Whatever the plan says: a learner that leaves out a pass is told."""
    config = config_of()
    short = noted
    seen: list[tuple[int, int]] = []
    rows = take(batch_of(config), slice(3, 5))
    short(lambda rows, totals: (torch.zeros(()), {}), seen)(rows, ppo.totals_of(rows.advantages_BT))
    assert seen == [(101, 1), (102, 0)]


def fails(found: Outcome, words: str) -> None:
    assert found.ok is False, found.detail
    assert re.search(words, found.detail), found.detail
    assert re.search(r": look at \S+\.py:\d+$", found.detail)


def test_ppo_epochs_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ppo.mini_batches
    monkeypatch.setattr(ppo, "mini_batches", lambda batch, size, epochs, seed: right(batch, size, 1, seed))
    fails(looked_at(config_of(TWO_EPOCHS)), r"the actor's update did 2 of 4 .* ppo_epochs=2\): 1 epochs instead of 2")


def test_second_mini_batch_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ppo.mini_batches
    monkeypatch.setattr(ppo, "mini_batches", lambda *args: list(right(*args))[:1])
    fails(looked_at(config_of()), r"update did 1 of 2 optimizer steps .*: rows 16 to 31 never trained on")


def test_mini_batch_trained_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ppo.mini_batches
    monkeypatch.setattr(ppo, "mini_batches", lambda *args: list(right(*args))[:1] * 2)
    fails(looked_at(config_of()), r"step 2 trained on the mini-batch of step 1 again; rows 16 to 31 never trained on")
    monkeypatch.setattr(ppo, "mini_batches", lambda *args: [rows for rows in right(*args) for _ in range(2)])
    fails(looked_at(config_of()), r"update did 4 of 2 optimizer steps")


def test_first_rows_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each share, and of the batch."""
    monkeypatch.setattr(ppo, "take", lambda batch, index: take(batch, index[:1]))
    fails(looked_at(config_of()), r"step 1 of 2 saw 8 rows of 16: look at trainer/ppo\.py:")
    monkeypatch.undo()
    monkeypatch.setattr(ppo, "mini_batches", lambda batch, size, *_: [torch.arange(size) // 2 + i for i in range(2)])
    fails(looked_at(config_of()), "more than once|which rank 0 took too")


def test_a_rank_that_takes_another_ranks_rows() -> None:
    def spoil(trained: Any) -> Any:
        return tuple((step[0], step[0], *step[2:]) for step in trained)

    fails(looked_at(config_of(), spoil=spoil), r"step 1 of 2: rank 1 took .*, which rank 0 took too")
    words = ("trainer.device_mapping.actor=[1,3]", "trainer.device_mapping.rollout=[0,2]")
    fails(looked_at(config_of(*words), spoil=spoil), r"rank 3 took .*, which rank 1 took too")


def test_shares_of_other_sizes() -> None:
    def spoil(trained: Any) -> Any:
        return tuple((step[0] + step[1][:2], step[1][2:], *step[2:]) for step in trained)

    fails(looked_at(config_of(), spoil=spoil), r"step 1 of 2 saw 2 rows on rank 1 and 6 on rank 0")
    fails(looked_at(config_of(), spoil=lambda trained: tuple(step[:3] for step in trained)), "3 of 4 copies")


def test_rows_of_another_batch_and_rows_twice() -> None:
    def with_first(sample: Any) -> Callable[[Any], Any]:
        return lambda trained: tuple(((sample, *step[0][1:]), *step[1:]) for step in trained)

    fails(looked_at(config_of(), spoil=with_first((7, 0))), "saw a row on rank 0 that is not in this batch")

    def twice(trained: Any) -> Any:
        return tuple(((step[0][1], *step[0][1:]), *step[1:]) for step in trained)

    fails(looked_at(config_of(), spoil=twice), r"step 1 of 2 saw row \d+ more than once on rank 0")


def test_order_of_mini_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ppo.mini_batches
    monkeypatch.setattr(ppo, "mini_batches", lambda batch, size, epochs, seed: right(batch, size, epochs, None))
    fails(looked_at(config_of(SHUFFLED)), "mini-batches of epoch 1 are not shuffled")
    monkeypatch.setattr(ppo, "mini_batches", lambda batch, size, epochs, seed: right(batch, size, epochs, 5))
    fails(looked_at(config_of()), "mini-batches of epoch 1 are not in the batch's order, and shuffle is off")
    monkeypatch.setattr(ppo, "mini_batches", lambda batch, size, epochs, seed: [*right(batch, size, 1, 5)] * epochs)
    fails(looked_at(config_of(SHUFFLED, TWO_EPOCHS)), "mini-batches of epoch 2 are those of an earlier epoch")


def test_a_shuffle_that_is_the_same_in_every_step() -> None:
    config = config_of(SHUFFLED)
    wanted, samples = plan.plan_of("actor", config), batch_of(config).experience.rollout.prompts.samples
    first, second = list(samples), [*samples[1:], samples[0]]

    def rows(order: list[Any]) -> plan.Steps:
        steps = [[[order[row] for row in range(start, start + 16)]] for start in (0, 16)]
        return plan.rows_of(UpdateReport((), (), 0.1, 0, trained=tuple(map(tuple, steps))), samples)

    fails(plan.shuffled_anew("actor", rows(first), rows(first), wanted), "have the rows of the step before")
    assert plan.shuffled_anew("actor", rows(first), rows(second), wanted).ok is True
    assert plan.shuffled_anew("actor", rows(first), rows(first), plan.plan_of("actor", config_of())).ok is None


def test_few_rows_may_be_shuffled_into_the_same_mini_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where chance could do it, nothing is said of it."""
    right = ppo.mini_batches
    monkeypatch.setattr(ppo, "mini_batches", lambda batch, size, epochs, seed: right(batch, size, epochs, None))
    one = config_of(SHUFFLED, "actor_rollout_ref.actor.ppo_mini_batch_size=16")
    assert looked_at(one).ok is True


def test_samples_that_cannot_be_told_apart() -> None:
    config = config_of()
    samples = batch_of(config).experience.rollout.prompts.samples
    found = plan.trained_as_planned(
        "actor", UpdateReport((), (), 0.1, 0), samples[:1] * 2, plan.plan_of("actor", config), [0]
    )
    assert found.ok is None


def test_updates_that_are_not_there() -> None:
    config = config_of("trainer.critic_warmup=3")
    assert [plan.is_updated("actor", config, step) for step in (1, 2, 3, 4)] == [False, False, True, True]
    assert plan.is_updated("critic", config, 1)
    assert not plan.is_updated("critic", config_of("algorithm.adv_estimator=grpo"), 1)
    fails(plan.no_update("actor", 3, wanted=True), "step 3 did not update the actor")
    assert plan.no_update("critic", 3, wanted=False).ok is None
