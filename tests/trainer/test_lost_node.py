"""A node that is lost in the middle of a step, on a real Ray whose nodes are simulated; and ranks that cannot meet."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.pace import stretched
from tests.trainer.conftest import Words
from tests.trainer.runs import DEADLINE_S, assert_one_error, main_ppo, metrics_of, running
from tests.trainer.stubbed import stub_in
from trainer import rendezvous
from trainer.errors import ConfigError
from trainer.network import gloo_misses, nccl_misses, require_interfaces

pytestmark = pytest.mark.trainer

CLUSTER = """
import signal
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
raylets = [f"{node.node_id}={node.all_processes['raylet'][0].process.pid}" for node in nodes]
print("nodes", cluster.address, *raylets, flush=True)
signal.pause()
"""

# So often Ray asks a node whether it is there; the fifth time without an answer it is lost.
SOON = {"RAY_health_check_period_ms": "500"}

REWARD = """
import os, signal
import torch
import torch.distributed as dist

def compute_score(**row):
    return 1.0

def rank_1_stays_in_its_update(**row):
    if dist.get_rank() == 1:
        torch.optim.AdamW.step = lambda self: signal.pause()
    return 1.0

def waits_in_the_second_step(**row):
    if os.path.exists("{folder}/run/latest_checkpointed_iteration.txt"):
        open("{folder}/fifo", "w").close()
        signal.pause()
    return 1.0
"""


@pytest.mark.timeout(300)
def test_a_lost_node_is_named_and_the_run_resumes_without_it(words: Words, tmp_path: Path) -> None:
    """Given two nodes with a rank each, when one is gone in step 2, the other alone goes on after step 1."""
    (tmp_path / "reward.py").write_text(REWARD.format(folder=tmp_path))
    os.mkfifo(tmp_path / "fifo")
    command = (f"custom_reward_function.path={tmp_path / 'reward.py'}", "trainer.total_training_steps=2")
    lost = ("trainer.nnodes=2", "trainer.save_freq=1", "custom_reward_function.name=waits_in_the_second_step")
    with running([sys.executable, "-c", CLUSTER], tmp_path, **SOON) as cluster:
        address, _kept, second = cluster.wait_for_line("nodes ").split()[1:]
        gone, raylet = second.split("=")
        with running(main_ppo(words(*command, *lost)), tmp_path, RAY_ADDRESS=address) as run:
            subprocess.run(["cat", str(tmp_path / "fifo")], timeout=DEADLINE_S, check=True)
            os.kill(int(raylet), signal.SIGKILL)
            assert run.wait() == 1, run.text
            said = assert_one_error(
                run, f"(node {gone[:8]}) was lost during score", "auto continues from run/global_step_1"
            )
            assert said.splitlines()[0][-1] in "01" and "rank(s)" in said
        with running(main_ppo(words(*command)), tmp_path, RAY_ADDRESS=address) as run:
            assert run.wait() == 0, run.text
            assert "at step 1" in run.text
    assert sorted(metrics_of(tmp_path / "run")) == [1, 2]


@pytest.mark.timeout(300)
def test_a_node_that_is_lost_while_the_engine_on_it_and_another_generates_is_named(
    words: Words, tmp_path: Path
) -> None:
    """Given an engine over two nodes whose first part never answers, when the second's node is gone, it is named."""
    (tmp_path / "hang").touch()
    rollout = "actor_rollout_ref.rollout"
    command = words(
        *("trainer.nnodes=2", f"{rollout}.name=sglang", f"{rollout}.tensor_model_parallel_size=2"),
        *(f"{rollout}.engine_timeout=100", "algorithm.adv_estimator=rloo"),
    )
    stub = stub_in(tmp_path)
    with running([sys.executable, "-c", CLUSTER], tmp_path, **stub, **SOON) as cluster:
        address, *nodes = cluster.wait_for_line("nodes ").split()[1:]
        raylets = dict(node.split("=") for node in nodes)
        with running(main_ppo(command), tmp_path, RAY_ADDRESS=address, **stub) as run:
            deadline = time.monotonic() + DEADLINE_S
            while not (tmp_path / "generating").exists():
                assert time.monotonic() < deadline and run.process.poll() is None, run.text
                time.sleep(0.1)
            places = dict(line.split() for line in (tmp_path / "nodes").read_text().splitlines())
            os.kill(int(raylets[places["1"]]), signal.SIGKILL)
            assert run.wait() == 1, run.text
            assert_one_error(run, f"(node {places['1'][:8]}) was lost during revive_engines", "rank(s) 1")


