"""This Python by a path that a shell takes for one word.

Ray gives the path to `bash -c` without quotes where it starts the server of Ray Client
(`ray._private.runtime_env.context`), and a head does not outlive that server.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
from contextlib import suppress
from pathlib import Path

from devkit.debug.inworker import private


def plain_python(executable: str = sys.executable) -> str:
    """The path itself, or one through a link to its environment; the path itself where no link can be made."""
    if _is_plain(executable):
        return executable
    path = Path(executable)
    environment = path.parent.parent  # which has `pyvenv.cfg`: Python looks for that beside the path that it is given
    name = hashlib.sha256(str(environment).encode()).hexdigest()[:12]
    folder = Path(private.temporary(), f"devkit-{os.geteuid()}", "python")
    try:
        private.folder(folder, own=2)
        with suppress(FileExistsError):
            (folder / name).symlink_to(environment)
    except OSError:
        return executable
    found = str(folder / name / path.relative_to(environment))
    return found if _is_plain(found) else executable


def _is_plain(path: str) -> bool:
    return shlex.quote(path) == path


__all__ = ["plain_python"]
