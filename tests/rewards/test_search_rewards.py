"""Search-R1's rewards against the numbers of its table, and what an answer is in a conversation."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.config.agent_schema import SearchRewardConfig
from trainer.config.schema import RewardFunctionConfig
from trainer.records import Row
from trainer.rewards import build_scorer, score_all
from trainer.rewards.search_r1 import SearchScorer, compute_score_subem, is_in_order

THINK, SEARCH = "<think>t</think>", "<search>q</search>"
TOLD = '\n\n<information>Doc 1(Title: "Faust") By Goethe, (1808).</information>\n\n'
ORDERED = f"{THINK}{SEARCH}{TOLD}{THINK}<answer> {{}} </answer>"
BARE = "<answer> {} </answer>"
V03 = SearchScorer(0.2, 0.1, 0.0)
FOUND = SearchScorer(0.2, 0.1, 0.05)


def score(scorer: SearchScorer, text: str, *target: str, **extra: Any) -> float:
    return scorer(solution_str=text, ground_truth={"target": list(target)}, extra_info=extra)["score"]


@pytest.mark.parametrize(
    ("scorer", "text", "targets", "expected"),
    [
        (V03, ORDERED.format("Goethe"), ["goethe"], 1.0),
        (V03, BARE.format("Goethe"), ["goethe"], 0.8),
        (V03, ORDERED.format("Schiller"), ["goethe"], 0.2),
        (V03, BARE.format("Schiller"), ["goethe"], 0.1),
        (V03, THINK, ["goethe"], 0.0),
        (V03, "", ["goethe"], 0.0),
        (FOUND, ORDERED.format("Schiller"), ["goethe"], 0.25),  # it was there to read
        (FOUND, ORDERED.format("Schiller"), ["Lessing"], 0.2),
        (FOUND, ORDERED.format("Schiller"), ["Lessing", "GOETHE"], 0.25),
        (FOUND, BARE.format("Schiller") + TOLD, ["goethe"], 0.1),  # not in order: what was found does not count
        (FOUND, ORDERED.format("Goethe"), ["goethe"], 1.0),
        (SearchScorer(), BARE.format("Goethe"), ["goethe"], 1.0),  # all three 0: exact match
        (SearchScorer(), ORDERED.format("Schiller"), ["goethe"], 0.0),
        (SearchScorer(0.2, 0.1, 0.0, "subem"), ORDERED.format("old Goethe"), ["goethe"], 1.0),
        (SearchScorer(0.2, 0.1, 0.0, "subem"), BARE.format("old Goethe"), ["goethe"], 0.8),
        (V03, ORDERED.format("old Goethe"), ["goethe"], 0.2),
    ],
)
def test_the_table(scorer: SearchScorer, text: str, targets: list[str], expected: float) -> None:
    assert math.isclose(score(scorer, text, *targets), expected)


@pytest.mark.parametrize(
    "text",
    [
        f"{THINK}<answer>a</answer>",
        f"\n {THINK} \n<answer>a</answer>\n",
        f"{THINK}{SEARCH}{TOLD}{THINK}{SEARCH}{TOLD}{THINK}<answer>a</answer>",
    ],
)
def test_in_order(text: str) -> None:
    assert is_in_order(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        THINK,
        "<answer>a</answer>",  # nothing was thought
        f"{THINK}{SEARCH}{TOLD}<answer>a</answer>",  # nor here
        f"{THINK}{SEARCH}{THINK}<answer>a</answer>",  # nothing was told
        f"{THINK}{TOLD}{THINK}<answer>a</answer>",
        f"{THINK}words<answer>a</answer>",
        f"words{THINK}<answer>a</answer>",
        f"{THINK}<answer>a</answer>words",
        f"{THINK}<answer>a",
        f"{THINK}<answer>a</answer><answer>b</answer>",
        f"<think>{THINK}</think><answer>a</answer>",
        f"{THINK}{SEARCH}\n\n<information>cut",
    ],
)
def test_out_of_order(text: str) -> None:
    assert not is_in_order(text)


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<search>", "</search>", TOLD, "<answer>", "</answer>", " ", "x"]))
)
def test_order_is_what_the_regular_expression_says(parts: list[str]) -> None:
    """The same language in another way."""
    import re

    text = "".join(parts)
    inside, space = r"(?:(?!</?(?:think|search|information|answer)>)[\s\S])*", r"\s*"
    think, search = rf"<think>{inside}</think>{space}", rf"<search>{inside}</search>{space}"
    told, answer = rf"<information>{inside}</information>{space}", rf"<answer>{inside}</answer>{space}"
    assert is_in_order(text) == bool(re.fullmatch(rf"{space}{think}(?:{search}{told}{think})*{answer}", text))


def test_only_what_the_model_said_can_be_an_answer() -> None:
    """A corpus may hold tags."""
    told = "\n\n<information>Doc 1(Title: x) <answer>Goethe</answer></information>\n\n"
    turns = [{"action": f"{THINK}{SEARCH}", "observation": told}, {"action": f"{THINK}hm", "observation": ""}]
    text = f"{THINK}{SEARCH}{told}{THINK}hm"
    assert score(V03, text, "goethe", turns=turns) == 0.0
    assert score(V03, text, "goethe") == 0.0  # nor without the turns
    assert (
        score(
            V03,
            text + "<answer>Goethe</answer>",
            "goethe",
            turns=[*turns, {"action": "<answer>Goethe</answer>", "observation": ""}],
        )
        == 0.8
    )


def test_a_run_scores_questions_by_form_and_the_rest_as_ever() -> None:
    rows = [Row(0, "a.parquet", "nq", {"target": ["goethe"]}), Row(1, "a.parquet", "openai/gsm8k", "7")]
    responses = [ORDERED.format("Schiller"), "#### 7"]
    shaped = SearchRewardConfig(structure_format_score=0.2, final_format_score=0.1)
    scores = score_all(responses, rows, build_scorer(RewardFunctionConfig(), None, shaped))
    assert scores.scores == [0.2, 1.0] and scores.extras["em"][0] == 0.0
    plain = build_scorer(RewardFunctionConfig(), None, SearchRewardConfig())
    assert plain is build_scorer(RewardFunctionConfig(), None)  # what it was before there were such keys
    contained = score_all(
        [BARE.format("old Goethe"), "#### 7"],
        rows,
        build_scorer(RewardFunctionConfig(), None, SearchRewardConfig(match="subem")),
    )
    assert contained.scores == [1.0, 1.0]


def test_a_function_for_ones_own_file() -> None:
    assert compute_score_subem(solution_str=BARE.format("in 1808"), ground_truth={"target": ["1808"]}) == 1.0
    assert compute_score_subem(solution_str=BARE.format("in 1808"), ground_truth={"target": ["1809"]}) == 0.0
    with pytest.raises(TypeError, match="ground_truth must be"):
        compute_score_subem(solution_str="", ground_truth=7)
