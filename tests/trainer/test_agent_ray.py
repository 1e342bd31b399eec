"""Runs with environments as a user starts them: on a Ray of their own, two ranks, and nothing is left."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.trainer.conftest import Words
from tests.trainer.runs import DEADLINE_S, assert_one_error, complete, metrics_of, running, wait_until_gone
from tests.trainer.test_agent_run import GAME

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(3 * DEADLINE_S)]
SIZES = ("agent.episodes=16", "agent.val_episodes=3", "agent.max_turns=3", "agent.max_turn_tokens=6")


def words_of(words: Words, folder: Path, *changes: str) -> list[str]:
    (folder / "game.py").write_text(GAME)
    return words(
        *("agent.env=game.py:Game", *SIZES, "data.train_batch_size=4", "actor_rollout_ref.rollout.n=2"),
        *("data.max_response_length=72", "actor_rollout_ref.actor.ppo_mini_batch_size=2"),
        *("trainer.n_gpus_per_node=2", "trainer.total_training_steps=2", "trainer.test_freq=2", *changes),
        without=("data.train_files", "data.val_files"),
    )


def test_two_ranks_play_train_and_leave_nothing(words: Words, tmp_path: Path) -> None:
    code, run = complete(words_of(words, tmp_path, "trainer.rollout_data_dir=samples"), tmp_path)
    assert code == 0, run.text
    metrics = metrics_of(tmp_path / "run")
    assert [metrics[step]["agent/dropped"] for step in (1, 2)] == [0, 0]
    assert all(metrics[step]["training/rollout_logp_diff_max"] < 1e-4 for step in (1, 2))
    assert "val-agent/success/mean" in metrics[2]
    samples = [json.loads(line) for line in (tmp_path / "samples/2.jsonl").read_text().splitlines()]
    assert len(samples) == 8 and all(len(sample["turns"]) >= 2 for sample in samples)


def test_too_many_that_hang_end_the_run_with_one_error(words: Words, tmp_path: Path) -> None:
    hangs = GAME.replace("import os; os._exit(9)", "import time; time.sleep(1000)")
    command = words_of(words, tmp_path, "agent.env_kwargs={fails:1,how:die}", "agent.turn_timeout=1")
    (tmp_path / "game.py").write_text(hangs)
    code, run = complete(command, tmp_path)
    assert code == 1
    assert_one_error(run, "0 of 8 trajectories can be used", "8 hung", "row ", "turn 2", "agent.turn_timeout")


def test_the_lakes_demo_runs_as_it_is_typed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "trainer.demo.lake", "--output", "out", "trainer.total_training_steps=2"]
    with running([*command, "data.train_batch_size=16", "agent.val_episodes=16"], tmp_path) as run:
        assert run.wait() == 0, run.text
        assert wait_until_gone(run.mark) == [], run.text
    assert "success by step" in run.text and "devkit agent show" in run.text
    assert (tmp_path / "out/reward.svg").exists() and metrics_of(tmp_path / "out")[2]["agent/turns/mean"] > 1
