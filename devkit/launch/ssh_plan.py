"""What ssh is to do, and what its failures mean. Pure: no host is asked here."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from devkit.debug.ray_start import ClusterOptions
from devkit.debug.tokens import AuthMode
from devkit.errors import DevkitError, UnreachableError, UsageError

HOSTS_HINT = "--hosts takes h1,h2,h3 or a file with one host per line, each as for `ssh HOST`"
ALL_ADDRESSES = "0.0.0.0"
# What has to be the same, and how a host without it is told.
SAME = (("devkit", "no devkit"), ("ray", "no Ray"), ("python", "no Python"))


@dataclass(frozen=True)
class Facts:
    """What `host_boot.py` says of a host; empty: it has none."""

    python: str
    ray: str
    devkit: str
    code: str  # digest of devkit's sources
    executable: str
    ip: str  # the address that other hosts see
    gcs_port: int  # free there
    boot: str = ""  # which machine, containers or not
    debugpy: str = "1.8"  # its version may differ: nothing of it goes from one host to another

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Facts:
        return cls(**{name: document[name] for name in cls.__dataclass_fields__})


def parse_hosts(text: str) -> tuple[str, ...]:
    """The hosts of `h1,h2` or of a file: one a line, `#` begins a comment, `slots=8` as in MPI's files is passed over
    (Ray counts the GPUs itself). Raises UsageError for none, for one that stands there twice, and for what is no host.

    >>> parse_hosts("h1,me@h2")
    ('h1', 'me@h2')
    >>> parse_hosts("h1 slots=8  # the head\\n\\nh2\\n")
    ('h1', 'h2')
    """
    hosts: list[str] = []
    for line in text.splitlines():
        words = line.partition("#")[0].replace(",", " ").split()
        if "," not in line and any("=" not in word for word in words[1:]):
            raise UsageError(f"{line.strip()!r} is not a single host", hint=HOSTS_HINT)
        hosts += words if "," in line else words[:1]
    if not hosts:
        raise UsageError("--hosts contains no host", hint=HOSTS_HINT)
    for host, times in Counter(hosts).items():
        # The first sign: ssh would take it for an option of its own, and run what that says.
        if not re.fullmatch(r"(ssh://)?([^\s@/-][^\s@/]*@)?[\w\[:][\w.\-:\[\]%]*/?", host):
            raise UsageError(f"{host!r} is not a host", hint=HOSTS_HINT)
        if times > 1:
            raise UsageError(f"{host} is listed twice in --hosts", hint="one Ray node per machine")
    return tuple(hosts)


def differences(here: Facts, there: Mapping[str, Facts]) -> str:
    """What is not as it is here, by host with both versions; empty: nothing.

    >>> us = Facts("3.11.7", "2.60.0", "0.1.0", "aa", "/v/python", "", 0)
    >>> differences(us, {"h1": us, "h2": replace(us, ray="2.49.0", code="bb")})
    'h2 has devkit 0.1.0 (sources bb), here is 0.1.0 (sources aa); h2 has ray 2.49.0, here is 2.60.0'
    >>> differences(us, {"h1": replace(us, devkit="", code="")})
    'h1 has no devkit for /v/python, here is 0.1.0'
    >>> differences(us, {"h1": replace(us, debugpy="")})
    'h1 has no debugpy for /v/python: breakpoints there would be skipped'
    """
    told = []
    for host, facts in there.items():
        for name, absent in SAME:
            ours, theirs = getattr(here, name), getattr(facts, name)
            if not theirs:
                told.append(f"{host} has {absent} for {facts.executable}, here is {ours}")
            elif ours != theirs:
                told.append(f"{host} has {name} {theirs}, here is {ours}")
            elif name == "devkit" and here.code != facts.code:
                told.append(f"{host} has devkit {theirs} (sources {facts.code}), here is {ours} (sources {here.code})")
        if facts.devkit and not facts.debugpy:
            told.append(f"{host} has no debugpy for {facts.executable}: breakpoints there would be skipped")
    return "; ".join(told)


def check_addresses(there: Mapping[str, Facts]) -> None:
    """Raises UsageError where two hosts are one machine, or a host has no address that others could use."""
    seen: dict[str, str] = {}
    for host, facts in there.items():
        if not facts.ip:
            raise UsageError(
                f"{host} has no address that the other hosts can reach",
                hint="it has no IPv4 address but 127.0.0.1: is its network up?",
            )
        if other := seen.get(facts.ip):
            if facts.boot == there[other].boot:
                raise UsageError(
                    f"{other} and {host} are the same machine, {facts.ip}",
                    hint="list each machine once; devkit debug-cluster --nodes N simulates several on one",
                )
            raise UsageError(
                f"{other} and {host} are two machines, and both have {facts.ip}: containers with their own network",
                hint="start them with --network host: no other machine could reach that address",
            )
        seen[facts.ip] = host


def orders(
    options: ClusterOptions, there: Mapping[str, Facts], auth: AuthMode, environ: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """What each host is told, the first one to be the head. `environ` holds the token; it goes through ssh's stdin."""
    (head, first), *_ = there.items()
    port = options.port or first.gcs_port
    common = replace(options, auth=auth, wait_for=len(there), json=False)
    plans = {
        host: replace(common, port=port, node_ip=facts.ip)
        if host == head
        else replace(
            common,
            join=f"{first.ip}:{port}",
            port=None,
            dashboard_port=None,
            node_ip=facts.ip,
            await_head=True,
            head_is_ours=True,
        )
        for host, facts in there.items()
    }
    return {
        host: {"do": "start", "options": _plain(plan), "environ": {"RAY_AUTH_MODE": auth, **environ}}
        for host, plan in plans.items()
    }


def _plain(options: ClusterOptions) -> dict[str, Any]:
    return {**asdict(options), "temp_dir": str(options.temp_dir.absolute()) if options.temp_dir else None}


def failure(host: str, python: str, code: int, errors: str) -> DevkitError:
    """Why the ssh to a host ended before its work was done: exit code 255 is ssh's own."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    last = lines[-1] if lines else "it said nothing"
    if code in (126, 127):
        return DevkitError(
            f"{host} has no {python}: {last}", hint="the path is the same as here; choose the one there with --python"
        )
    if code != 255:
        return DevkitError(f"{host}: {python} ended with {code}: {last}", hint=f"ssh {host} {python} -V has to work")
    return UnreachableError(f"no ssh to {host}: {last}", hint=_hint(host, errors))


def _hint(host: str, errors: str) -> str:
    """
    >>> _hint("h1", "Host key verification failed.")
    'run `ssh h1` once and accept its key'
    """
    hints = {
        "Host key verification failed": f"run `ssh {host}` once and accept its key",
        "REMOTE HOST IDENTIFICATION": f"its key has changed: if that is right, ssh-keygen -R {host}",
        "Permission denied": f"`ssh {host} true` has to work, and ask for no password; ssh-copy-id {host}, or ssh-add",
        "Could not resolve hostname": "is the name right? a Host entry in ~/.ssh/config gives a short name an address",
        "timed out": "is it up, and is its port 22 open to this machine?",
        "Connection refused": "is sshd running there? ~/.ssh/config may name another Port",
    }
    return next((hint for sign, hint in hints.items() if sign in errors), f"`ssh {host} true` has to work from here")
