"""The cluster's token, as Ray finds it. It stays in this process: never in a runtime_env, a log or a snapshot."""

from __future__ import annotations

import os
import sys
from pathlib import Path

TOKEN_MODE = "token"


def cluster_token() -> str:
    """The token, or an empty text on a cluster without authentication."""
    raylet = sys.modules.get("ray._raylet")
    if raylet is None or not hasattr(raylet, "AuthenticationTokenLoader"):
        return _from_environment()
    if raylet.get_authentication_mode() != raylet.AuthenticationMode.TOKEN:
        return ""
    return str(raylet.AuthenticationTokenLoader.instance().get_raw_token() or "")


def _from_environment() -> str:
    """For a process of a worker that has not loaded Ray; it inherits the worker's environment."""
    if os.environ.get("RAY_AUTH_MODE", "").lower() != TOKEN_MODE:
        return ""
    given = os.environ.get("RAY_AUTH_TOKEN")
    if given:
        return given
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    try:
        return path.read_text().strip()
    except OSError:
        return ""
