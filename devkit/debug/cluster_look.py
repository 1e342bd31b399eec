"""What a head that comes up says of its nodes: through its dashboard, or through its GCS where it has none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from devkit.debug import gcs
from devkit.debug.cluster_launch import DashboardFailed, why_no_dashboard
from devkit.debug.dashboard import Dashboard
from devkit.debug.gcs import GcsAddress
from devkit.debug.rows import NodeRow
from devkit.debug.tokens import Token
from devkit.errors import DevkitError, UnreachableError

WITHOUT = "--no-dashboard starts without one; ps, attach, break, eval, stacks, hang and crashes still work"
AGAIN = "run the command again: other ports will be chosen"


def hint_of(why: str) -> str:
    """What to do about a dashboard that has failed; its port may have been taken after it was found free.

    >>> hint_of("OSError: [Errno 98] error while attempting to bind on address: address already in use") == AGAIN
    True
    >>> hint_of("ModuleNotFoundError: No module named 'aiohttp'") == WITHOUT
    True
    """
    return AGAIN if "address already in use" in why.lower() else WITHOUT


@dataclass(frozen=True)
class Head:
    """A way to ask a head; `say` gives its session and its nodes. Raises UnreachableError until it answers."""

    say: Callable[[], tuple[str, tuple[NodeRow, ...]]]
    close: Callable[[], None]

    def nodes(self, pid: int, where: str) -> tuple[NodeRow, ...]:
        """The nodes of the head that this process leads, and not of a Ray that took its port at the same moment."""
        session, nodes = self.say()
        if not session.endswith(f"_{pid}"):
            raise DevkitError(f"another Ray ({session}) is using {where}", hint=AGAIN)
        return nodes


def through_dashboard(url: str, token: Token | None, folder: Path, leader: Callable[[], int]) -> Head:
    """`folder` is Ray's, and `leader` gives the head's pid: they tell a dashboard that has failed from one to come."""
    dashboard = Dashboard(url, token, timeout=5.0)

    def say() -> tuple[str, tuple[NodeRow, ...]]:
        try:
            return dashboard.version().session_name, dashboard.nodes()
        except UnreachableError as error:
            if why := why_no_dashboard(folder, leader()):
                raise DashboardFailed(f"Ray's dashboard has failed: {why}", hint=hint_of(why)) from error
            raise

    return Head(say, dashboard.close)


def through_gcs(address: GcsAddress, token: Token | None) -> Head:
    watch = gcs.Watch(address, token)

    def say() -> tuple[str, tuple[NodeRow, ...]]:
        facts = watch.facts(5.0)
        return facts.session, facts.nodes

    return Head(say, watch.close)
