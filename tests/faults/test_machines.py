"""Machines that are not alike.

Three machines are one Ray cluster, by plain `ray start`. The second and the third are ill in many ways at once; each is
a finding of its own.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults.cluster import HEAD, PACKAGES
from tests.faults.gallery import Clinic, Document, fault
from tests.hosts import hosts
from tests.hosts.hosts import Host
from tests.hosts.launching import document
from tests.pace import stretched

pytestmark = [pytest.mark.timeout(600), pytest.mark.ray]
RAY = f"{sys.executable} -m ray.scripts.scripts start --disable-usage-stats --num-cpus=2"
AUTH = {"RAY_AUTH_MODE": "disabled", "RAY_raylet_start_wait_time_s": "100"}  # three starts share a few cores
AHEAD = Path(__file__).with_name("programs") / "ahead.c"


@dataclass(frozen=True)
class Look:
    """What the doctor said, and after how many seconds."""

    found: Document
    seconds: float


@pytest.fixture(scope="module")
def look() -> Iterator[Look]:
    with hosts.up(3) as lan:
        head, second, third = lan
        start(head, f"--head --port=6379 --node-ip-address={head.ip}")
        with ThreadPoolExecutor(2) as pool:
            list(
                pool.map(
                    lambda fall_ill: fall_ill[0](fall_ill[1]), ((second_falls_ill, second), (third_falls_ill, third))
                )
            )
        began = time.monotonic()
        found = document(head, "doctor", "--address", HEAD, "--no-collective", "--timeout", "60", code=1, env=AUTH)
        yield Look(found, time.monotonic() - began)


def start(host: Host, options: str, first: str = "true", **environ: str) -> None:
    script = f"{first} && exec {RAY} {options}"
    variables = {name: value for name, value in {**AUTH, **environ}.items() if value}
    host.run("sh", "-c", script, env=variables, timeout=stretched(200))


def second_falls_ill(host: Host) -> None:
    host.run("mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", "/dev/shm")
    host.run(
        "sh",
        "-c",
        "mkdir -p /data/hf && mount -t tmpfs -o size=200m tmpfs /data/hf && head -c 196M /dev/zero > /data/hf/model",
    )
    host.write("/etc/hosts", f"127.0.0.1 localhost\n127.0.1.1 {host.name}\n", "644")
    for path in (PACKAGES / "debugpy", next(PACKAGES.glob("debugpy-*.dist-info"))):
        host.run("sh", "-c", f"mkdir -p /none && mount --bind /none {path}")
    environ = {"NCCL_SOCKET_IFNAME": "ib0", "RAY_DEBUG": "legacy", "HF_HOME": "/data/hf"}
    start(host, f"--address={HEAD} --node-ip-address={host.ip}", "ulimit -n 1024", **environ)


def third_falls_ill(host: Host) -> None:
    for path in (next(PACKAGES.glob("torch-2*.dist-info")) / "METADATA", PACKAGES / "torch" / "version.py"):
        host.write(f"/old/{path.name}", re.sub(r"\b2\.\d+\.\d+\b", "2.1.0", path.read_text(), count=2), "644")
        host.run("mount", "--bind", f"/old/{path.name}", str(path))
    listen = "import socket, time; s = socket.create_server(('', 29500)); print(1, flush=True); time.sleep(3600)"
    host.run(
        "sh", "-c", f'setsid {sys.executable} -c "{listen}" > /tmp/old 2>&1 & until [ -s /tmp/old ]; do sleep 0.1; done'
    )
    host.run("gcc", "-shared", "-fPIC", "-o", "/old/ahead.so", str(AHEAD), "-ldl")
    environ = {"LD_PRELOAD": "/old/ahead.so", "MASTER_PORT": "29500"}
    environ |= {"CUDA_VISIBLE_DEVICES": "0,1", "HIP_VISIBLE_DEVICES": "2,3", "ROCR_VISIBLE_DEVICES": "0"}
    start(host, f"--address={HEAD} --node-ip-address={host.ip}", RAY_AUTH_MODE="", **environ)
    host.write(f"{os.environ.get('HOME', '/root')}/.ray/auth_token", "0" * 64)


def told(clinic: Clinic, look: Look, rule: str, where: str) -> Document:
    """The finding of this rule, which is of that machine alone."""
    found = clinic.finding({"findings": [each for each in look.found["findings"] if where in each["where"]]}, rule)
    clinic.took(look.seconds)
    return found


@fault("A clock an hour off", "Tokens and certificates are refused, logs can't be put in order.")
def test_clock(look: Look, clinic: Clinic) -> None:
    found = told(clinic, look, "clock-skew", "h2")
    assert found["severity"] == "error" and "3600" in found["what"] + str(found["evidence"]), found


@fault("A full disk", "The run ends at its first checkpoint, or when Ray spills objects.")
def test_disk(look: Look, clinic: Clinic) -> None:
    found = told(clinic, look, "disk-full", "h1")
    assert found["severity"] == "error" and "HF_HOME" in found["what"], found


@fault("A small /dev/shm", "`Bus error` in a data loader; Ray's object store falls back to the disk.")
def test_shm(look: Look, clinic: Clinic) -> None:
    assert told(clinic, look, "shm-small", "h1")["what"] == "/dev/shm on h1 has 64 MiB"


@fault("A low limit on open files", "`Too many open files`, when all ranks have connected.")
def test_open_files(look: Look, clinic: Clinic) -> None:
    assert told(clinic, look, "open-files", "h1")["what"] == "a process on h1 may open only 1024 files"


@fault("debugpy is missing on one machine", "Breakpoints of ranks there are passed over.")
def test_debugpy(look: Look, clinic: Clinic) -> None:
    assert "debugpy" in told(clinic, look, "package-missing", "h1")["what"]


@fault("Another torch on one machine", "The run stands still in its first collective, or ends with a protocol error.")
def test_version(look: Look, clinic: Clinic) -> None:
    found = told(clinic, look, "version-differs", "h2")
    assert (
        found["severity"] == "error" and "torch" in found["what"] and "2.1.0" in found["what"] + str(found["evidence"])
    )


@fault("A token file on one machine only", "The next head that starts there asks for a token that nobody has.")
def test_token(look: Look, clinic: Clinic) -> None:
    told(clinic, look, "token-file", "h2")


@fault("An interface in NCCL_SOCKET_IFNAME that is not there", "NCCL: no socket interface found.")
def test_interface(look: Look, clinic: Clinic) -> None:
    assert "ib0" in told(clinic, look, "interface-missing", "h1")["what"]


@fault("A host name that resolves to the loopback", "gloo tells the others 127.0.1.1; ranks can't connect.")
def test_loopback(look: Look, clinic: Clinic) -> None:
    assert "127.0.1.1" in str(told(clinic, look, "hostname-loopback", "h1"))


@fault("RAY_DEBUG=legacy is left over", "Ray's distributed debugger finds nothing.")
def test_leftover(look: Look, clinic: Clinic) -> None:
    told(clinic, look, "ray-debug-leftover", "h1")


@fault("A zombie of an earlier run holds MASTER_PORT", "`Address already in use`, an hour later, on rank 0.")
def test_zombie_port(look: Look, clinic: Clinic) -> None:
    found = told(clinic, look, "port-taken", "h2")
    assert "29500" in found["what"] and "pid" in str(found["evidence"]), found


@fault("Device variables that contradict each other", "Ranks see each other's GPUs, or none.")
def test_device_variables(look: Look, clinic: Clinic) -> None:
    told(clinic, look, "device-variables", "h2")
