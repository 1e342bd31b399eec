"""`devkit logs --first-error`: one cause, with where and who, and a count of what followed."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from devkit import console, patience
from devkit.debug import kept
from devkit.debug.address import ClusterAddress, resolve
from devkit.debug.dashboard import Dashboard
from devkit.debug.job_ends import of_cluster
from devkit.debug.jobs import is_doctors
from devkit.debug.protocols import Hub
from devkit.debug.rows import JobRow
from devkit.errors import DevkitError, NoJobError, UnreachableError
from devkit.logs import bundle as bundles
from devkit.logs import view
from devkit.logs.collect import Left, collect, of_ended, snapshots
from devkit.logs.order import FirstError, first_error

HUB_SECONDS = 5.0
SETTLE_SECONDS = 8.0  # for the hub to find out what became of workers that have just gone


def main(
    job: str | None, *, bundle: Path | None = None, address: str | None = None, json: bool = False
) -> int:  # fmt: skip
    """Exit code 1 when there is an error, 0 when there is none."""
    if bundle is not None:
        bundles.check(bundle)
    if ended := kept.named(job):
        return _tell(Material(of_ended(ended)), bundle, json)
    try:
        cluster = resolve(address)
    except DevkitError as error:
        return _tell(Material(of_ended(kept.instead(error, address, job))), bundle, json)
    with cluster.dashboard() as dashboard:
        row = choose(dashboard, job)
        known = _of_hub(cluster, row, with_stacks=bundle is not None)
        left = collect(dashboard, row, known.crashes, known.missed, known.caught)
        version = dashboard.version().ray_version if bundle is not None else ""
    code = _tell(Material(left, version, known.stacks), bundle, json)
    if job is None:
        kept.tell_of_another(cluster.gcs_address)
    return code


@dataclass(frozen=True)
class Material:
    """What a job has left, and what else a bundle has."""

    left: Left
    ray_version: str = ""  # empty: not known
    stacks: Any = None


def _tell(found: Material, bundle: Path | None, json: bool) -> int:
    left, cause = found.left, first_error(found.left.events)
    record = view.record(left, cause, str(bundle or ""))
    if bundle is not None:
        bundles.write(bundle, left, cause, _plain(left, cause), record, found.ray_version, found.stacks)
    if json:
        console.emit(record)
    else:
        console.result().print(view.page(left, cause), soft_wrap=True)
        if bundle is not None:
            console.talk().print(f"devkit: wrote {bundle}", soft_wrap=True)
    return 1 if cause.cause else 0


def choose(dashboard: Dashboard, job: str | None) -> JobRow:
    """The job that is meant: without a name the newest one that failed, else the newest."""
    if job:
        return of_cluster([dashboard.job(job)], dashboard.url)[0]
    return newest_failed(of_cluster(dashboard.jobs(), dashboard.url), dashboard.url)


def newest_failed(rows: Sequence[JobRow], url: str) -> JobRow:
    """The newest one that failed, else the newest. Raises NoJobError where there is none."""
    rows = sorted((row for row in rows if not is_doctors(row)), key=lambda row: row.start_time, reverse=True)
    if not rows:
        raise NoJobError(f"no job has run on {url}", hint="devkit submit -- CMD starts one")
    return next((row for row in rows if row.status == "FAILED"), rows[0])


@dataclass(frozen=True)
class Known:
    """What devkit's hub knows of a job; nothing where there is no hub."""

    crashes: tuple[Mapping[str, Any], ...] = ()  # snapshots in full
    stacks: Any = None  # while the job lives
    missed: tuple[str, ...] = ()  # what could not be had, and why
    caught: tuple[Mapping[str, Any], ...] = ()  # processes that have caught something


def _of_hub(cluster: ClusterAddress, row: JobRow, with_stacks: bool) -> Known:
    from devkit.debug.client import connect

    known = Known()
    try:
        with connect(cluster, deadline=patience.seconds(HUB_SECONDS)) as hub:
            known = _snapshots(hub, row)
            if with_stacks and not row.has_ended:
                known = replace(
                    known, stacks=hub.call("stacks", job_id=row.job_id, timeout=patience.of_hub(HUB_SECONDS))
                )
    except (UnreachableError, NoJobError):
        return known
    except DevkitError as error:
        return replace(known, missed=(*known.missed, f"devkit's hub: {error.message}"))
    return known


def _snapshots(hub: Hub, row: JobRow) -> Known:
    found, missed = snapshots(hub, row.job_id, SETTLE_SECONDS)
    caught: tuple[Mapping[str, Any], ...] = ()
    with suppress(DevkitError):  # an older hub keeps none
        caught = (
            tuple(hub.call("caught", job_id=row.job_id, timeout=patience.of_hub(HUB_SECONDS))["workers"])
            if row.job_id
            else ()
        )
    return Known(found, missed=missed, caught=caught)


def _plain(left: Left, found: FirstError) -> str:
    from rich.console import Console

    buffer = io.StringIO()
    Console(file=buffer, width=200, color_system=None).print(view.page(left, found), soft_wrap=True, markup=False)
    return buffer.getvalue()
