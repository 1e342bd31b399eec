"""`devkit launch slurm --container podman` on a real Slurm and a real podman."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts import hosts, podman, slurm
from tests.hosts.hosts import Lan
from tests.pace import stretched

DEADLINE = stretched(240.0)  # seconds that the job may take on a busy machine
pytestmark = pytest.mark.timeout(600)
PROGRAM = """
import os, pathlib
import ray

@ray.remote(num_cpus=2)
class Worker:
    def where(self):
        inside = pathlib.Path("/run/.containerenv").exists()
        return ray.util.get_node_ip_address(), inside, os.environ.get("NCCL_DEBUG"), os.environ.get("MINE")

ray.init()
for ip, *rest in sorted(ray.get([worker.where.remote() for worker in [Worker.remote() for _ in range(2)]])):
    print("ran on", ip, *rest)
raise ValueError("bad batch")
"""


@pytest.fixture
def lan(tmp_path: Path) -> Iterator[Lan]:
    for found in (slurm.problem(), podman.problem()):
        if found:
            pytest.skip(found)
    (tmp_path / "train.py").write_text(PROGRAM)
    with hosts.up(2, share=[tmp_path]) as made, slurm.up(made):
        for host in made:
            podman.prepare(host)
        yield made


def test_the_nodes_and_the_command_run_in_containers(lan: Lan, tmp_path: Path) -> None:
    container = ("--container", "podman", "--image", podman.IMAGE, *(f"--container-option={o}" for o in podman.OPTIONS))
    done = lan[0].run(
        *("env", "-C", str(tmp_path), "NCCL_DEBUG=WARN", "MINE=7", sys.executable, "-P", "-m", "devkit", "launch"),
        *("slurm", "--submit", "--nodes", "2", "--cpus", "2", *container, "--env", "MINE", "--python", sys.executable),
        *("--", sys.executable, "train.py"),
        check=False,
        timeout=DEADLINE,
    )
    said = done.stdout + done.stderr
    for host in lan:
        assert f"ran on {host.ip} True WARN 7\n" in said, said
    assert "ValueError: bad batch" in said and "2 nodes are up after" in said, said
    assert done.returncode == 1, said
    for host in lan:
        assert host.run("podman", "ps", "--all", "--quiet").stdout == ""
        assert not [words for words in host.processes().values() if "raylet" in words]
