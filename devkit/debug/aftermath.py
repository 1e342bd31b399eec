"""What is to be said when the command of `devkit run` has ended: why it found no Ray, and what it never stopped at."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from devkit import console
from devkit.debug import caught_view
from devkit.debug.client import HubClient
from devkit.debug.inworker.records import Breakpoint
from devkit.errors import DevkitError, UnreachableError, UsageError

ASK_SECONDS = 3.0
SWALLOWED = 3  # lines
NO_RAY_HINT = "devkit run debugs programs that call ray.init, and their workers; other programs run as they are"
NOT_WATCHED = "devkit: the program has not called ray.init yet: --hang-timeout watches it from there on"
NAMES_A_CLUSTER = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")


def why_no_ray(address: str | None) -> UnreachableError | None:
    """What keeps this user from the cluster that was named: its address, or the token. None if nothing does."""
    from devkit.debug.address import resolve

    if not address and not any(os.environ.get(name) for name in NAMES_A_CLUSTER):
        return None
    try:
        with resolve(address).dashboard(timeout=ASK_SECONDS) as dashboard:
            dashboard.nodes()
    except UnreachableError as error:
        return error
    except DevkitError:
        pass  # it answers: the command failed for another reason
    return None


def tell_no_ray(code: int, asked: Sequence[str]) -> None:
    """Of a command that has come to no `ray.init`. Raises UsageError where it ended well, and `asked` for something.

    One that failed has said why; that nothing was done of what it `asked` for is news all the same.
    """
    if code == 0 and asked:
        raise UsageError(f"the command started no Ray, so {' and '.join(asked)} did nothing", hint=NO_RAY_HINT)
    if code == 0 or asked:
        what = f"so {' and '.join(asked)} did nothing" if asked else "so there was nothing to debug"
        console.talk().print(f"devkit: the command started no Ray, {what}", soft_wrap=True)


def tell_missed(specs: Sequence[str]) -> None:
    for spec in specs:
        console.talk().print(f"devkit: never hit: {spec}", soft_wrap=True, markup=False)


NONE_CAUGHT = "nothing that was counted; what a process catches in its last two seconds may be missing"


def tell_caught(workers: Sequence[Mapping[str, Any]]) -> None:
    """What the program has caught itself, as far as its processes have told of it before they ended; and what tasks and
    Futures of it have kept.
    """
    parted = list(caught_view.parted(caught_view.rows(workers)))
    told = [f"{head}: at least {line}" for head, rows in parted for line in caught_view.lines(rows, None)]
    for line in told or [f"{caught_view.CAUGHT}: {NONE_CAUGHT}"]:
        console.talk().print(f"devkit: {line}", soft_wrap=True, markup=False, highlight=False)


def tell_swallowed(workers: Sequence[Mapping[str, Any]]) -> None:
    """Of a run that has left no crash: what it caught many times by a handler of whatever comes, or that tasks kept."""
    from devkit.logs.beside import swallowed_lines

    rows = caught_view.swallowed(workers)
    if rows:
        lines = swallowed_lines(rows, SWALLOWED, "devkit logs --first-error lists them")
        for line in (caught_view.swallowed_heading(rows), *(f"  {each}" for each in lines)):
            console.talk().print(f"devkit: {line}", soft_wrap=True, markup=False, highlight=False)


def caught_by(connect: Callable[[], HubClient], job_id: str) -> list[Mapping[str, Any]]:
    """The processes of a job that has ended that have caught something, where its hub lives on."""
    with suppress(DevkitError), connect() as hub:
        return list(hub.call("caught", job_id=job_id, timeout=ASK_SECONDS)["workers"])
    return []


def tell_end(connect: Callable[[], HubClient], job_id: str, code: int, pid: int) -> bool:
    """To the hub, which nobody else tells how a driver has ended. It may have gone with it, or be an older one.

    `pid` is the command's own. Returns whether the hub has crashes of that job.
    """
    with suppress(DevkitError), connect() as hub:
        hub.call("ended", job_id=job_id, code=code, pid=pid, timeout=ASK_SECONDS)
        return code != 0 and has_crashes(hub, job_id)
    return False


def has_crashes(hub: HubClient, job_id: str) -> bool:
    found = hub.call("crashes", timeout=ASK_SECONDS)["crashes"]
    return any(each["job_id"] == job_id for each in found)


def tell_armed_before(connect: Callable[[], HubClient], own: Sequence[Breakpoint], job_id: str) -> None:
    """At a run's beginning: breakpoints of earlier runs, or of `devkit break`, that stop it, too."""
    with suppress(DevkitError), connect() as hub:
        for line in armed_before(hub.call("ps", timeout=ASK_SECONDS)["breakpoints"], {each.id for each in own}, job_id):
            console.talk().print(line, soft_wrap=True, markup=False, highlight=False)


def armed_before(states: Sequence[Mapping[str, Any]], own: Collection[str], job_id: str) -> list[str]:
    """A line for each breakpoint that is not this run's `own` and not for another job alone."""
    return [
        f"devkit: set before this run, and armed in it: {each['spec']} (devkit break --clear {each['id']} removes it)"
        for each in states
        if each["id"] not in own and each.get("job_id") in ("", None, job_id)
    ]


class Witness:
    """Sees what becomes of a job's breakpoints, and what it catches, while it runs: the hub may go with the job."""

    def __init__(self, points: Sequence[Breakpoint], connect: Callable[[], HubClient], *, counts: bool = False) -> None:
        """`connect` makes a client of the hub; `counts`: somebody wants to know at the end what was caught."""
        self._points = points
        self._caught: dict[str, Mapping[str, Any]] = {}  # by worker
        self._connect = connect
        self._seen: dict[str, Mapping[str, Any]] = {}
        if points or counts:
            threading.Thread(target=self._watch, name="devkit-witness", daemon=True).start()

    def caught(self, job_id: str) -> list[Mapping[str, Any]]:
        """The job's processes that have caught something, as `ps` had them last."""
        return [each for each in self._caught.values() if each["job_id"] == job_id]

    def never_hit(self) -> list[str]:
        """Once the job has ended: removes its breakpoints, and tells which nothing came to, as they were written."""
        if not self._points:
            return []
        points = [point for point in self._points if not point.log]
        seen: Mapping[str, Mapping[str, Any]] | None = None
        with suppress(DevkitError), self._connect() as hub:
            self._look(hub.call("ps", timeout=ASK_SECONDS))
            seen = self._seen  # the watch will see them go
            for point in self._points:
                if point.id in seen:  # else somebody has cleared it
                    hub.call("clear", id=point.id, timeout=ASK_SECONDS)
            points = list(self._points)  # of what only logs, no stop told the hub in time: its last word must be had
        seen = self._seen if seen is None else seen
        return [point.spec for point in points if point.id in seen and not seen[point.id]["hits"]]

    def _watch(self) -> None:
        with suppress(DevkitError), self._connect() as hub:
            for document in hub.watch():
                self._look(document)

    def _look(self, document: Mapping[str, Any]) -> None:
        self._seen = {each["id"]: each for each in document["breakpoints"]}
        self._caught |= {str(each["worker_id"]): each for each in document.get("workers", ()) if each.get("caught")}
