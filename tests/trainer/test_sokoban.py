"""Sokoban: gym_sokoban's rewards and ROLL's words, and rooms that can be solved, from their seeds alone."""

from __future__ import annotations

import random
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from trainer.env.sokoban import Sokoban
from trainer.env.sokoban_rooms import ACTIONS, drawn_room, room_of, solution

ROOM = "######/#P_X_#/#__O_#/######"
ROLLS = (  # dim_room, num_boxes, search_depth: of ROLL's SimpleSokoban, LargerSokoban and SokobanDifferentGridVocab
    ((6, 6), 1, 300),
    ((10, 10), 2, 10),
    ((6, 6), 1, 30),
)


def said(name: str) -> str:
    return f"<answer>{name}</answer>"


def test_what_a_model_reads() -> None:
    text, info = Sokoban(rows=ROOM).reset(seed=1)
    assert text == "######\n#P_X_#\n#__O_#\n######"
    assert info == {
        "env_instruction": "You are solving the Sokoban puzzle. You are the player and you need to push all boxes to "
        "targets. When you are right next to a box, you can push it by moving in the same direction. You cannot push "
        "a box through a wall, and you cannot pull a box. The answer must be one of action in a turn, format is "
        "<answer>Right</answer>.\nThe meaning of each symbol in the state is:\n#: wall, _: empty, O: target, √: box "
        "on target, X: box, P: player, S: player on target\nYour available actions are:\nUp, Down, Left, Right"
    }


def test_each_reward_is_gym_sokobans() -> None:
    """-0.1 a step, 1 onto a target, -1 off it, 10 at the end; an answer that is no move is a step, too."""
    sokoban = Sokoban(rows="#######/#__P__#/#_XO__#/#__XO_#/#_____#/#######", format_penalty=-0.15)
    sokoban.reset(seed=1)
    steps: list[tuple[str, float, str]] = [
        ("I go left", -0.25, "__P__"),  # no move
        (said("Up"), -0.1, "__P__"),  # a wall
        (said("Left"), -0.1, "_P___"),
        (said("left"), -0.1, "P____"),
        (said("Down"), -0.1, "_____"),
        (said("Right"), 0.9, "_____"),  # a box onto its target
        (said("Right"), -1.1, "_____"),  # and off it again
    ]
    for action, reward, first in steps:
        text, got, terminated, truncated, info = sokoban.step(action)
        assert (got, terminated, truncated) == (pytest.approx(reward), False, False), action
        assert text.splitlines()[1] == f"#{first}#"
    assert text.splitlines()[2] == "#__SX_#"
    assert info["metrics"] == {"action_is_valid": pytest.approx(6 / 7), "action_is_effective": pytest.approx(5 / 7)}
    # two boxes on two targets end it
    sokoban = Sokoban(rows="#######/#PXO__#/#_√___#/#######")
    sokoban.reset(seed=1)
    text, reward, terminated, truncated, info = sokoban.step(said("Right"))
    assert (reward, terminated, truncated, info["success"]) == (pytest.approx(10.9), True, False, True)
    assert text == "#######\n#_P√__#\n#_√___#\n#######"


def test_boxes_are_pushed_one_at_a_time_and_never_pulled() -> None:
    room = room_of(["#######", "#PXXO_#", "#__O__#", "#######"])
    assert room.after(4) == room  # two in a row
    room = room_of(["######", "#_XPO#", "######"])
    assert room.after(4).boxes == room.boxes and room.after(4).player == (1, 4)  # walks away from it
    assert room.after(3).after(3).boxes == {(1, 1)} and room.after(3).after(3).player == (1, 2)  # it meets a wall


def test_max_steps_ends_an_episode() -> None:
    sokoban = Sokoban(rows=ROOM, max_steps=2)
    sokoban.reset(seed=1)
    assert sokoban.step("?")[2:4] == (False, False)
    assert sokoban.step(said("Right"))[2:4] == (False, True)
    sokoban.reset(seed=1)
    assert sokoban.step("?")[2:4] == (False, False)