@pytest.mark.timeout(200)
def test_a_rank_that_the_others_wait_for_in_vain(words: Words, tmp_path: Path) -> None:
    """Given a rank that stays in its optimizer's step, the error names it, and the one that gave up waiting."""
    (tmp_path / "reward.py").write_text(REWARD.format(folder=tmp_path))
    changes = (
        f"custom_reward_function.path={tmp_path / 'reward.py'}",
        "custom_reward_function.name=rank_1_stays_in_its_update",
        "trainer.n_gpus_per_node=2",
        f"actor_rollout_ref.nccl_timeout={stretched(12):.0f}",
    )
    with running(main_ppo(words(*changes)), tmp_path) as run:
        assert run.wait() == 4, run.text
        said = assert_one_error(run, "update_critic: rank 0 ", "timed out in a collective", "nccl_timeout", "ray stack")
        assert " for rank 1 (pid " in said


def test_an_interface_that_does_not_exist(words: Words, tmp_path: Path) -> None:
    with running(main_ppo(words()), tmp_path, GLOO_SOCKET_IFNAME="ib77") as run:
        assert run.wait() == 2, run.text
        assert_one_error(run, "GLOO_SOCKET_IFNAME=ib77", "there is no interface ib77", "lo", "unset")


@pytest.mark.parametrize("name", ["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"])
def test_a_rank_on_a_gpu_looks_at_both_before_it_meets_the_others(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Nobody is at that port: the error comes before anything is tried."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv(name, "ib77")
    with pytest.raises(ConfigError, match=rf"{name}=ib77: .*ib77 on rank 0's node") as caught:
        rendezvous.connect(0, 2, "127.0.0.1", 1, 1.0)
    assert "unset" in caught.value.hint


UP = {"eth0": True, "eth1": True, "ib0": False, "lo": True}


@pytest.mark.parametrize("value", ["eth", "=eth0", "ib,eth", "^ib", "^docker", "^=eth0", "=ib0,eth1", "lo"])
def test_what_nccl_takes(value: str) -> None:
    assert nccl_misses(value, UP) == ""


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("eth7", "begins with eth7"),
        ("=eth", "is called eth"),
        ("bond,en", "begins with bond or en"),
        ("^eth,ib,lo", "does not begin with eth or ib or lo"),
        ("ib", "ib0 is down"),
    ],
)
def test_what_nccl_does_not_find(value: str, why: str) -> None:
    assert why in nccl_misses(value, UP)


@pytest.mark.parametrize(
    ("value", "why"), [("eth0", ""), ("eth0,eth1", ""), ("eth", "no interface eth"), ("eth0,ib0", "ib0 is down")]
)
def test_gloo_takes_whole_names(value: str, why: str) -> None:
    found = gloo_misses(value, UP)
    assert why in found and bool(found) == bool(why)


def test_nccls_interface_matters_to_those_who_use_nccl() -> None:
    require_interfaces({"NCCL_SOCKET_IFNAME": "nope0"}, "node a", nccl=False)
    require_interfaces({"NCCL_SOCKET_IFNAME": "", "GLOO_SOCKET_IFNAME": "lo"}, "node a", nccl=True)
    with pytest.raises(ConfigError, match=r"NCCL_SOCKET_IFNAME=nope0: .*nope0 on node a, which has .*lo"):
        require_interfaces({"NCCL_SOCKET_IFNAME": "nope0"}, "node a", nccl=True)
