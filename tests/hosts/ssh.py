"""sshd on virtual hosts, and a key that opens them to each other."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.hosts.hosts import Host, Lan, environment

SSHD = "/usr/sbin/sshd"


@contextmanager
def sshd(lan: Lan, *, on: range | None = None) -> Iterator[Lan]:
    """On the hosts with these numbers, all by default. Every host may log on to every other as its own user."""
    with tempfile.TemporaryDirectory() as folder:
        key = Path(folder) / "id"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
        private, public = key.read_text(), key.with_suffix(".pub").read_text()
    names = [f"{name} {public}" for host in lan for name in (host.name, host.ip)]
    for number, host in enumerate(lan):
        _allow(host, private, public, "".join(names))
        if on is None or number in on:
            _serve(host)
    yield lan


def _allow(host: Host, private: str, public: str, known: str) -> None:
    home = environment()["HOME"]
    host.write(f"{home}/.ssh/id_ed25519", private)
    host.write(f"{home}/.ssh/authorized_keys", public)
    host.write(f"{home}/.ssh/known_hosts", known)
    host.write("/etc/ssh/host_key", private)


def _serve(host: Host) -> None:
    options = {
        "HostKey": "/etc/ssh/host_key",
        "PidFile": "/run/sshd.pid",
        "UseDNS": "no",
        "PermitRootLogin": "prohibit-password",
        "StrictModes": "no",
        # What an installed devkit would have on its own.
        "SetEnv": f"PYTHONPATH={environment()['PYTHONPATH']} RAY_USAGE_STATS_ENABLED=0 OMP_NUM_THREADS=1",
    }
    config = "".join(f"{name} {value}\n" for name, value in options.items())
    host.write("/etc/ssh/sshd_config", config)
    host.run("sh", "-c", f"mkdir -p /run/sshd && {SSHD}")
