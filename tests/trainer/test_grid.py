"""Which rank takes which rows: the ranks of one copy of a model the same, different copies different ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.batches import train_batch
from tests.trainer.conftest import Words
from trainer.balance import PassLimit
from trainer.config import load
from trainer.grid import Grid, Place, actor_grid, critic_grid
from trainer.group import WorkerGroup
from trainer.records import LogProbs, Rollout

A = "actor_rollout_ref.actor"
SIZES = st.sampled_from([1, 2, 3, 4])


@given(SIZES, SIZES, SIZES)
def test_every_place_is_one_ranks(data: int, tensor: int, pipeline: int) -> None:
    grid = Grid(data * tensor * pipeline, tensor, pipeline)
    places = [grid.place(rank) for rank in range(grid.world_size)]
    assert grid.copies == data
    assert set(places) == {Place(d, t, p) for d in range(data) for t in range(tensor) for p in range(pipeline)} and len(
        set(places)
    ) == len(places)
    assert [places[rank] for rank in grid.speakers()] == [Place(d, 0, pipeline - 1) for d in range(data)]


class Echo:
    """`Calls` whose ranks answer a forward pass with their rows' numbers plus a thousand times their rank."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.given: list[Any] = []

    def all(self, phase: str, args: Any) -> list[Any]:
        self.given = [share[0].prompts.uid_B.tolist() for share in args]
        return [self.answer(rank, share[0]) for rank, share in enumerate(args)]

    def answer(self, rank: int, rollout: Rollout) -> LogProbs:
        said = (rollout.prompts.uid_B + 1000 * rank)[:, None].float().expand(-1, rollout.response_BT.shape[1])
        return LogProbs(said, said)


@pytest.mark.parametrize(
    ("changes", "given", "answers"),
    [
        ((), [[0, 1], [2, 3], [4, 5], [6, 7]], [0, 1, 1002, 1003, 2004, 2005, 3006, 3007]),
        (
            ("tensor_model_parallel_size=2",),
            [[0, 1, 2, 3]] * 2 + [[4, 5, 6, 7]] * 2,
            [0, 1, 2, 3, 2004, 2005, 2006, 2007],
        ),
        (
            ("pipeline_model_parallel_size=2",),
            [[0, 1, 2, 3], [4, 5, 6, 7]] * 2,
            [2000, 2001, 2002, 2003, 3004, 3005, 3006, 3007],
        ),
    ],
)
def test_rows_go_to_copies_and_one_rank_answers_for_each(
    words: Words, changes: tuple[str, ...], given: list[list[int]], answers: list[int]
) -> None:
    megatron = [f"{A}.strategy=megatron", *(f"{A}.megatron.{change}" for change in changes)]
    config = load(
        words(
            "trainer.n_gpus_per_node=4",
            f"{A}.ppo_micro_batch_size_per_gpu=1",
            "critic.enable=False",
            "algorithm.adv_estimator=grpo",
            "trainer.balance_batch=False",
            *megatron,
        )
    ).config
    calls = Echo(4)
    found = WorkerGroup(calls, config).log_probs(train_batch(8).experience.rollout).now()
    assert calls.given == given
    assert found.logp_BT[:, 0].tolist() == answers


def test_the_critic_may_be_on_another_engine(words: Words) -> None:
    config = load(
        words(
            "trainer.n_gpus_per_node=4",
            f"{A}.ppo_micro_batch_size_per_gpu=1",
            "critic.ppo_micro_batch_size_per_gpu=1",
            f"{A}.strategy=megatron",
            f"{A}.megatron.tensor_model_parallel_size=2",
            "critic.strategy=fsdp2",
            "trainer.balance_batch=False",
        )
    ).config
    assert (actor_grid(config).copies, critic_grid(config).copies) == (2, 4)
    group, batch = WorkerGroup(Echo(4), config), train_batch(8)
    actor = group.shares(batch, config.actor_rollout_ref.actor, 0, PassLimit(rows=1))
    critic = group.shares(batch, config.critic, 0, PassLimit(rows=1))
    assert [len(share[0].batch) for share in actor] == [2, 2]
    assert [len(share[0].batch) for share in critic] == [1, 1, 1, 1]
    assert torch.equal(
        torch.cat([share[0].batch.returns_BT for share in actor]),
        torch.cat([share[0].batch.returns_BT for share in critic]),
    )
