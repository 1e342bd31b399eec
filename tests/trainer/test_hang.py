"""A rank of the trainer that stays away from a collective: `devkit hang` says which, and at which line."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.debug.conftest import Cluster, Job, cluster, eventually, launch
from tests.trainer.conftest import Words
from tests.trainer.runs import main_ppo

__all__ = ["cluster", "launch"]

# Loaded by every rank; of the team that trains, rank 1 never comes to the actor's first gradient.
REWARD = """
import time
from pathlib import Path
import torch.distributed as dist
from trainer import ppo

plain = ppo.actor_loss

def actor_loss(*args, **kwargs):
    if dist.get_rank() == 1:
        Path({mark!r}).write_text("late")
        time.sleep(600)
    return plain(*args, **kwargs)

ppo.actor_loss = actor_loss

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return 0.0
"""
LINE = REWARD.splitlines().index("        time.sleep(600)") + 1
APART = ("trainer.n_gpus_per_node=3", "trainer.device_mapping.actor=[1,2]", "trainer.device_mapping.rollout=[0]")


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("changes", "role"), [(("trainer.n_gpus_per_node=2",), "PPOWorker"), (APART, "ActorWorker")])
def test_the_rank_that_stays_away_is_named(
    cluster: Cluster, launch: Callable[..., Job], words: Words, tmp_path: Path, changes: tuple[str, ...], role: str
) -> None:
    mark, reward = tmp_path / "mark", tmp_path / "reward.py"
    reward.write_text(REWARD.format(mark=str(mark)))
    settings = (f"custom_reward_function.path={reward}", f"trainer.default_local_dir={tmp_path}", *changes)
    job = launch("--", *main_ppo(words("algorithm.adv_estimator=grpo", *settings))).joined()
    eventually(lambda: mark.exists() or job.process.poll() is not None, "the late rank", 150)
    assert job.process.poll() is None, job.out
    found: dict[str, Any] = cluster.json("hang", "--job", job.id, "--after", "3", check=1)
    culprit = found["culprit"]
    assert (culprit["role"], culprit["rank"]) == (role, 1), found
    assert (Path(culprit["file"]).name, culprit["line"]) == ("reward.py", LINE), found
    assert found["kind"] == "missing" and f"{role} rank 0 waits for it in" in found["sentence"], found
    os.kill(job.process.pid, 2)
    job.end()
