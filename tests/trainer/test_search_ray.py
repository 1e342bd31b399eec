"""Runs that search as a user starts them: on a Ray of their own, with the run's own retriever; nothing is left."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.trainer.conftest import Words
from tests.trainer.runs import DEADLINE_S, assert_one_error, complete, metrics_of, running, wait_until_gone
from trainer.data.recipes import RECIPES

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(3 * DEADLINE_S)]


def words_of(words: Words, folder: Path, *changes: str) -> list[str]:
    """Search-R1's keys, as seed 003 has them."""
    recipe = RECIPES["nq"].for_search()
    rows = [recipe.row({"question": f"who is number {i}", "answer": [f"n{i}"]}, "train", i) for i in range(12)]
    pq.write_table(pa.Table.from_pylist(rows, schema=recipe.schema), folder / "nq.parquet")
    (folder / "corpus.jsonl").write_text('{"id": "0", "contents": "\\"who\\"\\nnumber"}\n')
    return words(
        *("data.train_files=nq.parquet", "data.val_files=nq.parquet", "data.train_batch_size=4"),
        *("max_turns=2", "data.max_start_length=64", "data.max_prompt_length=160", "data.max_response_length=8"),
        *("data.max_obs_length=20", "actor_rollout_ref.rollout.n_agent=2", "algorithm.no_think_rl=false"),
        *("actor_rollout_ref.actor.state_masking=true", "actor_rollout_ref.actor.ppo_mini_batch_size=2"),
        *("trainer.n_gpus_per_node=2", "trainer.total_training_steps=2", "trainer.test_freq=2", *changes),
        without=("data.max_prompt_length", "data.max_response_length"),
    )


def test_two_ranks_search_and_leave_nothing(words: Words, tmp_path: Path) -> None:
    command = words_of(words, tmp_path, "retriever.serve=corpus.jsonl", "trainer.rollout_data_dir=samples")
    code, run = complete(command, tmp_path)
    assert code == 0, run.text
    assert "retriever: 1 passage" in run.text
    metrics = metrics_of(tmp_path / "run")
    assert [metrics[step]["env/number_of_actions/mean"] for step in (1, 2)] == [3, 3]
    assert all(metrics[step]["training/rollout_logp_diff_max"] < 1e-4 for step in (1, 2))
    assert metrics[2]["val-core/nq/reward/mean@1"] == 0
    samples = [json.loads(line) for line in (tmp_path / "samples/2.jsonl").read_text().splitlines()]
    assert len(samples) == 8 and all(len(sample["turns"]) == 3 for sample in samples)


def test_a_retriever_that_is_not_there_ends_the_run_before_its_first_step(
    words: Words, tmp_path: Path, free_port: int
) -> None:
    url = f"http://127.0.0.1:{free_port}/retrieve"
    code, run = complete(words_of(words, tmp_path, f"retriever.url={url}"), tmp_path)
    assert code == 1
    assert_one_error(run, url, "no retriever answers")


def test_the_demo_runs_as_it_is_typed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "trainer.demo.search", "--output", "out", "trainer.total_training_steps=2"]
    with running([*command, "trainer.test_freq=2"], tmp_path) as run:
        assert run.wait() == 0, run.text
        assert wait_until_gone(run.mark) == [], run.text
    assert "right answers by step" in run.text and "devkit agent show" in run.text
    metrics = metrics_of(tmp_path / "out")
    assert (tmp_path / "out/reward.svg").exists() and metrics[2]["env/number_of_valid_search"] > 0.3
    samples = [json.loads(line) for line in (tmp_path / "out/samples/2.jsonl").read_text().splitlines()]
    assert any("<information>Doc 1(Title: " in turn["answered"] for sample in samples for turn in sample["turns"])
