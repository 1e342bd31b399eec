"""What is NaN or infinite ends a run with an error that names row and key, and is not trained on."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.batches import train_batch
from tests.trainer.conftest import Words
from tests.trainer.test_stepping import Reads
from trainer import config, finite, ppo, reports
from trainer.config.schema import ActorConfig, CriticConfig
from trainer.data.reading import read_data
from trainer.errors import NotFinite, RewardError, TrainerError
from trainer.interfaces import Told
from trainer.learner.fsdp import Model
from trainer.local import LocalPool
from trainer.records import Experience, LogProbs, Metrics, Rollout, TrainBatch
from trainer.run import train
from trainer.tracking import Tracker


def test_a_sound_batch_is_let_through() -> None:
    finite.require_batch(train_batch())


def outside(x_BT: torch.Tensor, batch: TrainBatch) -> None:
    """What padding holds is nobody's."""
    x_BT[batch.experience.rollout.mask_BT == 0] = math.nan


OF_EXPERIENCE = {
    **{"scores_BT": "critic/score", "old_logp_BT": "old_log_prob"},
    **{"ref_logp_BT": "ref", "values_BT": "values"},
}
OF_BATCH = {"rewards_BT": "critic/rewards", "returns_BT": "critic/returns", "advantages_BT": "critic/advantages"}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("field", [*OF_EXPERIENCE, *OF_BATCH, "logp_BT"])
def test_the_first_row_and_the_key_are_named(field: str, value: float) -> None:
    batch = train_batch()
    owners: tuple[Any, ...] = (batch, batch.experience, batch.experience.rollout)
    owner = next(owner for owner in owners if hasattr(owner, field))
    x_BT = getattr(owner, field)
    outside(x_BT, batch)
    finite.require_batch(batch)
    x_BT[3, 0] = x_BT[5, 0] = value
    key = {**OF_EXPERIENCE, **OF_BATCH, "logp_BT": "the engine's log-prob"}[field]
    with pytest.raises(NotFinite) as caught:
        finite.require_batch(batch)
    assert caught.value.message == f"{key} of row 3 of made up is {value} at token 0, and of 1 more sequence(s)"
    assert caught.value.hint


class Said:
    """A policy and a critic that answer what they are told to."""

    def __init__(self, logp_BT: torch.Tensor, entropy_BT: torch.Tensor) -> None:
        self.answer = LogProbs(logp_BT, entropy_BT)

    def log_probs(self, rollout: Rollout, *, entropy: bool) -> LogProbs:
        return self.answer

    def values(self, rollout: Rollout) -> torch.Tensor:
        return self.answer.logp_BT


def losses(batch: TrainBatch, said: Said) -> Callable[[str], Metrics]:
    tell = telling(batch, said)
    return lambda role: reports.read([tell(role)])


def telling(batch: TrainBatch, said: Said) -> Callable[[str], Told]:
    totals = ppo.totals_of(batch.experience.rollout.mask_BT)

    def call(role: str) -> Told:
        if role == "actor":
            config = ActorConfig(entropy_coeff=0.1, clip_ratio_low=0.2, clip_ratio_high=0.2)
            return ppo.actor_loss(said, batch, totals, config)[1]
        return ppo.critic_loss(said, batch, totals, CriticConfig(loss_agg_mode="token-mean"))[1]

    return call


@pytest.mark.parametrize(("role", "key"), [("actor", "the actor's loss"), ("critic", "critic/vf_loss")])
def test_a_loss_names_the_row_that_spoiled_it(role: str, key: str) -> None:
    batch = train_batch()
    logp_BT = batch.experience.old_logp_BT.clone()
    said = Said(logp_BT, torch.ones_like(logp_BT))
    losses(batch, said)(role)
    logp_BT[6, 0] = math.nan
    with pytest.raises(NotFinite, match=rf"{key} is nan: (log_prob|vpred) of row 6 of made up is nan at token 0"):
        losses(batch, said)(role)


@pytest.mark.parametrize("role", ["actor", "critic"])
def test_what_a_pass_tells_is_not_read_until_somebody_asks(role: str) -> None:
    """Nothing waits for it; and then its figures add up in Python's floats, whatever the passes' precision."""
    batch = train_batch()
    tell = telling(batch, Said(batch.experience.old_logp_BT + 0.3, torch.ones_like(batch.returns_BT)))
    with Reads() as reads:
        told = [tell(role) for _ in range(3)]
    assert not reads.count
    for name, figure in reports.read(told).items():
        one = float(told[0].figures[name])
        assert figure == float(figure) == 0.0 + one + one + one
    assert not reports.read([])  # of a rank that ends no pipeline


