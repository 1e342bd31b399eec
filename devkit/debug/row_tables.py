"""Ray's tables as rows: the same questions, whoever is asked, a dashboard or the GCS."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TypeVar

from devkit.debug.rows import ActorRow, JobRow, NodeRow, PlacementGroupRow, Row, TaskRow, WorkerRow

LIMIT = 10_000  # rows; Ray refuses to give more
Filter = tuple[str, str, str]  # column, "=" or "!=", value
AnyRow = TypeVar("AnyRow", bound=Row)


class RowTables(ABC):
    """Every call raises UnreachableError where nobody answers."""

    @abstractmethod
    def _rows(self, kind: type[AnyRow], table: str, filters: tuple[Filter, ...]) -> tuple[AnyRow, ...]:
        """The rows of a table, at most `LIMIT` of them."""

    @abstractmethod
    def usage(self) -> dict[str, dict[str, tuple[float, float]]]:
        """What is used and what there is of each resource, by node ID; empty where nobody counts."""

    @abstractmethod
    def jobs(self) -> tuple[JobRow, ...]:
        """Drivers and submitted jobs, as far as they are known."""

    @abstractmethod
    def job(self, job_id: str) -> JobRow:
        """By its job ID or submission ID. Raises NoJobError where it is not known."""

    @abstractmethod
    def log_file(self, node_id: str, filename: str, *, timeout: float | None = None, lines: int = -1) -> bytes:
        """A file of the node's log folder, whole or its last `lines`. Raises DevkitError where it can't be had."""

    def nodes(self, *filters: Filter) -> tuple[NodeRow, ...]:
        return self._rows(NodeRow, "nodes", filters)

    def workers(self, *filters: Filter) -> tuple[WorkerRow, ...]:
        """Workers and drivers, also dead ones: `("is_alive", "=", "True")` leaves those out."""
        return self._rows(WorkerRow, "workers", filters)

    def tasks(self, *filters: Filter) -> tuple[TaskRow, ...]:
        return self._rows(TaskRow, "tasks", filters)

    def actors(self, *filters: Filter) -> tuple[ActorRow, ...]:
        return self._rows(ActorRow, "actors", filters)

    def placement_groups(self, *filters: Filter) -> tuple[PlacementGroupRow, ...]:
        return self._rows(PlacementGroupRow, "placement_groups", filters)
