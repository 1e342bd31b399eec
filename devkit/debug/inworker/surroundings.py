"""What the hub asks of the cluster that it is in."""

from __future__ import annotations

from typing import Any, Protocol

Document = dict[str, Any]


class Surroundings(Protocol):
    """The tests have one without Ray."""

    async def fate(self, worker_id: str, node_id: str, job_id: str) -> Document | None:
        """None while the worker may live, else {"reason", "crashed"}."""

    async def last_words(self, identity: Document) -> Document | None:
        """What a dead worker's error log ends with, if the log is on the hub's node."""

    def is_here(self, node_id: str) -> bool:
        """Whether that is the hub's own node."""

    async def onlook(self, node_id: str, op: str, timeout: float, arguments: Document) -> Document:
        """The answer of somebody who is sent to that node; an `error` if nobody gets there."""

    async def deaths(self, task_ids: list[str], job_id: str) -> list[Document]:
        """The workers that died at one of these tasks: {"identity"} beside their fate."""

    async def unheard(self, worker_id: str) -> Document:
        """{"identity", "seen"} that a worker of the hub's node has left before there was a hub that heard it, or {}."""

    def is_gone(self, identity: Document) -> bool:
        """Whether a process of the hub's own machine runs no more, as far as that can be seen at once."""

    async def stores(self) -> list[Document]:
        """The object stores of the nodes that answer, as `ray_stores.py` has them."""

    async def named(self, name: str) -> list[Document]:
        """What Ray's table has of the actors of that name, as `named.py` takes it."""

    async def instance(self, actor: str, job_id: str) -> Document | None:
        """How a job's actor is now, as `anew.py` takes it: by its name, or the beginning of its id."""

    async def is_tried_again(self, task_id: str, attempt: int) -> bool:
        """Whether Ray's table has a later try of a task."""

    async def orphaned(self, job_id: str) -> list[Document]:
        """The actors of a job that ended with their owner, as `orphans.py` takes them."""

    async def is_over(self, job_id: str) -> bool:
        """Whether a job's driver has ended."""

    async def keep(self, breakpoints: list[Document]) -> None:
        """Writes the breakpoints where new workers find them before they join. Done once they are there."""


__all__ = ["Surroundings"]
