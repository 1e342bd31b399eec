"""The doctor on a real cluster: both nodes are seen, a healthy one is healthy, and a frozen one is named."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from devkit.debug import processes
from devkit.debug.dashboard import Dashboard
from devkit.debug.tokens import Token
from devkit.doctor.records import DoctorDocument
from tests import documents
from tests.debug.conftest import Cluster, eventually

# One worker for all of them, since one cluster is enough; a cold torch on a busy machine takes its time.
pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("doctor"), pytest.mark.timeout(300)]
PATIENT = ("--timeout", "60")


@pytest.fixture(scope="module")
def seen(cluster: Cluster) -> dict[str, Any]:
    document: dict[str, Any] = cluster.json("doctor", *PATIENT, check=0)
    return document


def test_a_healthy_cluster_has_no_error(seen: dict[str, Any]) -> None:
    documents.check(seen, DoctorDocument)
    assert [finding["what"] for finding in seen["findings"] if finding["severity"] == "error"] == []
    assert seen["errors"] == 0


def test_both_nodes_are_seen(seen: dict[str, Any], cluster: Cluster) -> None:
    assert seen["gcs_address"] == cluster.gcs_address
    assert [(node["answered"], node["cpus"]) for node in seen["nodes"]] == [(True, 8.0), (True, 8.0)]
    assert [node["head"] for node in seen["nodes"]] == [True, False]
    for node in seen["nodes"]:
        facts = node["facts"]
        assert facts["unseen"] == {}
        assert facts["software"]["packages"].keys() >= {"ray", "torch", "transformers"}
        assert facts["limits"]["shm_total"] > 0 and facts["limits"]["open_files"] > 0
        assert facts["environment"]["RAY_DEBUG_POST_MORTEM"] == "1"  # of the raylet, as training has it
        assert abs(node["clock_offset"]) < 1.0


def test_each_node_sees_the_other_one(seen: dict[str, Any]) -> None:
    one, other = (node["node_id"] for node in seen["nodes"])
    assert {(pair["source"], pair["target"]) for pair in seen["pairs"]} == {(one, other), (other, one)}
    for pair in seen["pairs"]:
        assert pair["error"] == "" and pair["latency_ms"] > 0 and pair["mb_per_s"] > 0 and pair["segments"] > 0
    [gloo] = seen["collectives"]
    assert (gloo["backend"], gloo["ranks"], gloo["status"]) == ("gloo", 2, "done")
    assert gloo["mb_per_s"] > 0


def test_the_token_is_compared_and_not_shown(seen: dict[str, Any], cluster: Cluster) -> None:
    digests = {node["facts"]["token"]["digest"] for node in seen["nodes"]}
    assert len(digests) == 1 and "" not in digests
    assert cluster.environ["RAY_AUTH_TOKEN"] not in repr(seen)


def test_through_nothing_but_the_dashboard(cluster: Cluster, tmp_path: Path) -> None:
    # given a machine that knows the dashboard's URL, and not that the cluster is its own
    stranger = Cluster("", "", {**cluster.environ, "DEVKIT_HOME": str(tmp_path)})
    before = _looks(cluster)
    # when it asks
    command = ("doctor", "--address", cluster.dashboard_url, "--no-collective", *PATIENT)
    document = stranger.json(*command)
    # then the driver ran as a job there, and saw the same
    assert [node["answered"] for node in document["nodes"]] == [True, True]
    assert document["collectives"] == [] and len(document["pairs"]) == 2
    assert _looks(cluster) == before + 1


def test_a_command_is_placed_on_the_nodes(cluster: Cluster) -> None:
    command = ["--", "python", "-m", "trainer.main_ppo", "trainer.nnodes=2", "trainer.n_gpus_per_node=9"]
    text = cluster.devkit("doctor", "--no-collective", *PATIENT, *command, check=1)
    document_lines = text.splitlines()
    short = [line for line in document_lines if line.startswith("error: ")]
    # each node has eight CPUs, and ranks without a GPU take one each
    assert [line.partition(":")[2].split(": ")[0].strip() for line in short] == [
        "node 1 is 1 CPU short",
        "node 2 is 1 CPU short",
    ]
    assert any(line.split()[:1] == ["2"] and "9-17" in line for line in document_lines)


def test_a_node_that_does_not_answer_is_named(cluster: Cluster, seen: dict[str, Any]) -> None:
    # given a worker node whose raylet is frozen: Ray counts it as alive for a minute
    silent = seen["nodes"][1]
    raylet = _raylet(silent["node_id"])
    os.kill(raylet, signal.SIGSTOP)
    try:
        document = cluster.json("doctor", "--timeout", "12", "--no-collective", check=1)
    finally:
        os.kill(raylet, signal.SIGCONT)
    # then that is the first finding, and the head was looked at all the same
    assert document["findings"][0]["rule"] == "node-silent"
    assert document["findings"][0]["what"] == f"node {silent['name']} ({silent['ip']}) did not answer"
    assert {node["node_id"]: node["answered"] for node in document["nodes"]}[silent["node_id"]] is False
    assert document["nodes"][0]["answered"]


def _looks(cluster: Cluster) -> int:
    """How many jobs there have looked at the nodes."""
    return [job["command"] for job in cluster.json("jobs")["jobs"]].count("devkit doctor")


def _raylet(node_id: str) -> int:
    psutil = processes.load_psutil()
    [pid] = [
        process.pid
        for process in psutil.process_iter(["name", "cmdline"])
        if process.info["name"] == "raylet" and f"--node_id={node_id}" in " ".join(process.info["cmdline"] or ())
    ]
    return int(pid)


def test_it_leaves_nothing_behind(cluster: Cluster, seen: dict[str, Any]) -> None:
    assert seen["errors"] == 0
    token = Token(cluster.environ["RAY_AUTH_TOKEN"], "the test")
    with Dashboard(cluster.dashboard_url, token) as dashboard:
        eventually(lambda: {row.state for row in dashboard.actors(("class_name", "=", "Examiner"))} == {"DEAD"})
