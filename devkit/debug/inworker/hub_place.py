"""Where the hub publishes itself: in Ray's key-value store, and in a file that the dashboard serves."""

from __future__ import annotations

import hashlib
import hmac
import json
import sys
from pathlib import Path
from typing import Any

KV_NAMESPACE = b"devkit"
KV_HUB = b"hub"
OWN = "devkit-"  # what the names of devkit's own actors begin with
HUB_NAME = f"{OWN}hub"
OWN_CLASSES = ("DevkitHub", "DevkitOnlooker")  # as Ray calls them, in its tables and in their logs
LOG_FOLDER = "devkit"  # in the logs folder of the session
HUB_FILE = "hub.json"
CRASH_FOLDER = "crashes"
CAUGHT_FILE = "caught-{}.json"  # of a job, by its id: {"counted", "workers"}
DRIVER_NOTES = "driver-"  # what the name of a file with devkit's words on a driver begins with; then comes the job
KV_SECONDS = 5.0


def signed(place: dict[str, Any], token: str) -> dict[str, Any]:
    """With the proof that who knows the cluster's token has written it: the file lies where others may put one, too."""
    return {**place, "mac": _mac(place, token)}


def is_signed(place: dict[str, Any], token: str) -> bool:
    """
    >>> place = signed({"host": "10.0.0.5", "port": 7}, "the token")
    >>> is_signed(place, "the token"), is_signed({**place, "port": 8}, "the token"), is_signed(place, "another")
    (True, False, False)
    """
    rest = {name: value for name, value in place.items() if name != "mac"}
    return hmac.compare_digest(str(place.get("mac")).encode(errors="replace"), _mac(rest, token).encode())


def _mac(place: dict[str, Any], token: str) -> str:
    key = hmac.new(token.encode() or b"no token", b"devkit hub file", hashlib.sha256).digest()
    return hmac.new(key, json.dumps(place, sort_keys=True).encode(), hashlib.sha256).hexdigest()


def published() -> dict[str, Any] | None:
    """Where the hub listens and which breakpoints there are; None without a hub. Needs a connected Ray."""
    value = gcs().internal_kv_get(KV_HUB, KV_NAMESPACE, timeout=KV_SECONDS)
    return json.loads(value) if value else None


def is_own(identity: dict[str, Any]) -> bool:
    """Whether a worker is an actor of devkit's: its end is no crash of the program.

    >>> is_own({"actor": "devkit-hub-1"}), is_own({"actor": "trainer_1"})
    (True, False)
    """
    return str(identity.get("actor") or "").startswith(OWN)


def log_folder() -> Path:
    """devkit's folder among the session's logs on this node."""
    return Path(sys.modules["ray._private.worker"]._global_node.get_logs_dir_path()) / LOG_FOLDER


def error_log(identity: dict[str, Any]) -> Path:
    """Where Ray writes what a worker of this node prints on stderr."""
    name = f"worker-{identity['worker_id']}-{identity['job_id']}-{identity['pid']}.err"
    return log_folder().parent / name


def gcs() -> Any:
    """Ray's own connection to its GCS, token included."""
    return sys.modules["ray._private.worker"].global_worker.gcs_client
