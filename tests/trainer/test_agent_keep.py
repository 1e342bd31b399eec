"""Which trajectories a step goes on with, and what it says of the others."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.batches import train_batch
from tests.trainer.conversations import conversations
from trainer import ppo
from trainer.agent import keep
from trainer.agent.episode import FAILED, Episode, Failure
from trainer.agent.search_metrics import search_metrics
from trainer.config.agent_schema import AgentConfig
from trainer.config.schema import Config, TrainerConfig
from trainer.env.search import VALID
from trainer.errors import EpisodeError
from trainer.metrics import step_metrics
from trainer.records import LogProbs, Rollout, Scores
from trainer.samples import sample
from trainer.validation import plain


def config_of(ranks: int = 1, **agent: object) -> Config:
    return replace(
        Config(),
        agent=AgentConfig(env="frozen_lake", **agent),  # type: ignore[arg-type]
        trainer=replace(TrainerConfig(), n_gpus_per_node=ranks),
        actor_rollout_ref=Config().actor_rollout_ref,
        critic=replace(Config().critic, enable=False, strategy="fsdp"),
    )


def played(count: int, failed: list[int], n: int = 1) -> Rollout:
    """`count` rows in groups of `n`, some of which failed."""
    rollout = conversations([([5], [([6, 7], [8], 0.5), ([9], [], float(i))]) for i in range(count)])
    assert rollout.episodes is not None
    episodes = [
        Episode((), FAILED, failure=Failure("hung" if i % 2 else "raised", f"row {i} of lake: gone"))
        if i in failed
        else replace(each, numbers={"success": float(i % 2)}, seconds=2.0)
        for i, each in enumerate(rollout.episodes)
    ]
    lost = torch.tensor([[0] if i in failed else [1] for i in range(count)])
    prompts = replace(rollout.prompts, uid_B=torch.arange(count) // n, sample_B=torch.arange(count) % n)
    return replace(
        rollout,
        prompts=prompts,
        mask_BT=rollout.mask_BT * lost,
        present_BT=rollout.context_BT * lost,
        episodes=tuple(episodes),
    )


def kept(rollout: Rollout) -> list[int]:
    return [row.index for row in rollout.prompts.rows]


@pytest.mark.parametrize(("env", "score"), [("frozen_lake", 0.25), ("search", 1.0), (None, 1.0)])
def test_only_search_r1s_em_is_a_validation_score(env: str | None, score: float) -> None:
    """An environment's number of that name took the place of what its steps gave."""
    config = replace(Config(), agent=AgentConfig(env=env))
    assert plain(Scores(torch.tensor([0.25]), {"em": torch.tensor([1.0])}), config).score_B.tolist() == [score]


@pytest.mark.parametrize("name", ["rewards", "returns", "advantages", "values", "score"])
def test_of_two_metrics_of_one_name_the_trainers_stands(name: str) -> None:
    batch = train_batch(4)
    old = LogProbs(batch.experience.old_logp_BT, torch.zeros_like(batch.rewards_BT))
    told = [
        step_metrics(batch, old, Scores(torch.zeros(4), extras), None, None, Config())
        for extras in ({}, {name: torch.full((4,), 77.0), "theirs": torch.full((4,), 77.0)})
    ]
    assert told[1] == told[0] | {"critic/theirs/mean": 77.0}


def test_of_two_fields_of_one_name_the_samples_stands() -> None:
    """Also where a reward function names it, which may name anything."""
    rollout = played(1, [])
    names = ("prompt", "response", "score", "turns", "seed", "theirs")
    alone, beside = (
        sample(rollout, Scores(torch.zeros(1), extras), 0, str)
        for extras in ({}, {name: torch.tensor([77.0]) for name in names})
    )
    assert beside == {**alone, "theirs": 77.0}


def test_one_number_of_a_search_alone_makes_no_search() -> None:
    rollout = played(1, [])
    episodes = tuple(replace(each, numbers={VALID: 1.0}) for each in rollout.episodes or ())
    assert search_metrics(replace(rollout, episodes=episodes)) == {}


def test_a_run_without_conversations_is_passed_through() -> None:
    rollout = replace(played(3, []), present_BT=None, episodes=None)
    assert keep.whole(rollout, config_of()) is rollout and keep.metrics(rollout, rollout) == {}
    whole = played(3, [])
    assert keep.whole(whole, config_of()) is whole


def test_rows_or_groups_are_dropped() -> None:
    rollout = played(12, [4], n=3)
    assert kept(keep.whole(rollout, config_of())) == [0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11]
    groups = config_of(on_failure="drop_group", min_kept=0.5)
    assert kept(keep.whole(rollout, groups)) == [0, 1, 2, 6, 7, 8, 9, 10, 11]
    # a validation asks each row by itself
    assert len(keep.whole(rollout, groups, validate=True)) == 11


@given(st.integers(1, 4), st.sets(st.integers(0, 19), max_size=8))
def test_what_is_left_divides_over_the_copies_of_the_model(ranks: int, failed: set[int]) -> None:
    rollout, config = played(20, sorted(failed)), config_of(ranks, min_kept=0.0)
    left = keep.whole(rollout, config)
    assert len(left) == (20 if not failed else (20 - len(failed)) // ranks * ranks)
    assert not failed & set(kept(left)) and kept(left) == sorted(kept(left))
    assert not keep.failed(left).any()


def test_too_few_is_an_error_that_tells_the_first_and_how_many() -> None:
    with pytest.raises(EpisodeError) as caught:
        keep.whole(played(10, [3, 4, 5]), config_of())
    assert caught.value.message == (
        "7 of 10 trajectories can be used, and agent.min_kept=0.9 of them must be: 3 failed (2 hung, 1 raised); "
        "the first: row 3 of lake: gone"
    )
    assert "agent.turn_timeout" in caught.value.hint and caught.value.exit_code == 1
    with pytest.raises(EpisodeError, match="0 of 2 trajectories"):
        keep.whole(played(2, [0, 1]), config_of(min_kept=0.0))  # nothing is never enough


def test_a_failed_row_is_in_no_mean() -> None:
    """GRPO of a group of three of which one failed is that of the two others."""
    rollout = played(3, [1], n=3)
    left = keep.whole(rollout, config_of(min_kept=0.5))
    scores = keep.scores(left, "turn")
    assert scores.score_B.tolist() == [0.5, 2.5]
    assert ppo.grpo(scores.score_B, left.prompts.uid_B).tolist() == pytest.approx([-0.7071, 0.7071], abs=1e-3)
    assert keep.answered(rollout).tolist() == [True, True, True]  # no engine is asked for it again


def test_what_a_step_reports() -> None:
    rollout = played(10, [3])
    found = keep.metrics(rollout, keep.whole(rollout, config_of()))
    assert found["agent/turns/mean"] == 2 and found["agent/sampled_tokens/mean"] == 3
    assert found["agent/observed_tokens/max"] == 1 and found["agent/env_seconds/mean"] == 2
    assert (found["agent/dropped"], found["agent/kept"], found["agent/failed/hung"]) == (1, 0.9, 1)
    assert found["agent/ended/terminated"] == 1 and found["agent/ended/length"] == 0
    assert found["agent/success/mean"] == pytest.approx(4 / 9)
    assert keep.failures(rollout) == ("row 3 of lake: gone",)
    validation = keep.of_validation([keep.whole(rollout, config_of())], [found])
    assert validation == {
        "val-agent/success/mean": pytest.approx(4 / 9),
        "val-agent/turns/mean": 2.0,
        "val-agent/dropped": 1.0,
    }
    assert keep.of_validation([replace(rollout, episodes=None)], [{}]) == {}
