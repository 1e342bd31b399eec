"""Where a rank finds a model: in a folder of its node, or on the hub."""

from __future__ import annotations

import os
import socket

from trainer.errors import ModelError


def local_path(path: str) -> str:
    """A folder with `~` expanded; a hub id as it stands.

    Raises ModelError for what can only be a folder, and is none here: the hub would be asked for it in vain.
    """
    expanded = os.path.expanduser(path)
    if os.path.isdir(expanded):
        return expanded
    if os.path.isabs(expanded):
        raise ModelError(
            f"there is no folder {expanded} on {socket.gethostname()}",
            hint="put the model where every node sees it under this path, or give a hub id such as org/name",
        )
    return path
