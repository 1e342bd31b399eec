"""A program of its own: for each line of its stdin, asks a GCS what it knows and prints it as one JSON document.

Ray's client of the GCS knows no deadline before it is connected (it tries for half a minute, and longer against a
port that isn't a GCS), so it works in a process that can be ended.
"""

import json
import sys
from typing import Any


def main(address: str) -> None:
    from ray._raylet import GcsClient  # type: ignore[attr-defined]  # compiled, and its types don't name it
    from ray.exceptions import AuthenticationError

    client = None
    for line in sys.stdin:
        try:
            client = client or GcsClient(address=address)
            document = ask(client, json.loads(line)["seconds"])
        except AuthenticationError:
            document = {"refused": True}
        sys.stdout.write("\n" + json.dumps(document) + "\n")
        sys.stdout.flush()


def ask(client: Any, seconds: float) -> dict[str, object]:
    """Each of the answers has so many seconds; all of them together have those of who reads this program."""
    # The key "dashboard" has an address without a dashboard, too: of a process that only counts usage.
    dashboard = client.internal_kv_get(b"webui:url", b"dashboard", timeout=seconds)
    session = client.internal_kv_get(b"session_name", b"session", timeout=seconds)
    hub = client.internal_kv_get(b"hub", b"devkit", timeout=seconds)  # `inworker/hub_place.py`
    nodes = client.get_all_node_info(timeout=seconds)
    return {
        "dashboard": (dashboard or b"").decode(),
        "session": (session or b"").decode(),
        "hub": (hub or b"").decode(),
        "nodes": [
            {
                "node_id": node_id.hex(),
                "node_ip": node.node_manager_address,
                "state": "ALIVE" if node.state == 0 else "DEAD",
                "is_head_node": node.is_head_node,
                "labels": dict(node.labels),
                "resources_total": dict(node.resources_total),
            }
            for node_id, node in nodes.items()
        ],
    }


if __name__ == "__main__":
    main(sys.argv[1])