def test_an_entropy_that_is_none() -> None:
    """It is in the loss, and in no metric beside it."""
    batch = train_batch()
    entropy_BT = torch.ones_like(batch.experience.old_logp_BT)
    entropy_BT[2, 0] = math.inf
    with pytest.raises(NotFinite, match=r"the actor's loss is -inf: entropy of row 2 of made up is inf at token 0"):
        losses(batch, Said(batch.experience.old_logp_BT, entropy_BT))("actor")


def test_a_loss_that_overflows_names_the_largest_of_what_it_is_made_of() -> None:
    batch = train_batch()
    batch.returns_BT[4, 0] = -3e20  # its square is more than fp32 holds
    with pytest.raises(NotFinite, match=r"critic/vf_loss is inf; the largest .* is returns of row 4 .*: -3e\+20 at"):
        losses(batch, Said(batch.experience.old_logp_BT, torch.ones(8, 5)))("critic")


# --------------------------------------------------------------------------------------------------- through whole runs

REWARD = """
def compute_score(solution_str, ground_truth, extra_info, **row):
    bad = extra_info["index"] == 3
    return {"score": VALUE if bad else 0.5, "length": LENGTH if bad else 1.0}
"""


def run(words: Words, folder: Path, score: str, length: str = "2.0") -> list[Metrics]:
    (folder / "reward.py").write_text(REWARD.replace("VALUE", score).replace("LENGTH", length))
    changes = (f"custom_reward_function.path={folder / 'reward.py'}", "data.shuffle=False", "trainer.logger=[console]")
    settings, lines = config.load(words(*changes)).config, list[Metrics]()
    tracker = Tracker([])
    tracker.log = lambda step, metrics: lines.append(metrics)  # type: ignore[method-assign]
    with closing(LocalPool()) as pool:
        train(settings, pool, read_data(settings), tracker)
    return lines


@pytest.mark.parametrize("score", ["1e39", "-3.5e38", "10**400", "10**5000", "float('inf')", "float('nan')"])
def test_a_reward_that_fp32_does_not_hold(words: Words, tmp_path: Path, score: str) -> None:
    with pytest.raises(
        RewardError, match=r"the reward of row 3 of .*train\.parquet .* is not a finite fp32 number"
    ) as error:
        run(words, tmp_path, score)
    assert error.value.hint and len(error.value.message) < 400


@pytest.mark.parametrize("length", ["1e39", "10**400", "float('-inf')"])
def test_what_is_reported_beside_a_reward(words: Words, tmp_path: Path, length: str) -> None:
    with pytest.raises(RewardError, match=r"length of the reward of row 3 of "):
        run(words, tmp_path, "1.0", length)
    [metrics] = run(words, tmp_path, "1.0", "float('nan')")  # says that there is none
    assert metrics["critic/length/mean"] == 1.0


def test_a_reward_whose_square_overflows(words: Words, tmp_path: Path) -> None:
    with pytest.raises(NotFinite) as caught:
        run(words, tmp_path, "3e38")
    assert "row 3 of" in caught.value.message or "critic/" in caught.value.message
    assert "reward" in caught.value.hint


def test_weights_that_have_diverged(words: Words, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN out of the model: it was logged as null, step after step, and the run ended well."""
    real = Model.log_probs

    def spoiled(self: Model, rollout: Rollout, *, entropy: bool) -> LogProbs:
        answer = real(self, rollout, entropy=entropy)
        return dataclasses.replace(answer, logp_BT=answer.logp_BT * math.nan)

    monkeypatch.setattr(Model, "log_probs", spoiled)
    with pytest.raises(TrainerError, match=r"old_log_prob of row 0 of .*train\.parquet is nan at token 0") as caught:
        run(words, tmp_path, "1.0")
    assert isinstance(caught.value, NotFinite) and "optim.lr" in caught.value.hint


def test_experience_is_what_it_says() -> None:
    """Of every tensor of the records it is known here what to say of it."""
    tensors = {field.name for record in (Experience, TrainBatch) for field in dataclasses.fields(record)}
    assert tensors == {"rollout", "experience", "weights_BT", *OF_EXPERIENCE, *OF_BATCH}
