"""The doctor on sound machines: it finds nothing. What it says of ill ones is in `tests/faults`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from devkit.doctor.records import DoctorDocument
from tests import documents
from tests.hosts import hosts

pytestmark = [pytest.mark.timeout(300), pytest.mark.ray]
RAY = (sys.executable, "-m", "ray.scripts.scripts", "start", "--disable-usage-stats", "--num-cpus=4")
AUTH = {"RAY_AUTH_MODE": "disabled", "RAY_raylet_start_wait_time_s": "100"}  # three starts share a few cores
HEAD = "10.77.0.1:6379"


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
