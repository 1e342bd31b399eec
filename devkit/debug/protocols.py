"""What the verbs need of the hub and of Ray's tables: the seams between them and a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from devkit.debug.dashboard import Filter
    from devkit.debug.rows import ActorRow, JobRow, NodeRow, PlacementGroupRow, TaskRow

Document = dict[str, Any]


class Channel(Protocol):
    """A debug-adapter connection to one worker."""

    def send(self, message: Document) -> None: ...

    def receive(self, timeout: float) -> Document | None:
        """The next message; None when the other side is gone. Raises DeadlineError when nothing came in time."""
        ...

    def close(self) -> None: ...


class Answers(Protocol):
    """What answers the operations that the brief of the hub lists, or some of them."""

    def call(self, op: str, *, timeout: float | None = None, **arguments: Any) -> Document: ...


class Hub(Answers, Protocol):
    """All of the operations, a channel to a worker, and news."""

    def channel(self, worker_id: str, only: str | None = None) -> Channel:
        """A connection to a worker; `only` narrows it to one stop, and to what comes later in its thread."""
        ...

    def watch(self) -> Iterator[Document]:
        """A `ps` document now, and one at each change."""
        ...


class RayTables(Protocol):
    """What Ray knows of a job's tasks, actors and resources: a dashboard, or the GCS without one."""

    def nodes(self, *filters: Filter) -> tuple[NodeRow, ...]: ...

    def tasks(self, *filters: Filter) -> tuple[TaskRow, ...]: ...

    def actors(self, *filters: Filter) -> tuple[ActorRow, ...]: ...

    def placement_groups(self, *filters: Filter) -> tuple[PlacementGroupRow, ...]: ...

    def usage(self) -> dict[str, dict[str, tuple[float, float]]]: ...

    def jobs(self) -> tuple[JobRow, ...]: ...

    def job(self, job_id: str) -> JobRow: ...

    def log_file(self, node_id: str, filename: str, *, timeout: float | None = None, lines: int = -1) -> bytes: ...
