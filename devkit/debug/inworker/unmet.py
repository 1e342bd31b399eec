"""What a process tells of itself while no hub hears it: in a file of its node's, for when it has been killed by then.

A hub needs seconds to start on a busy machine, and a program may be over by then.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from . import hub_place, private

FOLDER = "unmet"  # in devkit's folder among the session's logs
OWN = 2  # the folder and the one that it is in are devkit's

Document = dict[str, Any]


def keep(worker_id: str, identity: Document, seen: Document) -> None:
    """Raises OSError where it can't be written, KeyError without Ray."""
    private.write(_folder() / f"{worker_id}.json", json.dumps({"identity": identity, "seen": seen}, default=str), OWN)


def forget(worker_id: str) -> None:
    """A hub knows of it."""
    with suppress(OSError, KeyError, AttributeError):
        private.remove(_folder() / f"{worker_id}.json", OWN)


def found() -> list[Document]:
    """{"identity", "seen"} of each process of this node that has met no hub."""
    documents = []
    with suppress(OSError, KeyError, AttributeError):
        for name in private.names(_folder(), OWN):
            with suppress(OSError, ValueError):
                document = json.loads(private.read(_folder() / name, OWN))
                if isinstance(document, dict) and {"identity", "seen"} <= document.keys():
                    documents.append(document)
    return documents


def _folder() -> Path:
    return hub_place.log_folder() / FOLDER
