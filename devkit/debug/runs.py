"""The `devkit run` commands of this machine that are running, so that the other verbs find their clusters.

A program may have made up its cluster's token itself, in its own process: then nothing else of this user knows it, and
it stands here, in a file that only this user can read, for as long as the command runs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from devkit.debug import processes, state
from devkit.debug.hub_file import HubPlace
from devkit.debug.tokens import Token
from devkit.reading import record_of


@dataclass(frozen=True)
class Run:
    """One `devkit run` and the cluster that its program is in."""

    pid: int
    start: str  # of `processes.started`: tells it from a later process of the same number
    gcs_address: str
    dashboard_url: str
    since: float  # seconds since the epoch
    hub: HubPlace  # where it listens: the way in to a Ray without a dashboard
    job_id: str = ""
    auth: str = "token"  # or "disabled"
    token: str = field(default="", repr=False)  # empty where Ray's own places have it
    logs: str = ""  # the folder of the session's logs on this machine


def remember(announced: Mapping[str, Any], dashboard_url: str) -> Run:
    """This process runs a program in the cluster that the program's driver has announced."""
    pid = os.getpid()
    run = Run(
        pid,
        processes.started(pid) or "",
        announced["gcs_address"],
        dashboard_url,
        time.time(),
        HubPlace(**announced["hub"]),
        announced["job_id"],
        announced["auth"],
        announced.get("token", ""),
        announced.get("logs", ""),
    )
    state.write(state.private_folder("runs") / f"run-{pid}.json", asdict(run))
    return run


def unannounced(joined: Mapping[str, Any]) -> Run:
    """One whose program ended before its hub listened; an empty mapping: before there was a Ray. Not remembered."""
    nowhere = HubPlace("", "", 0, "")
    job_id, logs = str(joined.get("job_id", "")), str(joined.get("logs", ""))
    return Run(os.getpid(), "", str(joined.get("gcs_address", "")), "", time.time(), nowhere, job_id, logs=logs)


def forget() -> None:
    for kind in ("run", "begun"):
        state.remove("runs", f"{kind}-{os.getpid()}.json")


@dataclass(frozen=True)
class Begun:
    """One `devkit run`, before its program has started or joined a Ray; it may never do so."""

    pid: int
    start: str
    command: tuple[str, ...]


def begin(command: Sequence[str]) -> None:
    """This process runs that command."""
    pid = os.getpid()
    begun = Begun(pid, processes.started(pid) or "", tuple(command))
    state.write(state.private_folder("runs") / f"begun-{pid}.json", asdict(begun))


def without_ray() -> tuple[Begun, ...]:
    """Those that live and whose programs have come to no Ray so far."""
    joined, found = {run.pid for run in running()}, []
    for name, document in state.documents("runs"):
        if name.startswith("begun-"):
            with suppress(ValueError):
                begun = record_of(Begun, document)
                if processes.started(begun.pid) != begun.start:
                    state.remove("runs", name)
                elif begun.pid not in joined:
                    found.append(begun)
    return tuple(found)


def running() -> tuple[Run, ...]:
    """Those that live, the newest first."""
    found = []
    for name, document in state.documents("runs"):
        if not name.startswith("run-"):
            continue
        try:
            run = record_of(Run, document)
        except ValueError:
            continue  # another version's, or damaged
        if processes.started(run.pid) == run.start:
            found.append(run)
        else:
            state.remove("runs", name)
    return tuple(sorted(found, key=lambda run: run.since, reverse=True))


def token_of(address: str) -> Token | None:
    """The token that a program made up for its cluster, which `address` names: a GCS, or a dashboard's URL."""
    for run in running():
        if run.token and address in (run.gcs_address, run.dashboard_url):
            return Token(run.token, "devkit run")
    return None
