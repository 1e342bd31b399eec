"""The folder that devkit makes for the sessions of a Ray that has no room in the usual one, for this user alone."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from pathlib import Path

from devkit.errors import DevkitError

PREFIX = "ray-dk"
INNER = "r"  # Ray's own --temp-dir in it, which Ray opens to everybody; short, as are all names above a socket


def name_beside(usual: Path) -> Path:
    """One that is not there yet."""
    return usual.with_name(f"{PREFIX}{secrets.token_hex(3)}")


def make(folder: str) -> None:
    """Makes it, if one is wanted. Raises DevkitError where that can't be."""
    try:
        if folder:
            os.mkdir(folder, 0o700)
    except OSError as error:
        raise DevkitError(
            f"cannot create {folder}: {error.strerror}", hint="choose another folder with --temp-dir"
        ) from None


def remove(folder: str) -> bool:
    """Removes it with Ray's logs; whether it was there, was ours, and is gone."""
    try:
        found = os.lstat(folder)
    except OSError:
        return False
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and Path(folder).name.startswith(PREFIX)
    if ours:
        shutil.rmtree(folder, ignore_errors=True)
    return not os.path.lexists(folder)
