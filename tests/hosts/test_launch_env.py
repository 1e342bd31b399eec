"""`devkit debug-cluster --from-env`: the same command on three hosts that only their environment tells apart."""

from __future__ import annotations

import json
import secrets
import subprocess
from collections.abc import Iterator

import pytest

from devkit.debug.cluster_records import DebugCluster
from tests import documents
from tests.hosts import hosts
from tests.hosts.hosts import Host, Lan
from tests.hosts.launching import PYTHON, UP_S, devkit, document, environment_of, left_on, on_all, patience

UP = (PYTHON, "-m", "devkit", "debug-cluster", "--from-env", "--num-cpus", "1", "--json", "--timeout")
pytestmark = pytest.mark.timeout(2 * UP_S + 120)


@pytest.fixture
def lan() -> Iterator[Lan]:
    with hosts.up(3) as made:
        yield made


def world(rank: int, **more: str) -> dict[str, str]:
    where = {"MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "6400", "WORLD_SIZE": "3", "RANK": str(rank)}
    return {**where, "NCCL_SOCKET_IFNAME": "eth0", "GLOO_SOCKET_IFNAME": "eth0", "RAY_AUTH_MODE": "token", **more}


def refused(host: Host, environ: dict[str, str]) -> str:
    done = host.run(*UP, "20", env=environ, check=False)
    assert done.returncode == 2, done.stderr
    said: str = json.loads(done.stdout)["error"]
    return said


def test_what_cannot_be_is_told_before_anything_starts(lan: Lan) -> None:
    token = {"RAY_AUTH_TOKEN": secrets.token_hex(32)}
    assert "MASTER_ADDR 10.77.0.1 is not an address of this machine" in refused(lan[1], world(0, **token))
    assert "NCCL_SOCKET_IFNAME is ib0" in refused(lan[1], world(1, NCCL_SOCKET_IFNAME="ib0", **token))
    assert "no token here, but all 3 machines need the same one" in refused(lan[1], world(1))
    assert left_on(lan[1]) == []


@pytest.mark.ray
def test_the_same_command_on_every_host_gives_one_cluster(lan: Lan) -> None:
    token = {"RAY_AUTH_TOKEN": secrets.token_hex(32)}
    environs = [world(rank, **token) for rank in range(len(lan))]
    records = on_all(lan, (*UP, f"{UP_S:g}"), environs)
    for record in records:
        documents.check(record, DebugCluster)
        assert record["gcs_address"] == "10.77.0.1:6400" and record["dashboard_url"] == "http://10.77.0.1:8265"
        assert [node["alive"] for node in record["nodes"]] == [True] * 3
        assert {node["ip"] for node in record["nodes"]} == {host.ip for host in lan}
    for host in lan:
        found = environment_of(host, "raylet")
        assert (found["RAY_DEBUG"], found["RAY_DEBUG_POST_MORTEM"], found["RAY_AUTH_MODE"]) == ("1", "1", "token")
        assert found["NCCL_SOCKET_IFNAME"] == "eth0" and not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} & set(found)

    environ = {"RAY_AUTH_MODE": "token", **token}
    program = ("python3", "-c", "import ray; ray.init(); print('nodes', len(ray.nodes()))")
    submitted = devkit(lan[2], "submit", "--address", "10.77.0.1:6400", "--", *program, env=environ)
    assert "nodes 3" in submitted.stdout
    assert "MASTER_PORT 6400 is in use" in refused(lan[0], world(0, **token))
    for host in lan:
        assert document(host, "debug-cluster", "stop", env=environ)["stopped"][0]["processes"] > 1
        assert left_on(host) == []


@pytest.mark.ray
def test_a_machine_that_does_not_come_is_named_by_its_rank(lan: Lan) -> None:
    token = {"RAY_AUTH_TOKEN": secrets.token_hex(32)}
    seconds = f"{patience(25):.0f}"
    begun = [
        lan[rank].popen(*UP, seconds, env=world(rank, **token), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for rank in (0, 2)
    ]
    for command in begun:
        with command:
            out, said = command.communicate(timeout=UP_S)
        assert command.returncode == 4, said
        told = json.loads(out)["error"]
        assert "1 of 3 nodes: rank 1; alive: " in told
        assert "10.77.0.1 (rank 0)" in told and "10.77.0.3 (rank 2)" in told
    assert [left_on(host) for host in lan] == [[]] * 3
