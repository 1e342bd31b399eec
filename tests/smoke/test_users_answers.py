"""Wrong answers that a user's reward function takes for right ones, asked through the real process that calls it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from devkit.smoke import made_up_responses as made_up
from devkit.smoke.checks import users_answers, users_own
from devkit.smoke.direct_process import Answer
from devkit.smoke.made_up_responses import Said
from devkit.smoke.probing import Probed
from devkit.smoke.problems import write_parquet
from tests.smoke.test_users_own import CHECKS, FINE, asked, one_process, said

__all__ = ["one_process"]  # a fixture of this module, too

LAST = "found = re.findall(r'####\\s*(-?[0-9][0-9,]*(?:\\.[0-9]+)?)', solution_str)\n"


def file_of(folder: Path, *truths: str) -> str:
    """Eight rows of word problems with these ground truths, over and over."""
    folder.mkdir(exist_ok=True)
    path, _ = write_parquet(folder, 8, seed=0)
    rows = pq.read_table(path).to_pylist()
    for i, each in enumerate(rows):
        each["reward_model"]["ground_truth"] = truths[i % len(truths)]
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("data")
    return {
        "numbers": file_of(folder / "numbers", "72", "31", "104", "55", "48", "260", "83", "97"),
        "near each other": file_of(folder / "near", "72", "75", "104", "108", "48", "50", "83", "85"),
        "small numbers": file_of(folder / "small", "3", "8", "5", "12", "7", "4", "9", "6"),
        "some negative": file_of(folder / "negative", "-72", "31", "-104", "55", "48", "-260", "83", "97"),
        "one negative": file_of(folder / "one", "72", "31", "-104", "55", "48", "260", "83", "97"),
        "decimals": file_of(folder / "decimals", "72.5", "31.25", "104.0", "55.5", "48.125", "0.5", "83.1", "97.3"),
        "floats": file_of(folder / "floats", "72.0", "31.0", "104.0", "55.0", "48.0", "260.0", "83.0", "97.0"),
        "words": file_of(folder / "words", "Paris", "Rome", "Berlin", "Oslo"),
        "choices": file_of(folder / "choices", "A", "B", "C", "D"),
    }


def close(tolerance: str) -> str:
    return LAST + (
        "if not found:\n    return 0.0\n"
        f"said, right = float(found[-1].replace(',', '')), float(ground_truth)\nreturn float({tolerance})"
    )


SIGNLESS = "found = re.findall(r'####\\D*([0-9][0-9,]*)', solution_str)\n"
FAILS = {
    "within 10 %": (close("abs(said - right) <= 0.1 * abs(right)"), "numbers", "a number near the right one is right"),
    "within 10 %, of close ones": (close("abs(said - right) <= 0.1 * abs(right)"), "near each other", "near the right"),
    "within 10 %, of decimals": (close("abs(said - right) <= 0.1 * abs(right)"), "decimals", "near the right one"),
    "by its size alone": (
        close("abs(said) == abs(right)"),
        "some negative",
        "negative number is right without its sign",
    ),
    "texts of floats": (
        LAST + "return float(found[-1:] == [ground_truth])",
        "floats",
        "a whole number is wrong without its .0: '.*72' earns 0, and '.*72.0' 1; are the ground truths from a column",
    ),
    "at the very beginning": (
        "found = re.match(r'####\\s*(-?[0-9][0-9,]*)', solution_str.strip())\n"
        "return float(bool(found) and found[1] == ground_truth)",
        "numbers",
        r"^the answer earns only at the very beginning of the response: .*'Let me see. #### 72' earns 0, and"
        r" '#### 72 That is all.' 1",
    ),
}
TOLD = {
    "within 5 %": (close("abs(said - right) <= 0.05 * abs(right)"), "numbers", "so much tolerance meant"),
    "off by one": (
        close("abs(said - right) <= 1"),
        "small numbers",
        "'#### 4' earns 1, as the right answer '#### 3' does; is",
    ),
    "any number": (
        "return float(ground_truth in re.findall(r'-?[0-9]+', solution_str.replace(',', '')))",
        "numbers",
        "is right, though its last answer is another: '.*right where any mention counts",
    ),
    "alike as a whole": (
        "return SequenceMatcher(None, solution_str.strip(), ground_truth).ratio()",
        "numbers",
        "^a right answer behind a few words earns less than a wrong one alone: 'Let me see. 72' earns 0.25, and",
    ),
    "the beginning of the text": (
        "return float(solution_str.strip().startswith(ground_truth))",
        "choices",
        "only at the very beginning of the response",
    ),
    "at least as much": (close("said >= right"), "numbers", "^no form was found"),
    "thoughts first, in tags of its own": (
        "found = re.match(r'<work>.*?</work>\\s*<SOLUTION>(.*?)</SOLUTION>', solution_str, re.DOTALL)\n"
        "return float(bool(found) and found[1].strip() == ground_truth)",
        "numbers",
        "^no form was found",
    ),
    "nothing but the marked answer": (
        "return float(solution_str.strip() == f'#### {ground_truth}')",
        "numbers",
        "^no form was found",
    ),
}
GOOD = {
    "rounded": (close("abs(said - right) <= 1e-4 * abs(right)"), "decimals"),
    "rounded, of floats": (close("abs(said - right) <= 1e-4 * abs(right)"), "floats"),
    "texts of decimals": (LAST + "return float(found[-1:] == [ground_truth])", "decimals"),
    "the nearer the better": (close("1 / (1 + abs(said - right))"), "numbers"),
    "the nearer the better, within limits": (close("max(0.0, 1 - abs(said - right) / 10)"), "small numbers"),
    "the last number, negative or not": (LAST + "return float(found[-1:] == [ground_truth])", "some negative"),
    "the first that is marked": (LAST + "return float(found[:1] == [ground_truth])", "numbers"),
    "punctuation aside": (
        "return float(boxed(solution_str).strip('-.,') == ground_truth.strip('-.,'))",
        "one negative",
    ),
    "a choice": (
        "found = re.findall(r'<answer>([A-D])</answer>', solution_str)\nreturn float(found[-1:] == [ground_truth])",
        "choices",
    ),
    "words in tags": ("return float(boxed(solution_str).lower() == ground_truth.lower())", "words"),
    "a text that mentions it": ("return float(ground_truth in solution_str)", "words"),
}


@pytest.mark.parametrize("name", FAILS)
def test_a_wrong_answer_that_is_right(name: str, tmp_path: Path, files: dict[str, str]) -> None:
    source, file, words = FAILS[name]
    outcome = users_answers.reward_answer(asked(tmp_path, files[file], source))
    said(outcome, False, words)
    said(outcome, False, r": look at .*reward\.py:\d+$")


@pytest.mark.parametrize("name", TOLD)
def test_what_may_be_meant_is_told(name: str, tmp_path: Path, files: dict[str, str]) -> None:
    source, file, words = TOLD[name]
    probed = asked(tmp_path, files[file], source)
    said(users_answers.reward_answer(probed), None, words)
    assert {each: look(probed).detail for each, look in CHECKS.items() if look(probed).ok is False} == {}


@pytest.mark.parametrize("name", [*GOOD, *FINE])
def test_nothing_is_said_of_a_reward_that_is_fine(name: str, tmp_path: Path, files: dict[str, str]) -> None:
    source, file = GOOD.get(name) or (FINE[name], "numbers")
    probed = asked(tmp_path, files[file], source)
    assert {each: look(probed).detail for each, look in CHECKS.items() if not look(probed).ok} == {}


def test_a_sign_that_is_lost_on_the_way(tmp_path: Path, files: dict[str, str]) -> None:
    """The right answer is read without its sign, and so is none where it is negative."""
    probed = asked(tmp_path, files["some negative"], SIGNLESS + "return float(found[-1:] == [ground_truth])")
    words = (
        r"^a right answer that is a negative number earns no more than nonsense .* In all 3 such rows of 8 \(0, 2, 5\)"
    )
    said(users_own.reward_truth(probed), False, words)
    harder = "return float(boxed(solution_str) == ground_truth and ground_truth not in ('-72', '31', '-260'))"
    said(users_own.reward_truth(asked(tmp_path, files["some negative"], harder)), None, r"in 3 of 8 rows \(0, 1, 5\)")


@pytest.mark.parametrize("file", ["numbers", "some negative", "decimals", "small numbers"])
def test_the_trainers_own_scorer_takes_no_wrong_answer(file: str, tmp_path: Path, files: dict[str, str]) -> None:
    assert users_answers.reward_answer(asked(tmp_path, files[file], None)).ok


@pytest.mark.parametrize("truth", ["1", "7", "13", "100", "-3", "2.5", "999999999999999", "0"])
@pytest.mark.parametrize("form", made_up.FORMS)
def test_made_up_answers_are_wrong_where_they_are_to_be(truth: str, form: str) -> None:
    """The right number is in none of those near it, and not in what follows upon it."""
    for each in made_up.near(0, form, truth):
        assert form.format(x=truth) != each.text
    [passed] = [each for each in made_up.around(0, form, truth, 512) if each.kind == made_up.PASSED]
    assert passed.text.count(truth) == 1 and passed.text.index(truth) < len("<think>It may be " + truth)


def scored(earns: Callable[[str], float], *truths: str) -> Probed:
    """Asked in one form: a right answer earns 1, another row's 0, and the others what `earns` says of their kind."""
    form = "#### {x}"
    responses = tuple(Said(i, form.format(x=truth), form) for i, truth in enumerate(truths))
    asked_ = [each for i, truth in enumerate(truths) for each in made_up.around(i, form, truth, 512)]
    asked_ += [each for i, truth in enumerate(truths) for each in made_up.near(i, form, truth)]
    right, wrong = (Answer(1.0),) * len(truths), (Answer(0.0),) * len(truths)
    return Probed(responses, right, wrong, around={each: earns(each.kind) for each in asked_})


