"""One rank of a run: a Ray actor that joins the others and hands each phase to its `Roles`.

This module imports neither torch nor transformers, so that the driver can name the class without loading them; the
worker loads them while it comes up.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainer.quiet import quiet_torch
from trainer.spec import BridgeEnd, RunSpec
from trainer.teams import Seat

if TYPE_CHECKING:
    from trainer.config.chosen import Choice
    from trainer.errors import TrainerError
    from trainer.retrieval import Retriever
    from trainer.retrieval.meeting import Met
    from trainer.transport import Packed


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
    """What one rank has of actor, critic, reference, rollout engine and rewards: all, or its team's roles."""

    def __init__(self, seat: Seat, node_ip: str | None = None) -> None:
        quiet_torch()
        from trainer import rendezvous, roles  # the slow imports, while the other ranks do theirs
        from trainer.rollout.bridge import Bridge

        self.seat = seat
        self.rank = seat.rank  # for debuggers, until there is a process group that says so
        self.node_ip = node_ip or _node_ip()
        self._module = roles
        self._rendezvous = rendezvous
        self._roles: Any = None
        self._make_bridge = Bridge
        self._bridge: Bridge | None = None

    def describe(self) -> WorkerInfo:
        import ray

        return WorkerInfo(self.seat.number, self.node_ip, os.getpid(), ray.get_runtime_context().get_node_id())

    def open_store(self, size: int, timeout_s: float) -> tuple[str, int]:
        """Opens a rendezvous of `size` ranks, at a port that the system chooses, and tells where."""
        return self.node_ip, self._rendezvous.open_store(size, timeout_s)

    def connect(self, host: str, port: int, timeout_s: float, end: BridgeEnd | None = None) -> None:
        """Join the process group of this rank's team, and the bridge between two teams. Collective."""
        self._rendezvous.connect(self.seat.rank, self.seat.size, host, port, timeout_s)
        self._bridge = self._make_bridge(end) if end is not None else None

    def build(self, spec: RunSpec) -> tuple[Choice, ...]:
        """Load models and engine; again with another spec, it starts over in the same process. Collective."""
        self._roles = None  # frees the old models first
        self._roles = self._module.Roles(spec, self.seat, self._bridge)
        return self._roles.chosen  # type: ignore[no-any-return]

    def meet_retriever(self, retriever: Retriever) -> Met | TrainerError:
        """Gives it to this rank and its environments; what was found there, or why it is of no use."""
        from trainer.errors import TrainerError
        from trainer.retrieval.meeting import meet

        try:
            return meet(retriever)
        except TrainerError as error:
            return error

    def call(self, phase: str, packed_args: Packed) -> Packed:
        """Run one phase of `Roles` on this rank's share; gives its answer and a `memory.Memory`, packed."""
        answer: Packed = self._module.call(self._roles, phase, packed_args)
        return answer


def _node_ip() -> str:
    import ray

    return ray.util.get_node_ip_address() or socket.gethostbyname(socket.gethostname())
