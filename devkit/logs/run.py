"""`devkit logs --first-error`: one cause, with where and who, and a count of what followed."""

from __future__ import annotations

import io
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from devkit import console
from devkit.debug.address import resolve
from devkit.debug.dashboard import Dashboard
from devkit.debug.rows import JobRow
from devkit.errors import DevkitError
from devkit.logs import bundle as bundles
from devkit.logs import view
from devkit.logs.collect import Left, collect
from devkit.logs.order import FirstError, first_error

HUB_SECONDS = 5.0
SETTLE_SECONDS = 8.0  # for the hub to find out what became of workers that have just gone


def main(
    job: str | None, *, bundle: Path | None = None, address: str | None = None, json: bool = False
) -> int:  # fmt: skip
    """Exit code 1 when there is an error, 0 when there is none."""
    if bundle is not None:
        bundles.check(bundle)
    cluster = resolve(address)
    with cluster.dashboard() as dashboard:
        row = choose(dashboard, job)
        crashes, stacks = _of_hub(cluster.dashboard_url, row, with_stacks=bundle is not None)
        left = collect(dashboard, row, crashes)
        found = first_error(left.events)
        record = view.record(left, found, str(bundle or ""))
        if bundle is not None:
            page = _plain(left, found)
            bundles.write(bundle, left, found, page, record, dashboard.version().ray_version, stacks)
    if json:
        console.emit(record)
    else:
        console.result().print(view.page(left, found), soft_wrap=True)
        if bundle is not None:
            console.talk().print(f"devkit: wrote {bundle}", soft_wrap=True)
    return 1 if found.cause else 0


def choose(dashboard: Dashboard, job: str | None) -> JobRow:
    """The job that is meant: without a name the newest one that failed, else the newest."""
    if job:
        return dashboard.job(job)
    rows = sorted(dashboard.jobs(), key=lambda row: row.start_time, reverse=True)
    if not rows:
        raise DevkitError(f"no job has run on {dashboard.url}", hint="devkit submit -- CMD starts one")
    return next((row for row in rows if row.status == "FAILED"), rows[0])


def _of_hub(url: str, row: JobRow, with_stacks: bool) -> tuple[list[Mapping[str, Any]], Any]:
    """devkit's snapshots of the job and, while it lives, its stacks; nothing where there is no hub."""
    from devkit.debug.client import connect
    from devkit.debug.crashes import all_crashes, complete

    found: list[Mapping[str, Any]] = []
    stacks: Any = None
    with suppress(DevkitError), connect(url, deadline=HUB_SECONDS) as hub:
        for record in all_crashes(hub, settle=SETTLE_SECONDS):
            if row.job_id and record.job_id == row.job_id:
                with suppress(DevkitError):
                    found.append(complete(hub.call("crash", id=record.id), record))
        if with_stacks and not row.has_ended:
            stacks = hub.call("stacks", job_id=row.job_id, timeout=HUB_SECONDS)
    return found, stacks


def _plain(left: Left, found: FirstError) -> str:
    from rich.console import Console

    buffer = io.StringIO()
    Console(file=buffer, width=200, color_system=None).print(view.page(left, found), soft_wrap=True, markup=False)
    return buffer.getvalue()
