"""A run in one process, without Ray: one rank, the same roles and the same loop. For benchmarks and debuggers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainer import rendezvous, roles
from trainer.config.chosen import Choice
from trainer.memory import Memory, most
from trainer.spec import RunSpec
from trainer.teams import Seat
from trainer.transport import pack, unpack


class LocalPool:
    """`cluster.WorkerPool` for one rank that lives in this process."""

    world_size = 1

    def __init__(self, timeout_s: float = 60.0) -> None:
        self._memory: list[Memory] = []
        rendezvous.connect(0, 1, "127.0.0.1", rendezvous.open_store(1, timeout_s), timeout_s)

    def build(self, spec: RunSpec) -> tuple[Choice, ...]:
        self.roles = roles.Roles(spec, Seat.alone())
        return self.roles.chosen

    def all(self, phase: str, args: Sequence[tuple[Any, ...] | None]) -> list[Any]:
        """Through the same packing as between processes, so that nothing is shared by accident."""
        assert args[0] is not None
        answer, reading = unpack(roles.call(self.roles, phase, pack(args[0])))
        self._memory.append(reading)
        return [answer]

    def take_memory(self) -> Memory | None:
        """See `run.Pool`."""
        taken, self._memory = most(self._memory), []
        return taken

    def close(self) -> None:
        """Leaves the process group."""
        rendezvous.leave()
