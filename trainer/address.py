"""Which Ray cluster a run joins, found out without importing Ray: its libraries read their environment when loaded."""

from __future__ import annotations

import os
import socket
import stat
import sys
from pathlib import Path

from trainer.ray_token import ask_for_token, show_token

# A cluster's head answers within milliseconds, across a slow network within seconds.
CONNECT_S = 10.0


def running_cluster() -> str | None:
    """RAY_ADDRESS, else where the last `ray start` on this machine said its cluster is, if something listens there.

    The order and the place are those of `ray.init()`.
    """
    return os.environ.get("RAY_ADDRESS") or _last_started()


def prepare_own_cluster() -> None:
    """Sets what a cluster of the run's own needs; call it before Ray is imported."""
    ask_for_token()
    # Were this process killed, Ray's agents would look for their cluster's head for a minute before they end. Less than
    # this, and a machine that is busy for some seconds ends the run.
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "20")


def prepare_joining(address: str) -> None:
    """The same of a cluster that runs. One that RAY_ADDRESS names is shown no token unasked, as by `ray.init()`."""
    if address != os.environ.get("RAY_ADDRESS"):
        show_token()


def knock(address: str) -> None:
    """Raises OSError if nothing listens at HOST:PORT or ray://HOST:PORT: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()


def _last_started() -> str | None:
    on_linux = sys.platform.startswith("linux")
    folder = os.environ.get("RAY_TMPDIR") or (os.environ.get("TMPDIR") if on_linux else None) or "/tmp"
    try:
        address = _read(Path(folder) / "ray" / "ray_current_cluster")
        if address:
            knock(address)
    except (OSError, ValueError):  # none was started, or it is gone and left its address behind
        return None
    return address or None


def _read(path: Path) -> str:
    """What this user or root has written: anybody may write to Ray's folder, and the token goes to where this leads."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
        found = os.fstat(file.fileno())
        return file.read().strip() if stat.S_ISREG(found.st_mode) and found.st_uid in (os.geteuid(), 0) else ""
