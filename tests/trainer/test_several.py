"""Several environments in one run: a tag's share of the tasks, seeds that name their tag, what is reported by tag."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.trainer.test_agent_run import play as play
from tests.trainer.test_agent_run import ran
from trainer.config import check_command
from trainer.data.episodes import TRAIN, VALIDATION, Episodes, seed_of
from trainer.env.several import Several

ENVS: dict[str, dict[str, Any]] = {
    "Lake": {"env": "frozen_lake", "rows": "SF/FG", "terse": True},
    "Room": {"env": "sokoban", "rows": "#####/#PXO#/#####"},
}


def test_a_seed_names_its_environment() -> None:
    tasks = Episodes("several", 40, 7, TRAIN, [*ENVS], {"Lake": 3, "Room": 1})
    rows = [tasks[i].row for i in range(40)]
    assert Counter(row.data_source for row in rows) == {"Lake": 30, "Room": 10}
    several = Several(ENVS)
    for i, row in enumerate(rows):
        seed = row.extra_info["seed"]
        assert abs(seed - seed_of(7, TRAIN, i)) < len(ENVS) and 0 <= seed < 2**31
        assert several.reset(seed=seed)[0] == {"Lake": "P_\n_G", "Room": "#####\n#PXO#\n#####"}[row.data_source]
    assert rows[0].label == "row 0 of Lake"
    even = [Episodes("several", 4, 7, VALIDATION, [*ENVS], None)[i].row.data_source for i in range(4)]
    assert even == ["Lake", "Room", "Lake", "Room"]


def test_what_is_reported_is_reported_by_tag() -> None:
    several = Several(ENVS)
    several.reset(seed=1)
    _, reward, terminated, _, info = several.step("<answer>Right</answer>")
    assert (terminated, info["success"]) == (True, True) and reward > 10
    assert info["metrics"]["Room/success"] is True and info["metrics"]["Room/action_is_valid"] == 1
    several.reset(seed=2)
    assert several.step("R")[4]["metrics"] == {"valid": 1.0, "Lake/valid": 1.0, "Lake/success": False}


@pytest.mark.parametrize(
    ("envs", "says"),
    [
        ({}, "does not name environments"),
        ({"A": 3}, "does not name environments"),
        ({"A": {"env": "search"}}, "no environment of the trainer"),
        ({"A": {"env": "several"}}, "no environment of the trainer"),
        ({"A": {"env": "sokoban", "boxes": 3}}, "A: "),
        ({"A": {"env": "sokoban", "num_boxes": 0}}, "1 to 8"),
    ],
)
def test_what_is_no_environment_is_refused(envs: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Several(envs)


def test_a_run_of_two(play: Callable[..., list[str]]) -> None:
    envs = "{Lake:{env:frozen_lake,size:2,terse:True},Room:{env:sokoban,dim_room:[5,5]}}"
    command = play(
        *(
            "agent.env=several",
            f"agent.env_kwargs={{envs:{envs}}}",
            "agent.tags=[Lake:1,Room:1]",
            "agent.val_tags=[Room]",
        ),
        *("algorithm.adv_estimator=reinforce", "data.max_prompt_length=800", "data.max_response_length=400"),
        "algorithm.reward_normalization={grouping:tags,norm_mean_type:group,norm_std_type:group}",
        *("trainer.test_freq=1", "trainer.total_training_steps=1"),
    )
    (line,) = ran([word for word in command if "game.py" not in word])
    assert "agent/Room/success/mean" in line and "agent/Lake/valid/mean" in line
    assert "val-core/Room/reward/mean@1" in line and "val-core/Lake/reward/mean@1" not in line


def test_tags_are_checked(play: Callable[..., list[str]]) -> None:
    def found(*words: str) -> dict[str, str]:
        command = [word for word in play(*words) if "game.py" not in word]
        report = check_command(command)
        return {each.key: each.message for each in (*report.problems, *report.notes)}

    envs = "agent.env_kwargs={envs:{Lake:{env:frozen_lake}}}"
    assert "has Lake" in found("agent.env=several", envs, "agent.val_tags=[Room]")["agent.val_tags"]
    assert "is not TAG:SHARE" in found("agent.env=several", envs, "agent.tags=['Lake:0']")["agent.env_kwargs"]
    assert "does not name" in found("agent.env=several", "agent.env_kwargs={size:3}")["agent.env_kwargs"]
    assert "is not several" in found("agent.env=sokoban", "agent.env_kwargs=[]", "agent.tags=[A]")["agent.tags"]
