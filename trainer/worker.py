"""One rank of a run: a Ray actor that joins the others and hands each phase to its `Roles`.

This module imports neither torch nor transformers, so that the driver can name the class without loading them; the
worker loads them while it comes up.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import Any

from trainer.spec import RunSpec


@dataclass(frozen=True)
class WorkerInfo:
    """Where a rank lives."""

    rank: int
    node_ip: str
    pid: int
    node_id: str  # Ray's

    def __str__(self) -> str:
        return f"rank {self.rank} (pid {self.pid} on {self.node_ip})"


class PPOWorker:
    """Actor, critic, reference, rollout engine and rewards of one rank (the "hybrid engine")."""

    def __init__(self, rank: int, world_size: int, node_ip: str | None = None) -> None:
        from trainer import rendezvous, roles  # the slow imports, while the other ranks do theirs

        self.rank = rank
        self.world_size = world_size
        self.node_ip = node_ip or _node_ip()
        self._module = roles
        self._rendezvous = rendezvous
        self._roles: Any = None

    def describe(self) -> WorkerInfo:
        import ray

        return WorkerInfo(self.rank, self.node_ip, os.getpid(), ray.get_runtime_context().get_node_id())

    def open_store(self, timeout_s: float) -> tuple[str, int]:
        """Rank 0 opens the rendezvous, at a port that the system chooses, and tells where."""
        return self.node_ip, self._rendezvous.open_store(self.world_size, timeout_s)

    def connect(self, host: str, port: int, timeout_s: float) -> None:
        """Join the process group. Collective."""
        self._rendezvous.connect(self.rank, self.world_size, host, port, timeout_s)

    def build(self, spec: RunSpec) -> None:
        """Load models and engine; again with another spec, it starts over in the same process. Collective."""
        self._roles = None  # frees the old models first
        self._roles = self._module.Roles(spec, self.rank, self.world_size)

    def call(self, phase: str, packed_args: tuple[Any, ...]) -> Any:
        """Run one phase of `Roles` on this rank's share; gives its answer, packed, and a `memory.Memory`."""
        return self._module.call(self._roles, phase, packed_args)


def _node_ip() -> str:
    import ray

    return ray.util.get_node_ip_address() or socket.gethostbyname(socket.gethostname())
