"""What all launchers have in common: the Protocol, its records, and the words that start a node.

A launcher says *where* nodes are and *how* a command gets there. What runs there is the same everywhere:

    head      devkit debug-cluster --json --dashboard-host 0.0.0.0 --node-ip IP --port PORT
    worker    devkit debug-cluster --json --join IP:PORT --node-ip IP

with RAY_AUTH_MODE in the environment and the token in RAY_AUTH_TOKEN, or in the token file of the user; a token is
never a word of a command, where every user of the machine could read it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

from devkit.debug.cluster_records import DebugCluster

Say = Callable[[str], None]  # talk while a wait lasts; never the result
Role = Literal["head", "worker"]


@dataclass(frozen=True)
class LaunchNode:
    """One machine of a launch, whether or not a Ray runs on it by now."""

    name: str  # as the launcher knows it: an ssh destination, a Slurm node, a pod
    role: Role
    ip: str = ""  # as Ray knows it; empty until that is known
    node_id: str = ""  # Ray's; empty until it is alive

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Ran:
    """A command that ran on a node to its end."""

    node: str  # LaunchNode.name
    code: int  # its exit code; 255: ssh itself failed
    out: str
    err: str

    @property
    def last_words(self) -> str:
        """The last line that says something, of stderr first."""
        lines = [line.strip() for text in (self.out, self.err) for line in text.splitlines()]
        return next((line for line in reversed(lines) if any(map(str.isalpha, line))), "it said nothing")[:300]


@dataclass(frozen=True)
class Down:
    """How one node was left."""

    node: str  # LaunchNode.name
    processes: int  # that were ended there
    problem: str = ""  # why it may still have some

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Launcher(Protocol):
    """One way to a cluster on several machines.

    Each method raises UsageError for what cannot be right, UnreachableError for a machine or a service that cannot
    be reached, and DeadlineError, with what is missing by node, when its time is over.
    """

    @property
    def name(self) -> str:
        """Which launcher: "ssh", "env", "slurm", "dstack", "kuberay"."""
        ...

    def up(self, say: Say, timeout: float) -> DebugCluster:
        """Brings the cluster up within `timeout` seconds; whatever it raises, it leaves nothing running."""
        ...

    def nodes(self) -> tuple[LaunchNode, ...]:
        """The machines, the head first."""
        ...

    def exec(self, node: LaunchNode, command: Sequence[str], *, stdin: str = "", timeout: float) -> Ran:
        """Runs a command on one of them, in the environment that its Ray has, for at most `timeout` seconds."""
        ...

    def down(self, timeout: float) -> tuple[Down, ...]:
        """Ends what `up` started, on every node, also where it came up only in part; never anything else."""
        ...
