"""Rewards by group, and estimators of turns: worked numbers, ROLL's formulas as it writes them, one turn as ever."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from devkit.smoke.made_up_batches import conversations as made_up
from devkit.smoke.made_up_batches import experience
from trainer import ppo, shaping
from trainer.agent import by_turn_names
from trainer.agent.episode import TERMINATED, Episode, Turn
from trainer.agent.laying import placed_rewards
from trainer.config.algorithm_schema import AlgorithmConfig, RewardNormalizationConfig
from trainer.config.schema import Config
from trainer.records import Experience, Prompts, Rollout, Row

# The reference's section 3: A A o o o B B, -0.1 for the first turn and 1 for the second.
TWO_TURNS = [(0, 2, -0.1, "a"), (5, 7, 1.0, "b")]
Turns = Sequence[tuple[int, int, float, str]]  # start, end, reward, state
MEAN_STD = RewardNormalizationConfig("traj_group_id", "group", "group")
MEAN = RewardNormalizationConfig("traj_group_id", "group", None)


def seen_of(rows: Sequence[Turns], uids: Sequence[int], sources: str = "", where: str = "turn") -> Experience:
    """Conversations of these turns; `sources`: a letter for each row's data source."""
    width = max(turns[-1][1] for turns in rows)
    episodes = tuple(
        Episode(tuple(Turn(s, e, r, 0.0, state=name) for s, e, r, name in each), TERMINATED) for each in rows
    )
    mask_BT, present_BT = torch.zeros(len(rows), width).long(), torch.zeros(len(rows), width).long()
    for row, episode in enumerate(episodes):
        present_BT[row, : episode.turns[-1].end] = 1
        for turn in episode.turns:
            mask_BT[row, turn.start : turn.end] = 1
    ones, zeros = torch.ones(len(rows), 1).long(), torch.zeros(len(rows), width)
    labels = tuple(Row(i, "lake", source, None) for i, source in enumerate(sources or "x" * len(rows)))
    prompts = Prompts(ones, ones, torch.tensor(uids), torch.arange(len(rows)), labels)
    rollout = Rollout(prompts, mask_BT, mask_BT, zeros, present_BT, episodes)
    return Experience(rollout, placed_rewards(episodes, width, where), zeros, zeros, zeros)


def advantages(seen: Experience, **algorithm: object) -> Tensor:
    config = Config(algorithm=AlgorithmConfig(**algorithm))  # type: ignore[arg-type]
    return ppo.train_batch(seen, 0.0, config)[0].advantages_BT


def test_a_turns_return_is_discounted_by_turns_and_not_by_tokens() -> None:
    """0.5 of what the next turn earns, however many tokens and observations lie between them."""
    found = advantages(seen_of([TWO_TURNS], [0]), adv_estimator="agentic_reinforce", gamma=0.5)
    torch.testing.assert_close(found, torch.tensor([[0.4, 0.4, 0, 0, 0, 1, 1]]))
    # as ROLL's pipeline has it, which lays the whole of the reward on the last token
    found = advantages(seen_of([TWO_TURNS], [0], where="last"), adv_estimator="agentic_reinforce", gamma=0.5)
    torch.testing.assert_close(found, torch.tensor([[0.45, 0.45, 0, 0, 0, 0.9, 0.9]]))


def test_reinforce_passes_over_observations() -> None:
    found = advantages(seen_of([TWO_TURNS], [0]), adv_estimator="reinforce", gamma=0.5)
    torch.testing.assert_close(found, torch.tensor([[0.075, 0.15, 0, 0, 0, 0.5, 1]]))


def test_step_reinforce_compares_what_follows_upon_turns() -> None:
    seen = seen_of([TWO_TURNS, [(0, 1, 1.0, "a")]], [0, 0])
    found = advantages(seen, adv_estimator="step_reinforce", step_reward_gamma=0.5)
    torch.testing.assert_close(found, torch.tensor([[0.4, 0.4, 0, 0, 0, 1, 1], [1, 0, 0, 0, 0, 0, 0]]))
    # less the mean of the group's three turns, 0.8; over their deviation, 0.34641
    found = advantages(seen, adv_estimator="step_reinforce", step_reward_gamma=0.5, reward_normalization=MEAN)
    torch.testing.assert_close(found, torch.tensor([[-0.4, -0.4, 0, 0, 0, 0.2, 0.2], [0.2, 0, 0, 0, 0, 0, 0]]))
    found = advantages(seen, adv_estimator="step_reinforce", step_reward_gamma=0.5, reward_normalization=MEAN_STD)
    wanted = torch.tensor([[-1.1547, -1.1547, 0, 0, 0, 0.57735, 0.57735], [0.57735, 0, 0, 0, 0, 0, 0]])
    torch.testing.assert_close(found, wanted, atol=2e-5, rtol=1e-5)


