"""Ray's tables of tasks, actors, nodes and placement groups, asked of the GCS where there is no dashboard to ask."""

from __future__ import annotations

from typing import Any, NoReturn

from devkit import patience
from devkit.debug.gcs import Asked, GcsAddress
from devkit.debug.row_tables import LIMIT, AnyRow, Filter, RowTables
from devkit.debug.rows import JobRow
from devkit.debug.tokens import Token
from devkit.errors import NoJobError, UnreachableError

SECONDS = 15.0  # the first time Ray is imported
TABLE_SECONDS = 8.0  # for the table itself


class GcsTables(Asked, RowTables):
    """What `Dashboard` has of the same names. Every call raises UnreachableError where the GCS does not tell."""

    PROGRAM = "gcs_tables_probe.py"

    def __init__(self, address: str, token: Token | None) -> None:
        super().__init__(GcsAddress.parse(address), token)

    def usage(self) -> dict[str, dict[str, tuple[float, float]]]:
        """What is used and what there is of each resource, by node ID; empty where the GCS does not tell."""
        [found] = self._ask("usage", ()) or [{}]
        return {
            str(node): {str(name): (float(used), float(total)) for name, (used, total) in every.items()}
            for node, every in found.items()
        }

    def jobs(self) -> tuple[JobRow, ...]:
        return ()

    def job(self, job_id: str) -> NoReturn:
        raise NoJobError(f"there is no job {job_id!r} on this cluster", hint="devkit jobs lists the jobs")

    def log_file(self, node_id: str, filename: str, *, timeout: float | None = None, lines: int = -1) -> bytes:
        raise UnreachableError(
            f"{filename} of node {node_id[:8]} can't be read", hint="no dashboard is there to read it"
        )

    def _rows(self, kind: type[AnyRow], table: str, filters: tuple[Filter, ...]) -> tuple[AnyRow, ...]:
        try:
            return tuple(kind.from_json(row) for row in self._ask(table, filters))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _unknown(table, f"rows of another shape ({type(error).__name__})") from None

    def _ask(self, table: str, filters: tuple[Filter, ...]) -> list[Any]:
        wanted = {"table": table, "filters": filters, "limit": LIMIT, "seconds": patience.seconds(TABLE_SECONDS)}
        document = self.ask(wanted, patience.seconds(SECONDS))
        if not isinstance(document.get("rows"), list):
            raise _unknown(table, str(document.get("problem") or "no rows"))
        return list(document["rows"])


def _unknown(table: str, why: str) -> UnreachableError:
    return UnreachableError(f"the GCS does not list its {table}: {why}", hint="it may run another version of Ray")
