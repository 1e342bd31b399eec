"""A rank of the trainer that keeps others waiting: `devkit hang` says which, and at which line."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.debug.conftest import Cluster, Job, cluster, eventually, launch
from tests.trainer.conftest import Words
from tests.trainer.runs import main_ppo

pytestmark = pytest.mark.verdicts

__all__ = ["cluster", "launch"]

# Loaded by every rank; of the team that trains, rank 1 never comes to the actor's first gradient.
NO_GRADIENT = """
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
"""
# And here the engine's rank does not take the weights that the actor's first rank brings.
NO_RECEIVER = """
import time
from pathlib import Path
from trainer.rollout.bridge import Bridge

def receive(self, kind):
    Path({mark!r}).write_text("late")
    time.sleep(600)

Bridge.receive = receive
"""
SCORE = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return 0.0
"""
APART = ("trainer.n_gpus_per_node=3", "trainer.device_mapping.actor=[1,2]", "trainer.device_mapping.rollout=[0]")


ONE_TEAM = ("trainer.n_gpus_per_node=2",)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("code", "changes", "culprit", "said"),
    [
        (NO_GRADIENT, ONE_TEAM, ("missing", "PPOWorker", 1), "PPOWorker rank 0 waits for it in"),
        (NO_GRADIENT, APART, ("missing", "ActorWorker", 1), "ActorWorker rank 0 waits for it in"),
        (NO_RECEIVER, APART, ("stuck", "RolloutWorker", 0), "ActorWorker ranks 0,1"),
    ],
    ids=["in one team", "in a team of two", "between teams"],
)
def test_the_rank_that_stays_away_is_named(
    cluster: Cluster,
    launch: Callable[..., Job],
    words: Words,
    tmp_path: Path,
    code: str,
    changes: tuple[str, ...],
    culprit: tuple[str, str, int],
    said: str,
) -> None:
    mark, reward = tmp_path / "mark", tmp_path / "reward.py"
    source = code.format(mark=str(mark)) + SCORE
    reward.write_text(source)
    settings = (f"custom_reward_function.path={reward}", f"trainer.default_local_dir={tmp_path}", *changes)
    job = launch("--", *main_ppo(words("algorithm.adv_estimator=grpo", *settings))).joined()
    eventually(lambda: mark.exists() or job.process.poll() is not None, "the late rank", 150)
    assert job.process.poll() is None, job.out

    def hang() -> dict[str, Any]:
        found: dict[str, Any] = cluster.json("hang", "--job", job.id, "--after", "3", check=None)
        if not found["hang"]:
            return {}
        assert (found["culprit"]["role"], found["culprit"]["rank"]) == culprit[1:], found
        return found if found["kind"] == culprit[0] else {}  # "stuck": the others are on their way into it

    found = eventually(hang, f"a hang of the kind {culprit[0]}")
    who = found["culprit"]
    line = 1 + next(i for i, text in enumerate(source.splitlines()) if "time.sleep" in text)
    assert (Path(who["file"]).name, who["line"]) == ("reward.py", line), found
    assert said in found["sentence"], found
    os.kill(job.process.pid, 2)
    job.end()
