"""Every rule speaks where it must, in its own words, and is silent beside that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from devkit.doctor.examine import examine
from devkit.doctor.onnode.facts import GpuProcess
from devkit.doctor.records import SEVERITIES, DoctorNode, DoctorRecord, Finding
from devkit.doctor.rules.table import RULES
from devkit.doctor.scene import Scene
from tests.doctor.cases import CASES, Case
from tests.doctor.scenes import H200, all_pairs, alone, changed, cluster, node, pair, with_gpus


def ids(case: Case) -> str:
    return f"{case.rule}: {case.what}"


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_it_speaks_where_it_must(case: Case) -> None:
    found = [finding for finding in examine(case.sick) if finding.rule == case.rule]
    assert [(finding.what, finding.severity) for finding in found] == [(case.what, case.severity)]
    assert all(all(part) for finding in found for part in (finding.why, finding.fix, finding.evidence))


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_it_is_silent_beside_that(case: Case) -> None:
    assert [finding.what for finding in examine(case.sound) if finding.rule == case.rule] == []


def test_every_rule_has_a_case() -> None:
    assert {case.rule for case in CASES} == set(RULES)


@pytest.mark.parametrize(
    "scene",
    [alone(), alone(with_gpus()), cluster(), changed(with_gpus(8), with_gpus(8)), cluster(*map(node, range(4)))],
    ids=["a machine", "with GPUs", "a cluster", "a cluster with GPUs", "four nodes"],
)
def test_nothing_is_found_where_all_is_well(scene: Scene) -> None:
    assert examine(scene) == ()


def test_errors_come_first() -> None:
    scenes = [case.sick for case in CASES]
    for scene in scenes:
        order = [SEVERITIES.index(finding.severity) for finding in examine(scene)]
        assert order == sorted(order)


def test_there_is_no_finding_without_evidence() -> None:
    with pytest.raises(ValueError, match="without evidence"):
        Finding("disk-full", (), "what", "why", "fix", ())
    with pytest.raises(ValueError, match="without evidence"):
        Finding("disk-full", (), "what", "why", "fix", ("",))


def test_evidence_is_what_was_seen() -> None:
    # given two workers that can't reach each other, while the head reaches both
    silence = "port 40001: no answer within 4 s"
    pairs = all_pairs(3, pair(1, 2, error=silence), pair(2, 1, error=silence))
    # when it is examined
    (finding,) = examine(cluster(*map(node, range(3)), pairs=pairs))
    # then both directions are quoted, and both nodes are named
    assert finding.where == ("h1", "h2")
    assert finding.evidence == (f"h1 to 10.77.0.3: {silence}", f"h2 to 10.77.0.2: {silence}")
    assert "10.77.0.2 and 10.77.0.3" in finding.fix


def test_a_node_is_called_by_what_tells_it_from_others() -> None:
    # given two nodes of one machine, with one name and one address
    one, other = (node(0), node(0, head=False, node_id="b7c3d9e1"))
    scene = cluster(one, other, pairs=())
    assert [scene.name(each.node_id) for each in scene.nodes] == ["h0/node0a", "h0/b7c3d9"]
    # and two machines with one name
    scene = cluster(node(0, hostname="gpu"), node(1, hostname="gpu"), pairs=())
    assert [scene.name(each.node_id) for each in scene.nodes] == ["10.77.0.1", "10.77.0.2"]


def test_what_is_the_same_on_several_nodes_is_said_once() -> None:
    # given three nodes, two of them with the same small limit, and one with another
    few, fewer = {"limits": {"open_files": 1024}}, {"limits": {"open_files": 512}}
    found = examine(changed(few, fewer, few))
    # then there are two findings, and each quotes its nodes
    assert [(finding.what, finding.where) for finding in found] == [
        ("a process on h0, h2 may open only 1024 files", ("h0", "h2")),
        ("a process on h1 may open only 512 files", ("h1",)),
    ]
    assert found[0].evidence == ("h0: ulimit -n: 1024, hard limit 65535", "h2: ulimit -n: 1024, hard limit 65535")


def test_links_within_a_machine_are_not_judged() -> None:
    # given two nodes on one machine, which is too busy to send much
    slow = all_pairs(2, pair(0, 1, mb_per_s=2.0, retransmitted=900), pair(1, 0, latency_ms=30.0))
    scene = cluster(node(0, {"machine": "one"}), node(1, {"machine": "one"}), pairs=slow)
    assert examine(scene) == ()


def test_command_lines_are_shown_without_their_secrets() -> None:
    holder = GpuProcess(41, "GPU-0", 69000, "python old.py --password correct-horse-7")
    seen = node(0, with_gpus(devices={"gpus": (replace(H200, used_mib=70000),), "processes": (holder,)}))
    [finding] = [each for each in examine(cluster(seen)) if each.rule == "gpu-memory-taken"]
    assert finding.evidence == ("pid 41 holds 69000 MiB: python old.py --password <redacted>",)
    shown = DoctorNode("n", "h0", "10.0.0.1", True, True, True, 8.0, 1.0, 8.0, 1.0, None, seen.facts)
    assert "correct-horse" not in str(DoctorRecord("", 1.0, (shown,), (), (), (), ()).to_json())
