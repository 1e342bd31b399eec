"""The token of a Ray that a run starts for itself: where Ray keeps a user's token, so that other commands find it."""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path

MODE, TOKEN, TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"


def ask_for_token() -> None:
    """Makes the next Ray of this process one that asks for a token; call it before Ray is imported.

    A mode that the environment names is left as it is. A token that Ray would find is used, and a first one is made
    where Ray looks: Ray would make it itself, but readable by every user of the machine.
    """
    if os.environ.setdefault(MODE, "token").lower() != "token" or _found():
        return
    token = secrets.token_hex(32)
    try:
        _write(token_file(), token)
    except (OSError, RuntimeError):  # no home folder, or none to be written: then only this run's processes know it
        os.environ[TOKEN] = token


def show_token() -> None:
    """Lets this process show the user's token, if there is one, to the Ray that it joins; before Ray is imported.

    A mode that the environment names is left as it is.
    """
    if _found():
        os.environ.setdefault(MODE, "token")


def token_file() -> Path:
    """Where Ray keeps the token of this user."""
    return Path.home() / ".ray" / "auth_token"


def _found() -> bool:
    """Whether Ray finds a token here, by its own order. What RAY_AUTH_TOKEN_PATH names is Ray's to judge."""
    if os.environ.get(TOKEN, "").strip() or os.environ.get(TOKEN_PATH):
        return True
    try:
        return bool(token_file().read_text().strip())
    except (OSError, RuntimeError, UnicodeDecodeError):
        return False


def _write(path: Path, token: str) -> None:
    """For this user alone, and whole from the start. One that was made meanwhile stays; an empty one does not."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, new = tempfile.mkstemp(dir=path.parent)  # 0600
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(token)
        try:
            os.link(new, path)
        except FileExistsError:
            if not path.exists() or not path.read_text().strip():  # a link to nowhere, or nothing in it
                os.replace(new, path)
    finally:
        Path(new).unlink(missing_ok=True)