# Nothing is shrunk: a smaller seed makes no simpler room, and a room that cannot be solved takes seconds to be drawn.
@settings(max_examples=60, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.integers(0, 2**31 - 1), st.sampled_from(ROLLS))
def test_every_room_can_be_solved_and_comes_from_its_seed_alone(seed: int, kind: tuple[Any, int, int]) -> None:
    size, boxes, depth = kind
    random.seed(1)
    sokoban = Sokoban(dim_room=size, num_boxes=boxes, search_depth=depth)
    text, _ = sokoban.reset(seed=seed)
    # by breadth, forwards: another way than the one that drew it
    way = solution(sokoban.room)
    assert way is not None and len(way) <= depth + 3
    random.seed(2)
    drawn_room.cache_clear()
    other = Sokoban(dim_room=size, num_boxes=boxes, search_depth=depth)
    other.reset(seed=seed ^ 1)
    assert other.reset(seed=seed)[0] == text
    # as it was asked for: an outer wall, so many boxes, each off its target
    assert [len(line) for line in text.splitlines()] == [size[1]] * size[0]
    edge = text.splitlines()[0] + text.splitlines()[-1] + "".join(line[0] + line[-1] for line in text.splitlines())
    assert set(edge) == {"#"}
    assert text.count("X") == boxes and text.count("√") == 0 and text.count("P") + text.count("S") == 1
    for action in way:
        _, reward, terminated, _, info = sokoban.step(said(ACTIONS[action]))
    assert (terminated, info["success"]) == (True, True) and reward > 10


def test_a_room_is_the_same_in_every_process() -> None:
    """ROLL's second try hashes a text, which Python salts in each process."""
    program = "from trainer.env.sokoban import Sokoban; print(Sokoban((7, 7), 2).reset(seed=5)[0])"
    again = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert again == [Sokoban((7, 7), 2).reset(seed=5)[0] + "\n"] * 2


def test_a_room_that_cannot_be_solved_has_no_solution() -> None:
    assert solution(room_of(["#####", "#X_P#", "#__O#", "#####"])) is None  # a box in a corner
    assert solution(room_of(["######", "#PX_O#", "######"])) == [4, 4]


def test_words_and_symbols_of_ones_own() -> None:
    """As ROLL's SokobanDifferentGridVocab has them; keys come as texts where they have been JSON."""
    symbols = {"0": "W", "1": ".", "2": "G", "3": "C", "4": "B", "5": "A", "6": "@"}
    sokoban = Sokoban(
        rows=ROOM,
        grid_lookup=symbols,
        grid_vocab={"W": "wall"},
        action_lookup={1: "N", 2: "S", 3: "W", 4: "E"},
        action_pattern=r"<think>(.*?)</think>\s*<answer>(.*?)</answer>",
        env_instruction="Push.",
    )
    text, info = sokoban.reset(seed=1)
    assert text == "WWWWWW\nWA.B.W\nW..G.W\nWWWWWW"
    assert info["env_instruction"].startswith("Push.\nThe meaning of each symbol in the state is:\nW: wall\nYour ")
    assert sokoban.step("<answer>E</answer>")[4]["metrics"]["action_is_valid"] == 0  # it has not thought
    assert sokoban.step("<think>\n</think>\n<answer> e </answer><|im_end|>")[0].splitlines()[1] == "W.AB.W"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"dim_room": (4, 6)}, "5 to 30"),
        ({"num_boxes": 0}, "1 to 8"),
        ({"rows": "###/#P#"}, "no room"),
        ({"rows": "####/#PX#/####"}, "a target for each"),
        ({"action_pattern": "("}, "no regular expression"),
        ({"action_pattern": "a"}, "0 groups"),
        ({"grid_lookup": ["#"]}, "by their numbers"),
        ({"action_lookup": {7: "Jump"}}, "other actions"),
    ],
)
def test_what_is_no_game_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sokoban(**wrong)


def test_a_room_without_a_place_for_its_boxes_is_told() -> None:
    with pytest.raises(ValueError, match="no room of 5 x 5 fields with 8 boxes"):
        Sokoban((5, 5), num_boxes=8).reset(seed=1)
