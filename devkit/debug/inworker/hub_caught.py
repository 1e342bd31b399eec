"""What a job has caught itself, kept for who asks when its Ray is gone, and this hub with it."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import TYPE_CHECKING

from . import private, table
from .hub_place import CAUGHT_FILE
from .table import Document
from .told import caught_problem

if TYPE_CHECKING:
    from .hub import Hub

ASK_SECONDS = 2.0  # what a process that does not answer has told before is what is known


async def ask(hub: Hub, job_id: str, driver: str, last: Document) -> None:
    """Asks those that have caught something once more; at once, as some of them end with what the driver lets go of.

    The driver has told in its `last` message.
    """
    mine = [name for name, each in hub.table.workers.items() if each.identity["job_id"] == job_id]
    asked = [name for name in mine if name in hub.agents and name != driver and hub.table.workers[name].caught]
    replies = await asyncio.gather(*(hub.ask(name, "caught", ASK_SECONDS) for name in asked))
    for name, reply in [*zip(asked, replies, strict=True), (driver, last)]:
        if "error" not in reply and not caught_problem(reply):
            hub.update(table.counted(hub.table, name, reply["caught"]))


def keep(hub: Hub, job_id: str, last: Document) -> None:
    """Writes what is known by now to a file."""
    document = {"counted": last.get("counted") is True, "workers": table.caught(hub.table, job_id)}
    with suppress(OSError):  # as of crashes, nothing is kept then, and that was told
        private.write(hub.crash_folder.parent / CAUGHT_FILE.format(job_id), json.dumps(document), 1)


__all__ = ["ask", "keep"]
