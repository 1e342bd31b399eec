"""The `devkit run` commands of this machine that are running, so that the other verbs find their clusters."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from devkit.debug import processes, state


@dataclass(frozen=True)
class Run:
    """One `devkit run` and the cluster that its program is in."""

    pid: int
    start: str  # of `processes.started`: tells it from a later process of the same number
    gcs_address: str
    dashboard_url: str
    since: float  # seconds since the epoch
    job_id: str = ""
    auth: str = "token"  # or "disabled"
    hub: dict[str, Any] = field(default_factory=dict)  # where it listens: the way in to a Ray without a dashboard


def remember(announced: Mapping[str, Any], dashboard_url: str) -> Run:
    """This process runs a program in the cluster that the program's driver has announced."""
    pid = os.getpid()
    run = Run(
        pid,
        processes.started(pid) or "",
        announced["gcs_address"],
        dashboard_url,
        time.time(),
        announced["job_id"],
        announced["auth"],
        announced["hub"],
    )
    path = state.private_folder("runs") / f"run-{pid}.json"
    new = path.with_suffix(".new")
    new.write_text(json.dumps(asdict(run)))
    new.replace(path)
    return run


def forget() -> None:
    (state.home() / "runs" / f"run-{os.getpid()}.json").unlink(missing_ok=True)


def running() -> tuple[Run, ...]:
    """Those that live, the newest first."""
    found = []
    for path in (state.home() / "runs").glob("run-*.json"):
        try:
            run = Run(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            continue  # half written, or another version's
        if processes.started(run.pid) == run.start:
            found.append(run)
        else:
            path.unlink(missing_ok=True)
    return tuple(sorted(found, key=lambda run: run.since, reverse=True))
