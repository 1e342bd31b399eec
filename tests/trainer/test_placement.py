"""Where ranks can not go, and why: by hand-made nodes, and on a real Ray whose nodes are simulated."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pace import stretched
from tests.trainer.runs import ROOT
from trainer.placement import Demand, Room, node_names, shortage

pytestmark = pytest.mark.trainer

GPUS = Demand(2, 4, {"GPU": 1.0, "CPU": 1.0})


def room(name: str, gpus: float, free_gpus: float, cpus: float = 8, free_cpus: float = 8, **holders: float) -> Room:
    held = {name: {"GPU": amount} for name, amount in holders.items()}
    return Room(name, {"GPU": gpus, "CPU": cpus}, {"GPU": free_gpus, "CPU": free_cpus}, held)


def test_which_node_lacks_how_much() -> None:
    said = shortage(GPUS, [room("a", 8, 3, held=5), room("b", 4, 4), room("c", 0, 0)])
    assert (
        said == "a has 3 of 8 GPUs free, 1 short (held holds 5); c has 0 of 0 GPUs free, 4 short; enough is free on b"
    )


def test_cpus_count_too() -> None:
    assert shortage(GPUS, [room("a", 8, 8, 8, 1), room("b", 8, 2, 8, 1)]) == (
        "a has 1 of 8 CPUs free, 3 short; b has 2 of 8 GPUs free, 2 short and 1 of 8 CPUs free, 3 short"
    )


def test_nodes_that_are_not_there() -> None:
    assert shortage(GPUS, [room("a", 4, 4)]) == "the cluster has 1 node(s), 1 short; enough is free on a"
    assert shortage(GPUS, []) == "the cluster has 0 node(s), 2 short"


def test_of_many_nodes_those_that_lack_least() -> None:
    said = shortage(GPUS, [room(f"n{free}", 4, free % 4) for free in range(40)])
    assert said.startswith("n11 has 3 of 4") and said.endswith("36 more node(s) lack more")
    assert said.count("short") == 4


def test_nodes_that_share_an_address_are_told_apart() -> None:
    def node(ip: str, node_id: str) -> dict[str, str]:
        return {"NodeManagerAddress": ip, "NodeID": node_id}

    names = node_names([node("10.0.0.1", "a" * 40), node("10.0.0.2", "b" * 40), node("10.0.0.2", "c" * 40)])
    assert list(names.values()) == ["10.0.0.1", "10.0.0.2 (node bbbbbbbb)", "10.0.0.2 (node cccccccc)"]


# ----------------------------------------------------------------------------------------- a real Ray, simulated nodes

CASES = """
import ray
from ray.cluster_utils import Cluster
from trainer.errors import DeadlineError
from trainer.placement import Demand, place
from ray.util import remove_placement_group
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
nodes = [cluster.add_node(num_cpus=4, num_gpus=2), cluster.add_node(num_cpus=1, num_gpus=2)]
ray.init(address=cluster.address, log_to_driver=False)
print("nodes", *(node.node_id[:8] for node in nodes))

def attempt(case, demand, timeout_s=2.0, note=print):
    try:
        for group in place(demand, timeout_s, note):
            remove_placement_group(group)
        print(case, "placed")
    except DeadlineError as error:
        print(case, error)

rank = {"GPU": 1.0, "CPU": 1.0}
attempt("cpus", Demand(2, 2, rank))
attempt("gpus", Demand(1, 3, rank))
attempt("fits", Demand(1, 2, rank), timeout_s=30)

@ray.remote(num_cpus=1, num_gpus=1)
class Holder:
    def up(self): return True

there = [NodeAffinitySchedulingStrategy(node.node_id, soft=False) for node in nodes]
holders = [Holder.options(name=f"holder-{i}", scheduling_strategy=on).remote() for i, on in enumerate(there)]
ray.get([holder.up.remote() for holder in holders])
theirs = placement_group([{"GPU": 1}], name="theirs")
ray.get(theirs.ready())
attempt("held", Demand(1, 2, rank))
attempt("short", Demand(4, 1, {"CPU": 1.0}))

import trainer.placement
trainer.placement.NOTE_S = 0.5

def join(text):
    print("note", text)
    cluster.add_node(num_cpus=2, num_gpus=2)

attempt("joined", Demand(1, 2, rank), timeout_s=60, note=join)
"""


@pytest.fixture
def ray_folder() -> Iterator[Path]:
    """Short, for Ray's sockets."""
    folder = Path(tempfile.mkdtemp(prefix="pl", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.timeout(240)
def test_on_a_simulated_cluster(ray_folder: Path) -> None:
    """Given a head without slots and two nodes with 2 GPUs each, one of them with 4 CPUs and one with 1."""
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_TMPDIR": str(ray_folder), "PYTHONPATH": str(ROOT)}
    environment.pop("RAY_AUTH_TOKEN", None)
    environment.pop("RAY_ADDRESS", None)
    done = subprocess.run(
        [sys.executable, "-c", CASES],
        env=environment,
        capture_output=True,
        text=True,
        timeout=stretched(200),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = {line.split(" ", 1)[0]: line.split(" ", 1)[1] for line in done.stdout.splitlines() if " " in line}
    large, small = said["nodes"].split()

    def expect(case: str, *parts: str) -> None:
        assert all(part in said[case] for part in parts), said[case]

    expect("cpus", "1 of 2 node(s) with 2 free GPUs and 2 free CPUs each were not found within 2 s")
    expect("cpus", "has 0 of 0 GPUs free", f"(node {small}) has 1 of 1 CPUs free, 1 short")
    expect("gpus", f"(node {large}) has 2 of 2 GPUs free, 1 short;", f"(node {small}) has 2 of 2 GPUs free, 1 short")
    expect("fits", "placed")
    for holder in ("actor holder-0 of job 01000000", "actor holder-1 of job 01000000", "placement group theirs"):
        expect("held", f"{holder} holds 1")
    expect("short", "of 4 node(s) with 1 free CPUs each", "the cluster has 3 node(s), 1 short")
    expect("note", "waiting for 1 of 1 node(s) with 2 free GPUs and 2 free CPUs each:", "short")
    expect("joined", "placed")
