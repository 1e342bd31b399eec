"""FrozenLake's rules are gymnasium's: every transition of `frozen_lake_gymnasium.json`, which gymnasium 1.4.0 wrote.

env = FrozenLakeEnv(desc=board, is_slippery=slippery);  env.unwrapped.P[state][action]
"""

from __future__ import annotations

import json
import random
from collections import Counter, deque
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.env.frozen_lake import ACTIONS, FrozenLake, drawn_board, find, moved

TABLES: list[dict[str, Any]] = json.loads((Path(__file__).with_name("frozen_lake_gymnasium.json")).read_text())[
    "tables"
]


def lake_at(board: list[str], state: int, *, slippery: bool) -> FrozenLake:
    lake = FrozenLake(rows="/".join(board), is_slippery=slippery, terse=True)
    lake.reset(seed=state)
    lake.place = divmod(state, len(board[0]))
    return lake


@pytest.mark.parametrize("table", [each for each in TABLES if not each["slippery"]])
def test_each_move_is_gymnasiums(table: dict[str, Any]) -> None:
    board = table["board"]
    for state, action, _, after, reward, ends in table["transitions"]:
        if board[state // len(board[0])][state % len(board[0])] in "HG":
            continue  # an episode has ended there
        lake = lake_at(board, state, slippery=False)
        _, earned, terminated, truncated, info = lake.step(ACTIONS[action][0])
        assert lake.place == divmod(after, len(board[0])), (board, state, action)
        assert (earned, terminated, truncated, info["success"]) == (reward, ends, False, reward == 1)


@pytest.mark.parametrize("table", [each for each in TABLES if each["slippery"]])
def test_ice_slips_to_where_gymnasiums_does(table: dict[str, Any]) -> None:
    """Its three moves, a third each, are ours: the same fields, as often."""
    board = table["board"]
    wanted: dict[tuple[int, int], Counter[int]] = {}
    for state, action, _, after, _, _ in table["transitions"]:
        wanted.setdefault((state, action), Counter())[after] += 1
    for (state, action), fields in wanted.items():
        place = divmod(state, len(board[0]))
        if board[place[0]][place[1]] in "HG":
            continue
        ways = [moved(board, place, (action + slip) % 4) for slip in (-1, 0, 1)]
        assert Counter(row * len(board[0]) + column for row, column in ways) == fields
        lake, seen = lake_at(board, state, slippery=True), set()
        for _ in range(60):
            lake.place = place
            lake.step(ACTIONS[action][0])
            seen.add(lake.place[0] * len(board[0]) + lake.place[1])
        assert seen == set(fields)


@settings(max_examples=40)
@given(st.integers(0, 2**31 - 1), st.integers(2, 7), st.floats(0.3, 1.0))
def test_every_board_can_be_solved_and_comes_from_its_seed_alone(seed: int, size: int, p: float) -> None:
    lake, other = FrozenLake(size=size, p=p, terse=True), FrozenLake(size=size, p=p, terse=True)
    random.seed(1)
    first, _ = lake.reset(seed=seed)
    random.seed(2)
    other.reset(seed=seed ^ 1)
    assert other.reset(seed=seed)[0] == first
    # by breadth, another way than the one that drew it
    ahead, ways = deque([(find(lake.board, "S"), "")]), dict[tuple[int, int], str]()
    while ahead:
        place, way = ahead.popleft()
        if place not in ways and lake.board[place[0]][place[1]] != "H":
            ways[place] = way
            ahead += [(moved(lake.board, place, i), way + name[0]) for i, name in enumerate(ACTIONS)]
    for letter in ways[find(lake.board, "G")]:
        _, reward, terminated, _, info = lake.step(letter)
    assert (reward, terminated, info["success"]) == (1.0, True, True)


def test_what_a_model_reads_and_writes() -> None:
    lake = FrozenLake(rows="SF/HG", format_penalty=-0.01)
    text, info = lake.reset(seed=3)
    assert text.endswith("\n\nP_\nOG") and "<answer>Left</answer>" in text and info == {"state": "P_\nOG"}
    # no move: the board stands, the penalty is the reward, and it says how to answer
    said, reward, terminated, truncated, info = lake.step("I go right")
    assert said.endswith("P_\nOG") and "no move" in said
    assert (reward, terminated, truncated) == (-0.01, False, False)
    assert info == {"success": False, "metrics": {"valid": 0.0}, "state": "P_\nOG"}
    # the last tag counts
    assert lake.step("<answer>Down</answer> or <answer> right </answer>")[0] == "_P\nOG"
    assert lake.step("<answer>Down</answer>")[0] == "__\nO!"
    lake.reset(seed=3)
    assert lake.step("<answer>Down</answer>")[:3] == ("__\nXG", 0.0, True)


@pytest.mark.parametrize("wrong", [{"size": 1}, {"p": 0}, {"rows": "SH/HG"}, {"rows": "SF/G"}, {"rows": "FF/FG"}])
def test_a_board_that_is_none_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"is no board|is not from"):
        FrozenLake(**wrong)


def test_the_share_of_ice_is_the_one_that_was_asked_for() -> None:
    dice = random.Random(1)
    fields = "".join("".join(drawn_board(dice, 10, 0.9)) for _ in range(40))
    assert abs(fields.count("F") / (fields.count("F") + fields.count("H")) - 0.9) < 0.03
