"""The word problems that the smoke test writes itself, and the gate's reward."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from devkit.smoke.problems import GATE_REWARD, word_problems, write_parquet
from trainer.rewards.custom import load_function


def test_problems_are_right_and_in_the_published_format() -> None:
    for problem in word_problems(50, seed=3):
        had, more, gone = map(int, re.findall(r"\d+", problem["question"]))
        answer = had + more - gone
        assert problem["answer"].endswith(f"\n#### {answer}")
        assert re.search(r"<<([^=]+)=(\d+)>>", problem["answer"])
        assert answer > 0


def test_a_seed_decides_them() -> None:
    assert word_problems(5, seed=1) == word_problems(5, seed=1)
    assert word_problems(5, seed=1) != word_problems(5, seed=2)


def test_parquet_has_the_schema_that_the_trainer_reads(tmp_path: Path) -> None:
    train, test = write_parquet(tmp_path, 16, seed=0)
    for file, rows in ((train, 16), (test, 4)):
        table = pq.read_table(file)
        assert table.num_rows == rows
        assert {"data_source", "prompt", "reward_model", "extra_info"} <= set(table.column_names)
    asked = [{row["prompt"][-1]["content"] for row in pq.read_table(file).to_pylist()} for file in (train, test)]
    assert asked[0].isdisjoint(asked[1])


@pytest.mark.parametrize(
    ("response", "reward"), [("", 0.0), ("abcd", 0.0), ("a1b2", 0.5), ("1234", 1.0), ("1 2", 2 / 3)]
)
def test_the_gate_rewards_digits(response: str, reward: float) -> None:
    function = load_function(GATE_REWARD, "gate_reward.py", "compute_score")
    assert function(data_source="x", solution_str=response, ground_truth="", extra_info={}) == pytest.approx(reward)
