"""The doctor on virtual hosts: what only several machines show, each made for real and told in one sentence."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from devkit.doctor.records import DoctorDocument
from tests import documents
from tests.hosts import hosts

pytestmark = [pytest.mark.xdist_group("doctor-hosts"), pytest.mark.timeout(300), pytest.mark.slow]
RAY = (sys.executable, "-m", "ray.scripts.scripts", "start", "--disable-usage-stats", "--num-cpus=4")
AUTH = {"RAY_AUTH_MODE": "disabled", "RAY_raylet_start_wait_time_s": "100"}  # three starts share a few cores
HEAD = "10.77.0.1:6379"
DEAD_DNS = "nameserver 10.99.0.53\n"  # the switch routes nowhere: no answer ever comes


@pytest.fixture(scope="module")
def lan() -> Iterator[hosts.Lan]:
    """Three machines that are one Ray cluster, h0 its head."""
    with hosts.up(3) as found:
        found[0].run(*RAY, "--head", "--port=6379", f"--node-ip-address={found[0].ip}", env=AUTH, timeout=120)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(join, found[1:]))
        yield found


def join(host: hosts.Host, **environment: str) -> None:
    host.run(*RAY, f"--address={HEAD}", f"--node-ip-address={host.ip}", env={**AUTH, **environment}, timeout=120)


def doctor(lan: hosts.Lan, *options: str, code: int, seconds: int = 60) -> dict[str, Any]:
    """What `devkit doctor` says on the head."""
    command = (
        sys.executable,
        "-m",
        "devkit",
        "doctor",
        "--address",
        HEAD,
        "--timeout",
        str(seconds),
        "--json",
        *options,
    )
    done = lan[0].run(*command, env=AUTH, check=False, timeout=120)
    assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    document: dict[str, Any] = json.loads(done.stdout)
    documents.check(document, DoctorDocument)
    return document


def said(document: dict[str, Any], severity: str = "error") -> list[str]:
    return [finding["what"] for finding in document["findings"] if finding["severity"] == severity]


@contextmanager
def partitioned(lan: hosts.Lan, one: int, other: int) -> Iterator[None]:
    lan.partition(one, other)
    try:
        yield
    finally:
        lan.heal(one, other)


def test_three_sound_machines(lan: hosts.Lan) -> None:
    document = doctor(lan, code=0)
    assert said(document) == []
    assert [(node["name"], node["ip"], node["answered"]) for node in document["nodes"]] == [
        ("h0", "10.77.0.1", True),
        ("h1", "10.77.0.2", True),
        ("h2", "10.77.0.3", True),
    ]
    assert len({node["facts"]["machine"] for node in document["nodes"]}) == 3
    assert len(document["pairs"]) == 6 and not any(pair["error"] for pair in document["pairs"])
    [gloo] = document["collectives"]
    assert (gloo["status"], gloo["ranks"]) == ("done", 3)


def test_a_partition_between_two_workers(lan: hosts.Lan) -> None:
    # given two workers that lose what they send to each other, while the head reaches both and sees them as alive
    with partitioned(lan, 1, 2):
        document = doctor(lan, code=1)
    # then the pair is named, and nothing else is wrong
    assert said(document) == ["h1 and h2 can't connect to each other"]
    [finding] = [each for each in document["findings"] if each["severity"] == "error"]
    assert [line.partition(": port")[0] for line in finding["evidence"]] == ["h1 to 10.77.0.3", "h2 to 10.77.0.2"]
    assert all("no answer within" in line for line in finding["evidence"])
    # and the all-reduce, which would have hung, was not tried
    assert [each["status"] for each in document["collectives"]] == ["skipped"]


def test_a_dead_dns_server(lan: hosts.Lan) -> None:
    # given a worker whose DNS server does not answer
    before = lan[2].run("cat", "/etc/resolv.conf").stdout
    lan[2].write("/etc/resolv.conf", DEAD_DNS, "644")
    try:
        document = doctor(lan, code=0)
    finally:
        lan[2].write("/etc/resolv.conf", before, "644")
    # then what torch would pay for it is measured there, and only there
    [finding] = [each for each in document["findings"] if each["rule"] == "slow-lookup"]
    assert re.fullmatch(r"reverse look-ups take 1\d\.\d s on h2", finding["what"])
    assert finding["severity"] == "warning" and finding["where"] == ["h2"]


def test_a_link_that_loses_packets(lan: hosts.Lan) -> None:
    lan.loss(2, 20)
    try:
        document = doctor(lan, "--no-collective", code=0)
    finally:
        lan.loss(2, 0)
    rules = {(finding["rule"], tuple(finding["where"])) for finding in document["findings"]}
    assert {("pair-slow", ("h0", "h2")), ("pair-slow", ("h1", "h2"))} <= rules
    assert ("packet-loss", ("h0", "h2")) in rules or ("packet-loss", ("h1", "h2")) in rules
    assert not any(where == ("h0", "h1") for _, where in rules)


def test_a_slow_link(lan: hosts.Lan) -> None:
    lan.rate(1, 20)
    try:
        document = doctor(lan, "--no-collective", code=0)
    finally:
        lan.rate(1, 0)
    slow = {tuple(finding["where"]) for finding in document["findings"] if finding["rule"] == "pair-slow"}
    assert {("h0", "h1"), ("h1", "h0"), ("h1", "h2"), ("h2", "h1")} <= slow
    assert ("h0", "h2") not in slow
    [pair] = [p for p in document["pairs"] if (p["source"][:4], p["address"]) == (_id(document, "h0")[:4], "10.77.0.2")]
    assert 0 < pair["mb_per_s"] < 5  # 20 Mbit/s are 2.5 MB/s


def _id(document: dict[str, Any], name: str) -> str:
    return next(str(node["node_id"]) for node in document["nodes"] if node["name"] == name)
