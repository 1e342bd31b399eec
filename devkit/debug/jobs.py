"""`devkit jobs`, `logs` and `stop`: the jobs of a cluster, through the dashboard."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from devkit import console
from devkit.debug import kept
from devkit.debug.address import resolve
from devkit.debug.crash_table import clip
from devkit.debug.inworker.redaction import scrub
from devkit.debug.job_ends import of_cluster, of_run
from devkit.debug.naming import ago
from devkit.errors import DevkitError, UsageError
from devkit.palette import NAME

if TYPE_CHECKING:
    from rich.text import Text

    from devkit.debug.dashboard import Dashboard
    from devkit.debug.documents import JobRecord
    from devkit.debug.rows import JobRow

COMMAND = "devkit"  # the metadata under which `devkit submit` keeps the user's own command
DOCTOR = "devkit doctor"  # stands there of a survey's job
DOCTORS_VARIABLE = "DEVKIT_DOCTOR"  # the survey's program is in it, and its command names it


def list_main(*, address: str | None = None, json: bool = False) -> int:
    """The jobs of the cluster, the newest first; without a cluster the runs of `devkit run` that have ended."""
    try:
        cluster = resolve(address)
    except DevkitError as error:
        return _tell(_of_runs(error, address), json)
    return _tell(of_cluster(cluster.dashboard().jobs(), cluster.dashboard_url), json, cluster.dashboard_url)


def _of_runs(error: DevkitError, address: str | None) -> list[JobRow]:
    """Each by the name of its run, which `--job` takes elsewhere: each Ray begins to count anew. Raises that error."""
    found = kept.without_cluster(error, address)
    console.talk().print(f"devkit: {error.message}; these runs have ended", soft_wrap=True)
    return [replace(of_run(run), job_id=run.name) for run in found]


def _tell(rows: list[JobRow], json: bool, url: str | None = "") -> int:
    rows.sort(key=lambda row: row.start_time, reverse=True)
    if json:
        console.emit({"jobs": [record(row) for row in rows]})
        return 0
    out = console.result()
    if not rows:
        out.print(f"no job has run on {url}: devkit submit -- CMD starts one", soft_wrap=True)
        return 0
    out.print(page(rows, time.time(), width=out.width if out.is_terminal else None), soft_wrap=True)
    return 0


def logs_main(job: str | None, *, address: str | None = None, json: bool = False) -> int:
    """What a submitted job prints, from its beginning to its end."""
    if job is None:
        raise UsageError(
            "devkit logs needs a job ID", hint="devkit jobs lists them; --first-error finds the newest failed one"
        )
    if json:
        raise UsageError("a log is not a JSON document", hint="--json goes with --first-error")
    dashboard = resolve(address).dashboard()
    name = submitted(dashboard, job)
    with dashboard.job_logs_stream(name) as pieces:
        for piece in pieces:
            sys.stdout.write(piece.decode("utf-8", "replace"))
            sys.stdout.flush()
    return 0


def stop_main(job: str, *, address: str | None = None, json: bool = False) -> int:
    """Asks a submitted job to end."""
    dashboard = resolve(address).dashboard()
    name = submitted(dashboard, job)
    stopped = dashboard.stop_job(name)
    if json:
        console.emit({"submission_id": name, "stopped": stopped})
    else:
        console.result().print(f"{name} is stopping" if stopped else f"{name} has already ended")
    return 0


def submitted(dashboard: Dashboard, job: str) -> str:
    """The submission ID of a job. Raises `UsageError` for a driver that nobody submitted: Ray keeps no log of it."""
    row = dashboard.job(job)
    if not row.submission_id:
        raise UsageError(
            f"job {job} was not submitted: it runs in its own terminal",
            hint="Ray keeps logs only of jobs started with devkit submit",
        )
    return row.submission_id


def record(row: JobRow) -> JobRecord:
    return {
        "job_id": row.job_id,
        "submission_id": row.submission_id,
        "status": row.status,
        "command": scrub(command_of(row)),
        "start_time": row.start_time / 1000,
        "end_time": row.end_time / 1000 if row.end_time else None,
        "message": scrub(row.message),
        "exit_code": row.driver_exit_code,
    }


def command_of(row: JobRow) -> str:
    """As the user wrote it: what Ray was told to run has devkit's few lines in front."""
    return DOCTOR if is_doctors(row) else str(row.metadata.get(COMMAND) or row.entrypoint)


def is_doctors(row: JobRow) -> bool:
    """Whether it is a survey of `devkit doctor`, which nobody means who asks about jobs."""
    return row.metadata.get(COMMAND) == DOCTOR or DOCTORS_VARIABLE in row.entrypoint


def page(rows: list[JobRow], now: float, *, width: int | None) -> Text:
    """One line for each: columns as wide as what is in them; the command takes what is left. A pipe cuts nothing."""
    from rich.text import Text

    heads = ("JOB", "STATUS", "SINCE", "COMMAND")
    cells = [
        (row.submission_id or row.job_id, row.ending, ago(now - row.start_time / 1000), _in_one_line(row))
        for row in rows
    ]
    widths = [max(len(line[column]) for line in (heads, *cells)) for column in range(3)]
    lines = []
    for job, status, since, command in (heads, *cells):
        line = "  ".join((job.ljust(widths[0]), status.ljust(widths[1]), since.ljust(widths[2]), command))
        lines.append(Text(clip(line, width)))
        lines[-1].stylize(NAME, 0, len(job))
        if status == "FAILED":
            lines[-1].stylize("red", widths[0] + 2, widths[0] + 2 + len(status))
    lines[0] = Text(lines[0].plain, style="bold")
    return Text("\n").join(lines)


def _in_one_line(row: JobRow) -> str:
    return " ".join(scrub(command_of(row)).split("\n"))
