"""Where the hub of a cluster listens, as the dashboard or the GCS tells it."""

from __future__ import annotations

import json
from dataclasses import dataclass

from devkit.debug.dashboard import Dashboard
from devkit.debug.inworker import PROTOCOL
from devkit.debug.inworker.hub_place import HUB_FILE, LOG_FOLDER, is_signed
from devkit.errors import DevkitError, NoJobError, UnreachableError

START_HINT = "start one with devkit run -- python job.py, or devkit submit -- python job.py"


class NoHead(UnreachableError):
    """The dashboard knows of no head node that lives: it may be starting."""


@dataclass(frozen=True)
class HubPlace:
    """One start of the hub."""

    hub_id: str
    host: str
    port: int
    node_id: str


def find(dashboard: Dashboard, token: str) -> HubPlace:
    """Raises `DevkitError` when no job of this cluster was started under devkit, or the hub's file is not the hub's.

    `token` is the cluster's, empty for one without.
    """
    heads = dashboard.nodes(("is_head_node", "=", "True"), ("state", "=", "ALIVE"))
    if not heads:
        raise NoHead("the cluster's head node is not alive", hint="devkit debug-cluster starts a cluster")
    head = heads[0].node_id
    if f"{LOG_FOLDER}/{HUB_FILE}" not in _names(dashboard, head):
        raise no_hub()
    text = dashboard.log_file(head, f"{LOG_FOLDER}/{HUB_FILE}")
    place = parse(text)
    if not is_signed(json.loads(text), token):
        raise _foreign()
    return place


def no_hub() -> NoJobError:
    return NoJobError("no job of this cluster runs under devkit", hint=START_HINT)


def parse(text: str | bytes) -> HubPlace:
    """What the hub has published of itself. Raises `DevkitError` where it speaks another version of the protocol."""
    try:
        document = json.loads(text)
        protocol = document["protocol"]
        place = HubPlace(document["hub_id"], document["host"], document["port"], document["node_id"])
    except (ValueError, RecursionError, TypeError, KeyError):
        raise _foreign() from None
    if protocol != PROTOCOL:
        raise DevkitError(
            f"the hub uses version {protocol} of devkit's protocol, this devkit {PROTOCOL}",
            hint="use the devkit that started the job, or restart the cluster",
        )
    return place


def _foreign() -> UnreachableError:
    return UnreachableError(
        f"{LOG_FOLDER}/{HUB_FILE} among the head's logs, which says where the hub is, was not written with this token",
        hint="is RAY_AUTH_TOKEN this cluster's? Else see whose that file is, and which devkit the job was started with",
    )


def _names(dashboard: Dashboard, node_id: str) -> set[str]:
    found = dashboard.list_logs(node_id, f"{LOG_FOLDER}/{HUB_FILE}")
    return {name for names in found.values() for name in names}
