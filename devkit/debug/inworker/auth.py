"""The cluster's token, as Ray finds it. It stays in this process: never in a runtime_env, a log or a snapshot."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

TOKEN_MODE = "token"
KNOWN = "DEVKIT_KNOWN_TOKEN"  # in the driver's environment: the digest of the token that `devkit run` would use itself


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
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    return _read(Path(named)) if named else users_token()


def is_made_up(token: str) -> bool:
    """Whether the program has made up the token: neither `devkit run` has it, nor is it in Ray's file of this user."""
    return token != users_token() and digest(token) != os.environ.get(KNOWN, "")


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest() if token else ""


def users_token() -> str:
    """What Ray's file of this user holds."""
    return _read(Path.home() / ".ray" / "auth_token")


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
