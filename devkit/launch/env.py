"""env: the same `devkit debug-cluster --from-env` on every machine, which its environment tells from the others.

Rank 0 is the head; the others wait for it and join; all wait until WORLD_SIZE machines are there, or say who is not.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from devkit import console
from devkit.debug import cluster, processes, ray_start
from devkit.debug.cluster_records import DebugCluster
from devkit.debug.cluster_view import show_started, stay
from devkit.debug.ray_start import ClusterOptions
from devkit.debug.tokens import TOKEN, TOKEN_PATH, auth_mode, find_token
from devkit.errors import DeadlineError, UsageError
from devkit.launch import env_plan
from devkit.launch.base import Down, LaunchNode, Ran, Say

# Other than on one machine: the machines of a job do not begin in the same minute.
DEFAULTS: dict[str, Any] = {"dashboard_host": "0.0.0.0", "timeout": 300.0}


class EnvLauncher:
    """This machine's part of a cluster that every machine brings up for itself."""

    name = "env"

    def __init__(self, options: ClusterOptions) -> None:
        self._base = options
        self._world = env_plan.read(os.environ)
        self._started: DebugCluster | None = None

    @property
    def rank(self) -> int:
        return self._world.rank

    def up(self, say: Say, timeout: float) -> DebugCluster:
        """Returns when WORLD_SIZE machines are alive; whatever it raises, it leaves nothing running here."""
        check(self._base)
        world, there = self._world, interfaces()
        chosen = env_plan.interface(os.environ, there)
        _check_head(world, there)
        _check_token(world, self._base)
        say(env_plan.describe(world, chosen or ()))
        for name in env_plan.OF_THE_MACHINES:
            os.environ.pop(name, None)
        plan = env_plan.options(world, replace(self._base, timeout=timeout), chosen[1] if chosen else None)
        self._started = cluster.start(plan, say)
        return self._started

    def nodes(self) -> tuple[LaunchNode, ...]:
        """All that are known: the machines have no other names here than their addresses."""
        if self._started is None:
            return (LaunchNode(self._world.head.host, "head", self._world.head.host),)
        return tuple(
            LaunchNode(node.ip, "head" if node.head else "worker", node.ip, node.node_id)
            for node in self._started.nodes
        )

    def exec(self, node: LaunchNode, command: Sequence[str], *, stdin: str = "", timeout: float) -> Ran:
        """Only on this machine: there is no way from one to the other but Ray."""
        if node.ip not in interfaces().values():
            raise UsageError(f"{node.name} is another machine", hint="run it there, or as a Ray task")
        try:
            done = subprocess.run([*command], input=stdin, capture_output=True, text=True, timeout=timeout)
        except subprocess.TimeoutExpired:
            raise DeadlineError(
                f"{command[0]} has not ended after {timeout:g} s", hint="use a longer timeout"
            ) from None
        return Ran(node.name, done.returncode, done.stdout, done.stderr)

    def down(self, timeout: float) -> tuple[Down, ...]:
        """This machine's part; each machine ends its own."""
        if self._started is None:
            return ()
        return tuple(Down(self._started.name, ended.processes) for ended in cluster.stop(self._started.name))


def main(options: ClusterOptions, *, block: bool = False) -> int:
    """`devkit debug-cluster --from-env`; 0 when all machines are there; with `block`, when told to end."""
    launcher = EnvLauncher(options)

    def start() -> DebugCluster:
        talk = console.talk()
        started = launcher.up(lambda note: talk.print(note, soft_wrap=True), options.timeout)
        show_started(started, json=options.json, joined=launcher.rank > 0)
        return started

    return stay(start, block=block)


def check(options: ClusterOptions) -> None:
    """Raises UsageError for options that the environment decides on."""
    for name, given, variable in (
        ("--join", options.join is not None, env_plan.ADDRESS),
        ("--port", options.port is not None, env_plan.PORT),
        ("--nodes", options.nodes != 1, env_plan.SIZE),
    ):
        if given:
            raise UsageError(f"{name} and --from-env cannot be combined", hint=f"{variable} sets it")


def interfaces() -> dict[str, str]:
    """IPv4 addresses of this machine's network interfaces that are up, by name."""
    psutil = processes.load_psutil()
    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    return {
        name: entry.address
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family == socket.AF_INET and name in up
    }


def _check_head(world: env_plan.World, there: env_plan.Interfaces) -> None:
    """Raises UsageError where rank 0 cannot be what, and where, the others will look for."""
    if world.rank == 0 and not world.head.is_local:
        have = ", ".join(f"{name} {ip}" for name, ip in there.items())
        raise UsageError(
            f"RANK is 0, but MASTER_ADDR {world.head.host} is not an address of this machine ({have})",
            hint="MASTER_ADDR must be the address of the machine with RANK=0",
        )
    if world.rank == 0 and not ray_start.is_free("0.0.0.0", world.head.port):
        raise UsageError(
            f"MASTER_PORT {world.head.port} is in use on this machine",
            hint="is it Ray from an earlier run (devkit debug-cluster status)? else set another MASTER_PORT everywhere",
        )


def _check_token(world: env_plan.World, options: ClusterOptions) -> None:
    """Raises UsageError where the machines cannot have agreed on a token: one made here would be nobody else's."""
    if world.size > 1 and auth_mode(options.auth, os.environ) == "token" and find_token() is None:
        raise UsageError(
            f"no token here, but all {world.size} machines need the same one",
            hint=f"create one (openssl rand -hex 32) and give it to all: {TOKEN}, or {TOKEN_PATH} with a file that "
            "they share, or ~/.ray/auth_token on each; or use --auth disabled",
        )
