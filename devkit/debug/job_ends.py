"""How drivers that nobody submitted have ended: Ray calls each of them a success, for it has no exit code of theirs.

`devkit run` tells the hub the code, and a driver that raised has left a crash there.
"""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from devkit import patience
from devkit.debug.crash_table import said
from devkit.debug.crashes import all_crashes
from devkit.debug.inworker.records import CrashRecord
from devkit.debug.kept import EndedRun
from devkit.debug.protocols import Hub
from devkit.debug.rows import JobRow
from devkit.errors import INTERRUPTED, DevkitError
from devkit.signals import how_ended

HUB_SECONDS = 3.0
_LEFT = re.compile(r"(?:os\._exit\()?(-?\d+)(?:$|\))")  # of a crash by `os._exit`; older devkits have the code alone


def corrected(rows: Sequence[JobRow], hub: Hub | None) -> list[JobRow]:
    """The jobs with what the hub knows of their ends; of others that Ray calls a success, nobody knows it."""
    doubtful = {row.job_id for row in rows if _is_doubtful(row)}
    known = {**_raised(hub), **_exits(hub)} if hub is not None and doubtful else {}
    return [_told(row, known) if row.job_id in doubtful else row for row in rows]


def _is_doubtful(row: JobRow) -> bool:
    return row.status == "SUCCEEDED" and not row.submission_id


def of_run(run: EndedRun) -> JobRow:
    """A run whose Ray is gone, as a job with the status that its driver gave it."""
    raised = next((each for each in run.crashes if each.kind == "driver"), None)
    end = _of_code(run.code) if run.code else _of_error(raised) if raised else _End("SUCCEEDED", "", 0)
    times = int(run.began * 1000), int(run.ended * 1000)
    return JobRow(
        run.job_id, "", "", end.status, shlex.join(run.command), end.message, "", *times, driver_exit_code=end.code
    )


def of_cluster(rows: Sequence[JobRow], url: str) -> list[JobRow]:
    """The same, of the hub of the cluster whose dashboard this is, where it has one."""
    from devkit.debug.client import connect

    if any(map(_is_doubtful, rows)):
        with suppress(DevkitError), connect(url, deadline=patience.seconds(HUB_SECONDS)) as hub:
            return corrected(rows, hub)
    return corrected(rows, None)


@dataclass(frozen=True)
class _End:
    status: str
    message: str
    code: int | None = None


def _told(row: JobRow, known: Mapping[str, _End]) -> JobRow:
    end = known.get(row.job_id)
    if end is None:
        return replace(row, is_untold=True)
    return replace(row, status=end.status, message=end.message, driver_exit_code=end.code)


def _exits(hub: Hub) -> dict[str, _End]:
    with suppress(DevkitError):  # a hub of an older devkit does not know
        ends: Mapping[str, int] = hub.call("ends")["ends"]
        return {job: _of_code(int(code)) if code else _End("SUCCEEDED", "", 0) for job, code in ends.items()}
    return {}


def _of_code(code: int) -> _End:
    """
    >>> _of_code(3), _of_code(-15).message
    (_End(status='FAILED', message='the driver ended with exit code 3', code=3), 'the driver was ended by SIGTERM')
    """
    if code in (INTERRUPTED, -signal.SIGINT):
        return _End("STOPPED", "the driver was interrupted", code)
    return _End("FAILED", f"the driver {how_ended(code)}", code)


def _raised(hub: Hub) -> dict[str, _End]:
    with suppress(DevkitError):
        crashes = [each for each in all_crashes(hub) if each.kind == "driver"]
        return {each.job_id: _of_error(each) for each in crashes}
    return {}


def _of_error(crash: CrashRecord) -> _End:
    """What a driver's crash says of its end; it has an exit code where it called `os._exit`."""
    left = _LEFT.match(crash.exception["message"]) if crash.exception["type"] == "SystemExit" else None
    if left is not None:
        return _of_code(int(left[1]))
    return _End("FAILED", f"the driver raised {said(crash)}")
