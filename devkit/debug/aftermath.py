"""What is to be said when the command of `devkit run` has ended: why it found no Ray, and what it never stopped at."""

from __future__ import annotations

import os
from collections.abc import Sequence

from devkit.debug import runs
from devkit.debug.inworker.records import Breakpoint
from devkit.errors import DevkitError, UnreachableError

ASK_SECONDS = 3.0
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


def clear(run: runs.Run, points: Sequence[Breakpoint]) -> list[str]:
    """Removes the breakpoints of a run that has ended, and tells which of them nothing came to, as they were written.

    If the hub has gone with the run, there is nothing to remove, and nothing is known.
    """
    from devkit.debug.client import connect

    if not points or not run.dashboard_url:
        return []
    try:
        with connect(run.dashboard_url, deadline=ASK_SECONDS) as hub:
            found = {each["id"]: each for each in hub.call("ps", timeout=ASK_SECONDS)["breakpoints"]}
            for point in points:
                if point.id in found:  # else somebody has cleared it
                    hub.call("clear", id=point.id, timeout=ASK_SECONDS)
    except DevkitError:
        return []
    return [point.spec for point in points if point.id in found and not found[point.id]["hits"]]
