"""Updates of actor and critic in one process: what may change nothing, what must change something."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.trainer.batches import train_batch
from tests.trainer.conftest import Words
from trainer import ppo
from trainer.balance import PassLimit
from trainer.config import load
from trainer.config.schema import Config, FsdpConfig, OptimConfig
from trainer.group import WorkerGroup
from trainer.learner import checkpoint
from trainer.learner.fsdp import Trained, whole
from trainer.learner.models import Source, sharded
from trainer.learner.schedule import lr_factor
from trainer.records import MiniBatch, Prompts, TrainBatch, UpdateReport
from trainer.rows import concat, take

MODES = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")
ROLES = ("actor", "critic")
Make = Callable[..., Trained]


@pytest.fixture(scope="module")
def make(models: Path, mesh: Any) -> Make:
    """`make("actor")`: a fresh model with its optimizer."""

    def trained(role: str, optim: OptimConfig | None = None, grad_clip: float = 1.0, total_steps: int = 10) -> Trained:
        source, kind = Source(str(models / "qwen2"), False, 1), "causal_lm" if role == "actor" else "value"
        module = sharded(kind, source, FsdpConfig(dtype="fp32"), mesh, checkpointing=False)
        optim = optim or OptimConfig(lr=1e-3)
        return Trained(module, torch.device("cpu"), optim, grad_clip=grad_clip, total_steps=total_steps)

    return trained


@pytest.fixture
def config(words: Words) -> Config:
    terms = ("entropy_coeff=0.01", "use_kl_loss=True", "kl_loss_coef=0.1")
    return load(words(*(f"actor_rollout_ref.actor.{term}" for term in terms))).config


def weights(model: Trained) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.full_tensors()}


def update(
    model: Trained, role: str, config: Config, batch: TrainBatch, micro: int, mini: int = 8, mode: str = "token-mean"
) -> UpdateReport:
    actor = dataclasses.replace(config.actor_rollout_ref.actor, loss_agg_mode=mode)
    critic = dataclasses.replace(config.critic, loss_agg_mode=mode)
    loss: Any = partial(ppo.actor_loss, model, config=actor)
    if role == "critic":
        loss = partial(ppo.critic_loss, model, config=critic)
    parts = [take(batch, slice(start, start + mini)) for start in range(0, len(batch), mini)]
    shares = [
        MiniBatch(part, ppo.totals_of(part.experience.rollout.mask_BT, 6), torch.arange(len(part)).split(micro))
        for part in parts
    ]
    return ppo.update(model, shares, loss)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("mode", MODES)
def test_micro_batches_change_nothing(make: Make, config: Config, role: str, mode: str) -> None:
    """Losses, gradient norm and updated weights of one pass of 8, four of 2, three of 3 rows, and eight of 1."""
    batch = train_batch(8)
    whole_model = make(role)
    expected = update(whole_model, role, config, batch, micro=8, mode=mode)
    updated = weights(whole_model)
    for micro in (1, 2, 3):
        model = make(role)
        found = update(model, role, config, batch, micro=micro, mode=mode)
        assert found.steps[0] == pytest.approx(expected.steps[0], rel=1e-4, abs=1e-6)
        for name, tensor in weights(model).items():
            torch.testing.assert_close(tensor, updated[name], atol=2e-5, rtol=1e-4)


def cut(record: Any, width: int) -> Any:
    """The first `width` response columns of every tensor of a record."""
    if isinstance(record, Prompts) or not dataclasses.is_dataclass(record):
        return record[:, :width] if isinstance(record, Tensor) else record
    fields = {field.name: cut(getattr(record, field.name), width) for field in dataclasses.fields(record)}
    return dataclasses.replace(record, **fields)  # type: ignore[type-var]


@pytest.mark.parametrize("role", ROLES)
def test_padding_changes_no_update(make: Make, config: Config, role: str) -> None:
    """A batch cut and joined again with a longer one is padded; its update stays what it was."""
    batch = cut(take(train_batch(8), torch.tensor([0, 5])), width=1)
    padded = take(concat([batch, train_batch(8)]), slice(0, 2))
    assert padded.rewards_BT.shape[1] > batch.rewards_BT.shape[1]
    reports = [update(make(role), role, config, b, micro=2, mode="seq-mean-token-sum") for b in (batch, padded)]
    assert reports[0].steps[0] == pytest.approx(reports[1].steps[0], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("role", ROLES)
def test_a_step_reduces_its_loss(make: Make, config: Config, role: str) -> None:
    model, batch = make(role), train_batch(8)
    losses = [update(model, role, config, batch, micro=4).steps[0] for _ in range(3)]
    name = "actor/pg_loss" if role == "actor" else "critic/vf_loss"
    assert losses[2][name] < losses[0][name]
    assert update(model, role, config, batch, micro=4).untrained == ()


def test_a_step_whose_gradient_is_not_finite_is_skipped(make: Make, config: Config) -> None:
    """Given a first mini-batch whose loss is finite, and whose gradient's norm is not, only the second one's step is
    taken, from weights that are still clean. (A critic's loss is a square: it overflows before its gradient does.)
    """
    role, clean = "actor", train_batch(8)
    advantages = clean.advantages_BT.clone()
    advantages[1, 0] = 1e30
    poisoned = dataclasses.replace(clean, advantages_BT=advantages)
    model, reference = make(role), make(role)
    before = weights(model)

    report = update(model, role, config, take(poisoned, slice(0, 4)), micro=2)
    assert report.skipped == 1 and not math.isfinite(report.steps[0]["grad_norm"])
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(model).items())

    report = update(model, role, config, poisoned, micro=2, mini=4)
    update(reference, role, config, take(clean, slice(4, 8)), micro=2)
    assert report.skipped == 1 and math.isfinite(report.steps[1]["grad_norm"])
    after = weights(model)
    for name, tensor in weights(reference).items():
        assert torch.equal(after[name], tensor)
        assert not torch.equal(before[name], tensor)


def test_gradients_are_clipped_and_their_norm_reported_as_it_was(
    make: Make, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, free, clipped = train_batch(8), make("actor", grad_clip=1e9), make("actor", grad_clip=0.01)
    used: dict[str, float] = {}
    for name, model in (("free", free), ("clipped", clipped)):

        def step(name: str = name, model: Trained = model) -> None:
            norms = [whole(p.grad).norm() for p in model.module.parameters() if p.grad is not None]
            used[name] = float(torch.stack(norms).norm())

        monkeypatch.setattr(model.optimizer, "step", step)
    reports = [update(model, "actor", config, batch, micro=4) for model in (free, clipped)]
    norm = reports[0].steps[0]["grad_norm"]
    assert reports[1].steps[0]["grad_norm"] == pytest.approx(norm) and norm > 0.01
    assert used["free"] == pytest.approx(norm, rel=1e-5) and used["clipped"] == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize(
    ("optim", "expected"),
    [
        (OptimConfig(), [1, 1, 1, 1, 1, 1]),
        (OptimConfig(lr_warmup_steps=2), [0, 0.5, 1, 1, 1, 1]),
        (OptimConfig(lr_warmup_steps_ratio=0.5), [0, 0.25, 0.5, 0.75, 1, 1]),  # of 8 steps
        (OptimConfig(lr_warmup_steps=0, lr_warmup_steps_ratio=0.5), [1, 1, 1, 1, 1, 1]),
        (
            OptimConfig(lr_scheduler_type="cosine", lr_warmup_steps=4),
            [0, 0.25, 0.5, 0.75, 1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2, 0, 0],
        ),
        (
            OptimConfig(lr_scheduler_type="cosine", min_lr_ratio=0.1),
            [0.1 + 0.45 * (1 + math.cos(math.pi * i / 8)) for i in range(9)],
        ),
    ],
)
def test_learning_rate_schedule(optim: OptimConfig, expected: list[float]) -> None:
    assert [lr_factor(step, optim, 8) for step in range(len(expected))] == pytest.approx(expected)


def test_schedule_advances_once_per_update_and_continues_where_it_was(make: Make, config: Config) -> None:
    optim = OptimConfig(lr=1e-3, lr_warmup_steps=4)
    model, batch = make("actor", optim), train_batch(8)
    rates = [update(model, "actor", config, batch, micro=4, mini=4).lr for _ in range(3)]  # two steps in each
    assert rates == pytest.approx([0, 0.25e-3, 0.5e-3])
    resumed = make("actor", optim)
    resumed.set_updates(model.updates)
    assert update(resumed, "actor", config, batch, micro=4).lr == pytest.approx(0.75e-3)


def test_saving_a_model_that_never_stepped_changes_nothing(make: Make, config: Config, tmp_path: Path) -> None:
    """As in critic warm-up: torch makes an optimizer state to save, with one step counted."""
    saved, other, batch = make("actor"), make("actor"), train_batch(8)
    checkpoint.save(saved, tmp_path / "actor")
    resumed = make("actor")
    checkpoint.load(resumed, tmp_path / "actor")
    for model in (saved, other, resumed):
        update(model, "actor", config, batch, micro=8)
    expected = weights(other)
    assert all(torch.equal(saved_, expected[name]) for name, saved_ in weights(saved).items())
    assert all(torch.equal(resumed_, expected[name]) for name, resumed_ in weights(resumed).items())


def test_frozen_updates_report_and_change_nothing(make: Make, config: Config) -> None:
    model, batch = make("actor", OptimConfig(lr=1e-3, lr_warmup_steps=4)), train_batch(8)
    update(model, "actor", config, batch, micro=4)
    before, rate = weights(model), model.optimizer.param_groups[0]["lr"]
    with model.frozen():
        frozen = update(model, "actor", config, batch, micro=4)
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(model).items())
    assert model.optimizer.param_groups[0]["lr"] == rate and model.updates == 1
    assert update(model, "actor", config, batch, micro=4).steps == frozen.steps
    assert any(not torch.equal(tensor, before[name]) for name, tensor in weights(model).items())


# ----------------------------------------------------------------------------------------- which rows make a mini-batch


def rows_of(indices: Any) -> list[list[int]]:
    return [index.tolist() for index in indices]


def test_mini_batches_in_order() -> None:
    assert rows_of(ppo.mini_batches(train_batch(8), 4, 2, None)) == [[0, 1, 2, 3], [4, 5, 6, 7]] * 2


def test_shuffled_mini_batches_differ_by_epoch_and_repeat_by_seed() -> None:
    batch = train_batch(8)
    first = rows_of(ppo.mini_batches(batch, 4, 2, 42))
    assert first == rows_of(ppo.mini_batches(batch, 4, 2, 42)) != rows_of(ppo.mini_batches(batch, 4, 2, 43))
    assert sorted(first[0] + first[1]) == sorted(first[2] + first[3]) == list(range(8))
    assert first[:2] != first[2:]


class Ranks:
    """`Calls` of which only the number of ranks is asked."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size

    def all(self, phase: str, args: Any) -> list[Any]:
        raise AssertionError(phase)


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(("balance", "tokens"), [(False, False), (True, False), (True, True)])
def test_shares_of_the_ranks_make_up_the_mini_batches(
    words: Words, world: int, shuffle: bool, balance: bool, tokens: bool
) -> None:
    """Whatever the number of ranks, together they hold the same mini-batches, each with the totals of the whole."""
    changes = "actor_rollout_ref.actor.ppo_epochs=3", f"actor_rollout_ref.actor.shuffle={shuffle}"
    config = load(words(*changes, f"trainer.balance_batch={balance}")).config
    batch = train_batch(8)

    def uids(world_size: int) -> list[list[int]]:
        limit = PassLimit(tokens=12) if tokens else PassLimit(rows=2)
        shares = WorkerGroup(Ranks(world_size), config).shares(batch, config.actor_rollout_ref.actor, 7, limit)
        assert len({len(share) for share in shares}) == 1
        steps = []
        for parts in zip(*shares, strict=True):
            assert len({part.totals for part in parts}) == 1
            masks = [part.batch.experience.rollout.mask_BT for part in parts]
            assert len({len(part.passes) for part in parts}) == 1
            assert all(sorted(torch.cat(part.passes).tolist()) == list(range(len(part.batch))) for part in parts)
            assert parts[0].totals.tokens == sum(int(mask.sum()) for mask in masks)
            assert parts[0].totals.sequences == 4 and parts[0].totals.horizon == config.data.max_response_length
            uids = [u for part in parts for u in part.batch.experience.rollout.prompts.uid_B.tolist()]
            steps.append(sorted(uids) if balance else uids)
        return steps

    found = uids(world)
    assert len(found) == 6 and found == uids(1)
    assert (found[:2] == found[2:4]) is not shuffle