WORDS = (made_up.PLAIN, *made_up.WORDS, made_up.BEHIND)


@pytest.mark.parametrize(
    ("also", "truths", "ok", "words"),
    [
        ((), ("72", "31"), True, "^26 answers"),
        (made_up.BEYOND, ("72", "31"), False, "^a number near the right one is right: '#### 77' earns 1"),
        (made_up.BEYOND[:1], ("72", "31"), True, ""),  # at least as much
        (made_up.BEYOND, ("72", "3"), True, ""),  # one row alone
        (made_up.NEXT, ("72", "3"), None, "the numbers beside the right one are right"),
        (made_up.NEXT[1:], ("72", "3"), True, ""),
        (
            (made_up.SIGN,),
            ("-72", "-3"),
            False,
            "without its sign: '#### 3' earns 1, as the right answer '#### -3' does",
        ),
        ((made_up.SIGN,), ("-72", "3"), True, ""),
        ((made_up.PASSED,), ("72", "31"), None, "its last answer is another: 'It may be 31"),
        ((made_up.WHOLE,), ("72.0", "31.0"), True, ""),
        ((), ("72.0", "31.0"), False, "a whole number is wrong without its .0: '#### 72' earns 0, and '#### 72.0' 1"),
        ((), ("72.0", "31.5"), True, ""),
    ],
)
def test_scores_of_other_answers(also: tuple[str, ...], truths: tuple[str, ...], ok: bool | None, words: str) -> None:
    probed = scored(lambda kind: float(kind in (*WORDS, *also)), *truths)
    said(users_answers.reward_answer(probed), ok, words)
