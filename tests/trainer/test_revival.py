"""Prompts whose engine died go to the revived engine, and come back in their places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.config import load
from trainer.errors import EngineError
from trainer.group import REVIVALS, WorkerGroup
from trainer.records import Prompts, Rollout, Row
from trainer.rollout.answers import assemble
from trainer.rollout.server import Answer

pytestmark = pytest.mark.trainer

RANKS, SIZE = 4, 2


def prompts_of(count: int) -> Prompts:
    rows = tuple(Row(i, "f", "s", "1") for i in range(count))
    ids = torch.arange(count)
    return Prompts(ids[:, None], torch.ones(count, 1, dtype=torch.long), ids, torch.zeros_like(ids), rows)


class Ranks:
    """Two engines of two ranks. `deaths`: what they leave out, call by call."""

    world_size = RANKS

    def __init__(self, deaths: Sequence[set[int]]) -> None:
        self.deaths = [*deaths]
        self.log: list[Any] = []

    def all(self, phase: str, args: Sequence[tuple[Any, ...]]) -> list[Any]:
        if phase == "revive_engines":
            self.log.append(phase)
            return [1] * RANKS
        lost = self.deaths.pop(0) if self.deaths else set()
        self.log.append([len(share) for share, _ in args])
        return [self._answers(share, lost) for share, _ in args]

    def _answers(self, prompts: Prompts, lost: set[int]) -> Rollout:
        uids = prompts.uid_B.tolist()
        done = [Answer(i, [uid] * (1 + uid % 3), [-float(uid)] * (1 + uid % 3)) for i, uid in enumerate(uids)]
        return assemble(prompts, [answer for answer in done[::-1] if uids[answer.index] not in lost], pad_id=99)


def workers_over(ranks: Ranks) -> WorkerGroup:
    rollout = "actor_rollout_ref.rollout"
    words = [f"{rollout}.name=sglang", f"{rollout}.tensor_model_parallel_size={SIZE}"]
    return WorkerGroup(ranks, load(words).config)


@given(st.integers(1, 9), st.lists(st.sets(st.integers(0, 8)), max_size=REVIVALS))
def test_every_prompt_is_answered_in_its_place(count: int, deaths: list[set[int]]) -> None:
    ranks = Ranks(deaths)
    rollout = workers_over(ranks).generate(prompts_of(count), 1, validate=False)
    assert rollout.prompts.uid_B.tolist() == list(range(count))
    assert [row.index for row in rollout.prompts.rows] == list(range(count))
    for uid in range(count):
        length = 1 + uid % 3
        assert rollout.response_BT[uid, :length].tolist() == [uid] * length
        assert rollout.mask_BT[uid].sum() == length and rollout.logp_BT[uid, 0] == -float(uid)
    calls = [entry for entry in ranks.log if entry != "revive_engines"]
    assert all(entry[1] == entry[3] == 0 for entry in calls)  # only the first rank of a group is given prompts
    assert ranks.log.count("revive_engines") == len(calls) - 1


def test_only_what_is_open_runs_again() -> None:
    ranks = Ranks([{1, 5}, {5}])
    workers_over(ranks).generate(prompts_of(8), 1, validate=False)
    assert ranks.log == [[4, 0, 4, 0], "revive_engines", [1, 0, 1, 0], "revive_engines", [1, 0, 0, 0]]


def test_an_engine_that_keeps_dying_ends_the_run() -> None:
    with pytest.raises(EngineError, match="died 4 times in one generation"):
        workers_over(Ranks([{0}] * 9)).generate(prompts_of(4), 1, validate=False)