def test_gigpo_adds_the_conversations_and_the_states_advantage() -> None:
    """Two samples of a task that begin in the same state, and another task's that never meets them.

    Conversations earn 0.9, 0.5 and 4: less their group's mean, 0.2, -0.2 and 0. In state a, turns are followed by 0.4
    and 0.5: -0.05 and 0.05. States b, and a of the other task, have one turn each: 0.
    """
    seen = seen_of([TWO_TURNS, [(0, 1, 0.5, "a")], [(0, 2, 4.0, "a")]], [7, 7, 8])
    settings = {"adv_estimator": "gigpo", "step_reward_gamma": 0.5, "reward_normalization": MEAN}
    found = advantages(seen, **settings)
    wanted = torch.tensor([[0.15, 0.15, 0, 0, 0, 0.2, 0.2], [-0.15, 0, 0, 0, 0, 0, 0], [0.0] * 7])
    torch.testing.assert_close(found, wanted)
    found = advantages(seen, **settings, episode_reward_weight=2.0, step_reward_weight=10.0)
    wanted = torch.tensor([[-0.1, -0.1, 0, 0, 0, 0.4, 0.4], [0.1, 0, 0, 0, 0, 0, 0], [0.0] * 7])
    torch.testing.assert_close(found, wanted)
    # over deviations: of 0.9 and 0.5 0.28284, of 0.4 and 0.5 0.070711
    found = advantages(seen, **{**settings, "reward_normalization": MEAN_STD})
    wanted = torch.tensor([[0, 0, 0, 0, 0, 0.70711, 0.70711], [0.0] * 7, [0.0] * 7])
    torch.testing.assert_close(found, wanted, atol=2e-5, rtol=1e-5)


def test_a_row_of_one_turn_has_the_advantage_that_the_turn_has() -> None:
    """The same conversation, a row for all of it and a row for each turn."""
    whole = seen_of([TWO_TURNS, [(0, 1, 0.5, "a")]], [7, 7])
    parts = seen_of([[(0, 2, -0.1, "a")], [(0, 2, 1.0, "b")], [(0, 1, 0.5, "a")]], [7, 7, 7])
    steps = ((0, (-0.1, 1.0)), (1, (-0.1, 1.0)), (0, (0.5,)))
    pairs = zip(parts.rollout.episodes or (), steps, strict=True)
    episodes = tuple(replace(each, step=step, rewards=rewards) for each, (step, rewards) in pairs)
    parts = replace(parts, rollout=replace(parts.rollout, episodes=episodes))
    for estimator in by_turn_names.COMPARE_TURNS:
        one, other = (advantages(seen, adv_estimator=estimator, step_reward_gamma=0.5) for seen in (whole, parts))
        assert other.tolist() == [one[0, :2].tolist(), one[0, 5:].tolist(), one[1, :2].tolist()]


def test_rewards_are_normalised_by_their_group() -> None:
    """Rows of two tasks and two data sources, of 1, 0, 4 and 6."""
    rows: list[Turns] = [[(0, 2, reward, "a")] for reward in (1.0, 0.0, 4.0, 6.0)]
    seen = seen_of(rows, [7, 7, 7, 9], sources="abab")

    def rewards(grouping: str, mean: str | None, std: str | None, clip: float | None = None) -> list[float]:
        norm = RewardNormalizationConfig(grouping, mean, std)
        config = AlgorithmConfig(adv_estimator="reinforce", reward_normalization=norm, reward_clip=clip)
        placed_BT = shaping.shaped(seen, config).scores_BT
        assert placed_BT[:, 0].tolist() == [0.0] * 4
        return placed_BT[:, 1].tolist()

    near = lambda *values: pytest.approx(values, abs=1e-5)  # noqa: E731
    assert rewards("batch", None, None) == [1, 0, 4, 6]
    assert rewards("batch", None, None, 3.0) == [1, 0, 3, 3]
    assert rewards("batch", "batch", None) == near(-1.75, -2.75, 1.25, 3.25)
    assert rewards("batch", "batch", "batch") == near(-0.63549, -0.99862, 0.45392, 1.18019)
    assert rewards("traj_group_id", "group", None) == near(-2 / 3, -5 / 3, 7 / 3, 0)
    assert rewards("traj_group_id", "group", "group") == near(-0.32026, -0.80064, 1.12090, 0)  # a group of one: 0
    assert rewards("traj_group_id", "group", "batch") == near(-0.24209, -0.60523, 0.84732, 0)
    assert rewards("tags", "group", "group") == near(-0.70711, -0.70711, 0.70711, 0.70711)
    # a group whose rows are alike says nothing
    alike = seen_of(rows[:1] * 3, [7, 7, 7])
    config = AlgorithmConfig(adv_estimator="reinforce", reward_normalization=MEAN_STD)
    assert shaping.shaped(alike, config).scores_BT.abs().sum() == 0


