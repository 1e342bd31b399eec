"""GSM8K and exact match: what counts as the answer, and what it scores."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.rewards import exact_match, gsm8k


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("5 + 7 = 12\n#### 12", "12"),
        ("#### 3\nno wait\n#### 1,234", "1234"),  # the last one, commas removed
        ("#### -4.5", "-4.5"),
        ("####12", None),  # verl wants the space
        ("#### $12", None),
        ("the answer is 12", None),
        ("#### 12" + " " * gsm8k.TAIL_CHARS, None),  # too far from the end
        ("", None),
    ],
)
def test_strict_answer(text: str, answer: str | None) -> None:
    assert gsm8k.strict_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("first 3, then $1,200.", "1200"),
        ("about -0.5%", "-0.5"),
        ("1, 2, 3.", "3"),
        ("none at all ...", None),
    ],
)
def test_flexible_answer(text: str, answer: str | None) -> None:
    assert gsm8k.flexible_answer(text) == answer


@given(st.integers(-(10**12), 10**12), st.text(alphabet="ab #.,\n$"))
def test_every_number_written_as_told_is_found(number: int, before: str) -> None:
    text = f"{before}\n#### {number:,}"

    assert gsm8k.strict_answer(text) == gsm8k.flexible_answer(text) == str(number)


@given(st.text())
def test_number_parsers_take_any_text(text: str) -> None:
    for answer in (gsm8k.strict_answer(text), gsm8k.flexible_answer(text)):
        assert answer is None or "," not in answer


@pytest.mark.parametrize(
    ("text", "method", "score"),
    [
        ("#### 12", "strict", 1.0),
        ("#### 13", "strict", 0.1),  # a wrong answer in the right form
        ("it is 12", "strict", 0.0),  # the right answer in no form
        ("it is 12", "flexible", 1.0),
        ("it is 13", "flexible", 0.1),
    ],
)
def test_gsm8k_score(text: str, method: str, score: float) -> None:
    assert gsm8k.compute_score(solution_str=text, ground_truth="12", method=method, format_score=0.1) == score


def test_gsm8k_takes_a_number_as_ground_truth() -> None:
    assert gsm8k.compute_score(solution_str="#### 12", ground_truth=12) == 1.0


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Quick, brown FOX!", "quick brown fox"),
        ("a an the", ""),
        ("theatre and then", "theatre and then"),  # articles are whole words
        ("it's", "its"),
        ("Ångström", "ångström"),
    ],
)
def test_normalise(text: str, normal: str) -> None:
    assert exact_match.normalise(text) == normal


@given(st.text())
def test_normalise_is_idempotent(text: str) -> None:
    once = exact_match.normalise(text)

    assert exact_match.normalise(once) == once


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>Rome</answer>", "Rome"),
        ("<answer>Rome</answer> or <answer>\n Paris\n</answer>", "Paris"),
        ("<answer>Rome", None),
        ("Rome", None),
    ],
)
def test_last_answer(text: str, answer: str | None) -> None:
    assert exact_match.last_answer(text) == answer


@pytest.mark.parametrize("truth", [{"target": ["Rome", "the city of Rome"]}, ["Rome"], ("Rome",), "Rome"])
def test_exact_match_takes_targets_in_each_form(truth: object) -> None:
    assert exact_match.compute_score(solution_str="<answer>rome.</answer>", ground_truth=truth) == 1.0
    assert exact_match.compute_score(solution_str="<answer>in rome</answer>", ground_truth=truth) == 0.0


def test_exact_match_gives_a_quarter_for_a_flood_of_tags() -> None:
    few = "<answer>Rome</answer>" * exact_match.MAX_TAGS

    assert exact_match.compute_score(solution_str=few, ground_truth="Rome") == 1.0
    assert exact_match.compute_score(solution_str=few + "<answer>Rome</answer>", ground_truth="Rome") == 0.25


@pytest.mark.parametrize("truth", [None, 3, {"answers": ["Rome"]}, ["Rome", 3]])
def test_exact_match_refuses_other_ground_truths(truth: object) -> None:
    with pytest.raises(TypeError, match="ground_truth must be"):
        exact_match.compute_score(solution_str="<answer>Rome</answer>", ground_truth=truth)
