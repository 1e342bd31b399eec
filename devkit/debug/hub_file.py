"""Where the hub of a cluster listens, as the dashboard tells it."""

from __future__ import annotations

import json
from dataclasses import dataclass

from devkit.debug.dashboard import Dashboard
from devkit.debug.inworker import PROTOCOL
from devkit.debug.inworker.hub_place import HUB_FILE, LOG_FOLDER
from devkit.errors import DevkitError, UnreachableError

START_HINT = "start one with `devkit run -- python job.py` or `devkit submit -- python job.py`"


class NoHead(UnreachableError):
    """The dashboard knows of no head node that lives: it may be starting."""


@dataclass(frozen=True)
class HubPlace:
    """One start of the hub."""

    hub_id: str
    host: str
    port: int
    node_id: str


def find(dashboard: Dashboard) -> HubPlace:
    """Raises `DevkitError` when no job of this cluster was started under devkit."""
    heads = dashboard.nodes(("is_head_node", "=", "True"), ("state", "=", "ALIVE"))
    if not heads:
        raise NoHead("the cluster's head node is not alive", hint="devkit debug-cluster starts a cluster")
    head = heads[0].node_id
    if f"{LOG_FOLDER}/{HUB_FILE}" not in _names(dashboard, head):
        raise DevkitError("no job of this cluster runs under devkit", hint=START_HINT)
    document = json.loads(dashboard.log_file(head, f"{LOG_FOLDER}/{HUB_FILE}"))
    if document["protocol"] != PROTOCOL:
        raise DevkitError(
            f"the hub speaks version {document['protocol']} of devkit's protocol, this devkit {PROTOCOL}",
            hint="use the devkit that started the job, or restart the cluster",
        )
    return HubPlace(document["hub_id"], document["host"], document["port"], document["node_id"])


def _names(dashboard: Dashboard, node_id: str) -> set[str]:
    found = dashboard.list_logs(node_id, f"{LOG_FOLDER}/{HUB_FILE}")
    return {name for names in found.values() for name in names}
