"""Bringing a cluster up.

Nothing runs yet: what is said is the launcher's own error, and nothing is left behind.
"""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Iterator

import pytest

from tests.faults.cluster import PACKAGES, UP, world
from tests.faults.gallery import Clinic, fault
from tests.hosts import hosts, ssh
from tests.hosts.hosts import Host, Lan
from tests.hosts.launching import PYTHON, devkit, left_on, patience

pytestmark = [pytest.mark.timeout(600), pytest.mark.ray]
FROM_ENV = "devkit debug-cluster --from-env"
LISTEN = "import socket, time; s = socket.create_server(('', 6379)); print(1, flush=True); time.sleep(3600)"


@pytest.fixture(scope="module")
def lan() -> Iterator[Lan]:
    """Three hosts with sshd."""
    with hosts.up(3) as made, ssh.sshd(made):
        yield made


@pytest.fixture
def token() -> dict[str, str]:
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


def from_env(host: Host, environ: dict[str, str], seconds: float = 30) -> str:
    """What the command says on stderr, which fails."""
    done = host.run(*UP[:-3], "--timeout", f"{seconds:.0f}", env=environ, check=False, timeout=200)
    assert done.returncode, done.stdout
    assert left_on(host) == []
    return done.stderr


@fault("The wrong address: an interface of another machine", "`ray start` says nothing for a minute.")
def test_wrong_address(lan: Lan, token: dict[str, str], clinic: Clinic) -> None:
    clinic.symptom()
    said = clinic.refusal(FROM_ENV, from_env(lan[1], {**token, **world(0, 3)}))
    assert "MASTER_ADDR 10.77.0.1 is not an address of this machine" in said


@fault("The head's port can't be reached: a firewall", "`ray start --address` says that it cannot connect to the GCS.")
def test_head_unreachable(lan: Lan, token: dict[str, str], clinic: Clinic) -> None:
    lan.partition(0, 1)
    clinic.symptom()
    said = clinic.refusal(FROM_ENV, from_env(lan[1], {**token, **world(1, 3)}, patience(8)))
    lan.heal(0, 1)
    assert "no Ray answers at 10.77.0.1:6379: no answer" in said, said


@fault("The head was not started", "`ray start --address` says that it cannot connect to the GCS.")
def test_no_head(lan: Lan, token: dict[str, str], clinic: Clinic) -> None:
    clinic.symptom()
    said = clinic.refusal(FROM_ENV, from_env(lan[1], {**token, **world(1, 3)}, patience(8)))
    assert "no Ray answers at 10.77.0.1:6379: connection refused" in said, said


@fault("A machine does not come", "The trainer waits for GPUs, or starts with those that are there.")
def test_a_missing_machine(lan: Lan, token: dict[str, str], clinic: Clinic) -> None:
    command = lan[0].popen(
        *(*UP[:-3], "--timeout", f"{patience(20):.0f}"),
        env={**token, **world(0, 2)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    clinic.symptom()
    with command:
        _, said = command.communicate(timeout=200)
    assert "1 of 2 nodes: rank 1" in clinic.refusal(FROM_ENV, said)


@fault("A zombie of an earlier run holds the GCS's port", "`ray start` says that a Ray runs already, or hangs.")
def test_port_taken(lan: Lan, token: dict[str, str], clinic: Clinic) -> None:
    zombie = lan[0].popen(PYTHON, "-c", LISTEN, stdout=subprocess.PIPE)
    assert zombie.stdout is not None and zombie.stdout.readline()
    clinic.symptom()
    done = lan[0].run(*UP[:-3], "--timeout", "30", env={**token, **world(0, 3)}, check=False)
    with zombie:
        zombie.kill()
    assert "MASTER_PORT 6379 is in use on this machine" in clinic.refusal(FROM_ENV, done.stderr)


@fault("An interface that is not there", "gloo: Unable to find address for: ib0, or NCCL's words on it.")
def test_interface(lan: Lan, token: dict[str, str], clinic: Clinic) -> None:
    clinic.symptom()
    environ = {**token, **world(1, 3), "NCCL_SOCKET_IFNAME": "ib0"}
    assert "NCCL_SOCKET_IFNAME is ib0" in clinic.refusal(FROM_ENV, from_env(lan[1], environ))


def over_ssh(lan: Lan, clinic: Clinic, *words: str) -> str:
    clinic.symptom()
    done = devkit(lan[0], "debug-cluster", "--hosts", "h0,h1,h2", "--timeout", "60", *words, code=None)
    assert done.returncode
    return clinic.refusal("devkit debug-cluster --hosts h0,h1,h2", done.stderr)


@fault("Another Ray on one machine", "`Version mismatch`, from the second `ray start` of three.")
def test_version(lan: Lan, clinic: Clinic) -> None:
    lan[1].write("/opt/old/ray-2.1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: ray\nVersion: 2.1.0\n")
    for host in lan:
        old = "export PYTHONPATH=/opt/old:$PYTHONPATH\n" if host.name == "h1" else ""
        host.write("/opt/python", f'#!/bin/sh\n{old}exec {PYTHON} "$@"\n', mode="755")
    assert "h1 has ray 2.1.0" in over_ssh(lan, clinic, "--python", "/opt/python")


@fault("debugpy is missing on one machine, before the start", "Breakpoints of ranks there are passed over.")
def test_debugpy(lan: Lan, clinic: Clinic) -> None:
    folders = [PACKAGES / "debugpy", next(PACKAGES.glob("debugpy-*.dist-info"))]
    for path in folders:
        lan[2].run("sh", "-c", f"mkdir -p /none && mount --bind /none {path}")
    said = over_ssh(lan, clinic)
    for path in folders:
        lan[2].run("umount", str(path))
    assert "h2 has no debugpy" in said, said


@fault("A machine that ssh does not reach", "`ray up` or a loop over ssh stands still at that machine.")
def test_ssh(lan: Lan, clinic: Clinic) -> None:
    lan[2].run("sh", "-c", "kill $(cat /run/sshd.pid)")
    said = over_ssh(lan, clinic)
    lan[2].run(ssh.SSHD)
    assert "no ssh to h2" in said, said