def test_rewards_of_turns_keep_their_places() -> None:
    """Scaled where they lie; what is subtracted lies on the last token."""
    seen = seen_of([TWO_TURNS, [(0, 1, 0.5, "a")]], [7, 7])
    config = AlgorithmConfig(adv_estimator="agentic_reinforce", reward_normalization=MEAN_STD)
    placed_BT = shaping.shaped(seen, config).scores_BT
    assert placed_BT[0, 1] == pytest.approx(-0.1 / 0.28284, abs=1e-5)
    torch.testing.assert_close(placed_BT.sum(-1), torch.tensor([0.70711, -0.70711]), atol=1e-5, rtol=1e-5)
    assert placed_BT[0].nonzero().flatten().tolist() == [1, 6]


def test_advantages_are_whitened_and_clipped_at_the_end() -> None:
    seen = made_up(3)
    plain = advantages(seen, adv_estimator="agentic_reinforce")
    white = advantages(seen, adv_estimator="agentic_reinforce", whiten_advantages=True, advantage_clip=0.5)
    kept = seen.rollout.mask_BT.bool()
    wanted = (plain[kept] - plain[kept].mean()) / plain[kept].std()
    torch.testing.assert_close(white[kept], wanted.clamp(-0.5, 0.5), atol=1e-5, rtol=1e-5)
    assert white[~kept].abs().sum() == 0
    # those of GAE are whitened anyway, once, and not where that is turned off
    for seen in (made_up(4), experience(4)):
        once = advantages(seen, adv_estimator="gae")
        assert torch.equal(once, advantages(seen, adv_estimator="gae", whiten_advantages=True))
        assert not torch.equal(once, advantages(seen, adv_estimator="gae", whiten_advantages=False))


@pytest.mark.parametrize("estimator", ["gae", "grpo", "rloo", "reinforce_plus_plus"])
def test_with_all_of_it_off_nothing_is_touched(estimator: str) -> None:
    seen, config = experience(5), AlgorithmConfig(adv_estimator=estimator)
    assert shaping.shaped(seen, config) is seen
    x_BT = seen.old_logp_BT
    assert shaping.finished(x_BT, seen.rollout.mask_BT, config) is x_BT


def roll_reinforce_return(rewards: Tensor, mask: Tensor, gamma: float) -> Tensor:
    """`compute_agentic_reinforce_return` of ROLL, by its own account: segments from the last one."""
    returns = torch.zeros_like(rewards)
    for row in range(len(rewards)):
        ends = [t for t in range(mask.shape[1]) if mask[row, t] and (t + 1 == mask.shape[1] or not mask[row, t + 1])]
        starts = [t for t in range(mask.shape[1]) if mask[row, t] and (t == 0 or not mask[row, t - 1])]
        total = 0.0
        for start, end in zip(starts[::-1], ends[::-1], strict=True):
            total = float(rewards[row, end]) + gamma * total
            returns[row, start : end + 1] = total
    return returns


SHAPES = st.lists(
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3), st.floats(-2, 2, width=32)), min_size=1, max_size=4),
    min_size=1,
    max_size=4,
)


@settings(max_examples=60, deadline=None)
@given(SHAPES, st.floats(0, 1))
def test_as_roll_where_observations_part_the_turns(rows: list[list[tuple[int, int, float]]], gamma: float) -> None:
    laid: list[Turns] = []
    for row in rows:
        start, turns = 0, []
        for tokens, read, reward in row:
            turns.append((start, start + tokens, reward, ""))
            start += tokens + read
        laid.append(turns)
    seen = seen_of(laid, list(range(len(laid))))
    found = advantages(seen, adv_estimator="agentic_reinforce", gamma=gamma)
    torch.testing.assert_close(found, roll_reinforce_return(seen.scores_BT, seen.rollout.mask_BT, gamma))


def test_an_estimator_of_turns_needs_conversations() -> None:
    with pytest.raises(ValueError, match="no conversations"):
        advantages(experience(1), adv_estimator="gigpo")
