"""Seed 004's list for V100s, with a tiny model and few steps, on a Ray of its own: two ranks, and nothing is left."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from tests.trainer.runs import DEADLINE_S, metrics_of, running, wait_until_gone

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(3 * DEADLINE_S)]
ROLL = Path(__file__).parents[1] / "config" / "roll"


def small(folder: Path, model: str) -> None:
    """The file over ROLL's own, in its place: what a user would change to try it on a CPU."""
    shutil.copytree(ROLL, folder / "examples")
    keys = {
        "pretrain": model,
        **{f"{role}.device_mapping": None for role in ("actor_train", "actor_infer", "reference")},
        "actor_train.training_args.per_device_train_batch_size": 2,
        "actor_train.training_args.gradient_accumulation_steps": 1,
        "actor_infer.generating_args.max_new_tokens": 6,
        "actor_infer.strategy_args.strategy_name": "hf_infer",
        "rollout_batch_size": 4,
        "val_batch_size": 2,
        "sequence_length": 500,
        "prompt_length": 250,
        "max_actions_per_traj": 3,
        "max_steps": 2,
        "eval_steps": 2,
        "track_with": "stdout",
        "rollout_dump_dir": "samples",
        "checkpoint_config.output_dir": "run",
        "agent_system_template": "Play.",
        **{f"custom_envs.{tag}.env_config.env_instruction": "Go." for tag in ("FrozenLake", "SimpleSokoban")},
        **{f"custom_envs.{tag}.env_config.grid_vocab": {"P": "you"} for tag in ("FrozenLake", "SimpleSokoban")},
    }
    text = yaml.safe_dump({"defaults": ["004_v100@_here_"], **keys})
    (folder / "examples/agentic_demo/small.yaml").write_text(text)


def test_seed_004_runs_on_a_cpu(tiny_model: str, tmp_path: Path) -> None:
    small(tmp_path, tiny_model)
    command = [sys.executable, "-m", "trainer.main_agentic", "--config_path", "agentic_demo", "--config_name", "small"]
    with running(command, tmp_path) as run:
        assert run.wait() == 0, run.text
        assert wait_until_gone(run.mark) == [], run.text
    metrics = metrics_of(tmp_path / "run")
    assert [metrics[step]["agent/dropped"] for step in (1, 2)] == [0, 0]
    assert all(metrics[step]["training/rollout_logp_diff_max"] < 1e-4 for step in (1, 2))
    assert all(1 <= metrics[step]["agent/turns/mean"] <= 3 for step in (1, 2))
    assert "agent/FrozenLake/action_is_valid/mean" in metrics[2]
    assert "val-core/SimpleSokoban/reward/mean@1" in metrics[2] and "val-core/FrozenLake/reward/mean@1" in metrics[2]
    samples = [json.loads(line) for line in (tmp_path / "samples/2.jsonl").read_text().splitlines()]
    assert len(samples) == 4 and {sample["data_source"] for sample in samples} == {"FrozenLake"}
    assert "Play." in samples[0]["prompt"] and "Go.\nThe meaning" in samples[0]["prompt"]
    assert "Turn 1:" in samples[0]["prompt"] and "You have 3 actions left" in samples[0]["prompt"]
