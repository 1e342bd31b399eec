"""The records that `devkit debug-cluster --json` prints. Field names are a promise: add, never rename."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from devkit.debug.state import Mode
from devkit.debug.tokens import AuthMode


@dataclass(frozen=True)
class NodeRecord:
    """One Ray node."""

    node_id: str
    ip: str
    alive: bool
    cpus: float
    gpus: float
    head: bool = False


@dataclass(frozen=True)
class DebugMode:
    """Which of Ray's debuggers, and whether it stops after an exception."""

    mode: Mode
    post_mortem: bool


@dataclass(frozen=True)
class AuthRecord:
    """Where the token is, never the token."""

    mode: AuthMode
    source: str  # a variable or a file; empty without a token


@dataclass(frozen=True)
class HostRecord:
    """One machine of a cluster that was launched from another one."""

    name: str  # as the launcher knows it: what ssh is given
    role: str  # "head" | "worker"
    ip: str
    node_id: str
    logs: str  # HOST:FOLDER of what its `ray start` printed
    problem: str = ""  # why it isn't fine


@dataclass(frozen=True)
class DebugCluster:
    """A cluster as it is now."""

    gcs_address: str
    dashboard_url: str
    nodes: tuple[NodeRecord, ...]
    debug: DebugMode
    join_command: str
    name: str
    auth: AuthRecord
    logs: str  # the folder of what its `ray start` commands printed
    problem: str = ""  # why it isn't fine
    removed: tuple[str, ...] = ()  # leftovers that would have turned the debugger off
    notes: tuple[str, ...] = ()
    hosts: tuple[HostRecord, ...] = ()  # with --hosts

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Stopped:
    """A cluster that was ended: how many processes it had, and how many of them had to be killed."""

    name: str
    gcs_address: str
    processes: int
    killed: int
    problem: str = ""  # why something of it may still run
    logs: str = ""  # the folder in which Ray's logs still are; empty: they went with it

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
