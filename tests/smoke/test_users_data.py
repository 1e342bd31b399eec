"""What rows of a user's data files are said to be: prompts without questions, ground truths of other rows."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from devkit.smoke.checks.outcome import Outcome
from devkit.smoke.checks.users_data import Sampled, data_rows
from devkit.smoke.problems import write_parquet
from devkit.smoke.results import Results
from devkit.smoke.shrink import make_plan
from devkit.smoke.users_files import look_at_command


def said(outcome: Outcome, ok: bool | None, words: str) -> None:
    assert outcome.ok is ok, outcome.detail
    assert re.search(words, outcome.detail), outcome.detail


def rows(truths: list[Any], prompts: list[Any] | None = None, file: str = "a.parquet") -> list[Sampled]:
    """Each with a prompt of its own, in no order, unless they are given."""
    order = random.Random(0).sample(range(1000), len(truths))
    prompts = prompts or [[{"role": "user", "content": f"question {i}"}] for i in order]
    pairs = enumerate(zip(prompts, truths, strict=True))
    return [Sampled(f"row {i} of {file}", prompt, truth, file=file) for i, (prompt, truth) in pairs]


MIXED = [str(each) for each in random.Random(1).sample(range(1000), 40)]


def test_one_prompt_with_different_ground_truths() -> None:
    same = rows(MIXED, ["Answer the question: {question}"] * 40)
    words = r"^40 of 40 rows have the same prompt 'Answer the question: {question}' and 40 different ground truths"
    said(data_rows(same, []), False, words + ".* Look at row 0 of a.parquet")
    nearly = rows(MIXED, ["Answer: {question}"] * 37 + ["1?", "2?", "3?"])
    said(data_rows(rows(MIXED, file="b.parquet") + nearly, []), False, "^37 of 40 rows")
    assert data_rows(rows(MIXED, ["Answer: {question}"] * 30 + [f"{i}?" for i in range(10)]), []).ok
    assert data_rows(rows(MIXED[:7], ["Answer:"] * 7), []).ok, "too few"
    assert data_rows(rows(["", *["7"] * 39], ["Tell a joke."] * 40)[1:], []).ok, "they do not contradict each other"


def test_prompts_that_are_messages_in_a_text() -> None:
    messages = [{"role": "user", "content": "1 + 1?"}]
    for text in (json.dumps(messages), str(messages), f" {json.dumps(messages, indent=1)} "):
        spoilt = rows(MIXED, [*(f"question {i}" for i in range(39)), text])
        said(data_rows(spoilt, []), False, "^the prompt of row 39 of a.parquet is a text that holds a list of messages")
    for text in ('[{"a": 1}]', "[1, 2]", "[{not closed", '{"role": "user", "content": "1"}'):
        assert data_rows(rows(MIXED, [*(f"question {i}" for i in range(39)), text]), []).ok, text


def test_whole_numbers_from_a_column_of_floats() -> None:
    words = (
        r"^the ground truth of row 0 of a.parquet \(40 of 40 rows\) is (\d+)\.0, as from .*: compared as a text, \1 is"
    )
    for made in (str, float):
        said(data_rows(rows([made(float(each)) for each in MIXED]), []), None, words)
    assert data_rows(rows([f"{each}.0" for each in MIXED[:-1]] + ["3.5"]), []).ok, "numbers with decimals"
    assert data_rows(rows(MIXED), []).ok


def test_ground_truths_that_were_sorted_on_their_own() -> None:
    numbers, letters = sorted(MIXED, key=int), sorted(random.Random(2).choices("ABCDEFGHIJ", k=40))
    for truths in (numbers, numbers[::-1], letters):
        found = data_rows(rows(truths), [])
        said(found, None, "^the ground truths from row 0 of a.parquet on are sorted, and the prompts are not")
    assert data_rows(rows(numbers, [f"count to {each}" for each in numbers]), []).ok, "the prompts are sorted, too"
    assert data_rows(rows(numbers[:19]), []).ok, "too few"
    assert data_rows(rows(["yes"] * 20 + ["no"] * 20), []).ok, "few different ones"
    assert data_rows(rows([*numbers[1:], numbers[0]]), []).ok


def test_published_answers_tell_whether_sorted_ground_truths_are_those_of_their_rows() -> None:
    spoilt = rows(sorted(MIXED, key=int))
    own = [replace(row, published=f"so\n#### {row.ground_truth}") for row in spoilt]
    assert data_rows(own, []).ok
    others = [replace(row, published=f"so\n#### {truth}") for row, truth in zip(spoilt, MIXED, strict=True)]
    said(data_rows(others, []), False, r"are sorted, .*: \d+ of 40 published answers do not hold their row's")


SPOILT = {
    "sorted": (False, "are sorted, and the prompts are not: .* published answers do not hold"),
    "JSON": (False, "the prompt of row 0 of .* is a text that holds a list of messages"),
    "floats": (None, r"is \d+\.0, as from a column of floats"),
    "no question": (False, "^128 of 128 rows have the same prompt 'Answer: {question}'"),
    "": (True, "128 rows for training and 16 for validation"),
}


@pytest.mark.parametrize("mistake", SPOILT)
def test_files_as_the_command_reads_them(mistake: str, tmp_path: Path) -> None:
    train, test = write_parquet(tmp_path, 128, seed=0)
    made = pq.read_table(train).to_pylist()
    truths = sorted((each["reward_model"]["ground_truth"] for each in made), key=int)
    for each, truth in zip(made, truths, strict=True):
        if mistake == "sorted":
            each["reward_model"]["ground_truth"] = truth
        elif mistake == "floats":
            each["reward_model"]["ground_truth"] += ".0"
        elif mistake == "JSON":
            each["prompt"] = json.dumps(each["prompt"])
        elif mistake == "no question":
            each["prompt"] = [{"role": "user", "content": "Answer: {question}"}]
    pq.write_table(pa.Table.from_pylist(made), train)
    results = Results()
    look_at_command(make_plan([f"data.train_files={train}", f"data.val_files={test}"], None).full, results)
    [found] = [each for each in results.all if each.name == "data-rows"]
    ok, words = SPOILT[mistake]
    said(Outcome({"pass": True, "fail": False}.get(found.status), found.detail), ok, words)
