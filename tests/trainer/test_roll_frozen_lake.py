"""FrozenLake in ROLL's words: the same lake underneath, start and goal anywhere."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.env.frozen_lake import is_solvable
from trainer.env.roll_frozen_lake import RollFrozenLake, anywhere


def test_what_a_model_reads_and_writes() -> None:
    lake = RollFrozenLake(rows="SF/HG", is_slippery=False, format_penalty=-0.01)
    text, info = lake.reset(seed=3)
    assert text == "P_\nOG"
    assert info == {
        "env_instruction": "You are solving the FrozenLake puzzle. Forbid the whole and go to the target. You may move "
        "to the unintended direction due to the slippery ice. The answer must be one of action in a turn, format is "
        "<answer>Right</answer>\nThe meaning of each symbol in the state is:\nP: player, _: empty, O: hole, G: goal, "
        "X: player in hole, √: player on goal\nYour available actions are:\nLeft, Down, Right, Up"
    }
    # no move: the board stands, and the penalty is the reward
    said, reward, terminated, truncated, info = lake.step("Right")
    assert (said, reward, terminated, truncated) == (text, -0.01, False, False)
    assert info == {"success": False, "metrics": {"action_is_valid": 0.0, "action_is_effective": 0.0}}
    # the first tag counts
    said, reward, _, _, info = lake.step("<answer> right </answer><answer>Down</answer>")
    assert (said, reward, info["metrics"]) == ("_P\nOG", 0.0, {"action_is_valid": 0.5, "action_is_effective": 0.5})
    assert lake.step("<answer>Down</answer>")[:3] == ("__\nO√", 1.0, True)
    lake.reset(seed=3)
    assert lake.step("<answer>Down</answer>")[:3] == ("__\nXG", 0.0, True)


@settings(max_examples=60)
@given(st.integers(0, 2**31 - 1), st.integers(2, 7), st.floats(0.3, 1.0))
def test_boards_can_be_solved_and_come_from_their_seeds(seed: int, size: int, p: float) -> None:
    lake = RollFrozenLake(size=size, p=p)
    random.seed(seed)
    text, _ = lake.reset(seed=seed)
    other = RollFrozenLake(size=size, p=p)
    other.reset(seed=seed ^ 1)
    assert other.reset(seed=seed)[0] == text
    assert sorted("".join(text.split()).replace("_", "").replace("O", "")) == ["G", "P"]
    assert is_solvable(anywhere(random.Random(seed), size, p))


def test_start_and_goal_stand_anywhere() -> None:
    starts = {RollFrozenLake(size=3).reset(seed=seed)[0].replace("\n", "").index("P") for seed in range(200)}
    assert starts == set(range(9))


def test_max_steps_and_slipping() -> None:
    lake = RollFrozenLake(rows="SFF/FFF/FFG", max_steps=2)
    lake.reset(seed=1)
    assert lake.step("?")[2:4] == (False, False)
    assert lake.step("?")[2:4] == (False, True)
    ends = set()
    for seed in range(60):  # on slippery ice, its class's default, a move goes where it was not meant to
        lake.reset(seed=seed)
        ends.add(lake.step("<answer>Right</answer>")[0])
    assert len(ends) == 3


def test_another_number_of_actions_is_refused() -> None:
    with pytest.raises(ValueError, match="other actions"):
        RollFrozenLake(action_lookup={9: "Jump"})
