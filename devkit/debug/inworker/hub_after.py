"""What the hub does when something has ended: a worker that died, a job."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from . import table
from .identity import DRIVER
from .lineage import is_of
from .records import Identity
from .words import say

if TYPE_CHECKING:
    from .hub import Hub

# Between the looks for a death behind an error. The agent's own connection tells more, so it comes first; and Ray's
# tables are filled by the processes' own reports, which are late on a busy machine.
BEHIND_SECONDS = (3.0, 2.0, 5.0, 10.0, 20.0)
MOST_BEHIND = 20  # tasks that are asked for
TOLD_SECONDS = 3.0  # for `devkit run` to tell how its command has ended
RETIRE_SECONDS = 20.0  # until the breakpoints of a job that has ended go

Document = dict[str, Any]


async def keep_death(hub: Hub, identity: Document, fate: Document, seen: Document | None = None) -> None:
    """A worker that died leaves what can be known: Ray's reason, its task, its last words, or the last look at it.

    Once: it is missed at its connection and found behind an error, and both may wait for its last words.
    """
    from .vanished import vanished

    words = await hub.last_words(identity)
    worker_id = identity["worker_id"]
    if any(crash["worker_id"] == worker_id and crash["kind"] == "exit" for crash in hub.table.crashes):
        return
    who = Identity.from_json(identity)
    hub.keep_crash(vanished(who, words, fate["reason"], task=fate.get("task"), died=fate.get("time"), seen=seen))


async def has_ended_well(hub: Hub, identity: Document) -> bool:
    """Whether who started a driver tells that it has done its work, or was asked to end.

    Ray misses its goodbye where a signal comes while it leaves, and then takes it for killed.
    """
    until = time.monotonic() + TOLD_SECONDS
    while identity["role"] == DRIVER and time.monotonic() < until:
        if end := hub.table.ends.get(identity["job_id"]):
            return end.as_asked(identity["pid"])
        await asyncio.sleep(0.05)
    return False


async def look_behind(hub: Hub, document: Document) -> None:
    """A worker that died before its agent could join is known to Ray, and to who waited for it.

    A task that was tried again has one for each try: the last look is the one that finds nothing more.
    """
    waited = list(document["waited"])[:MOST_BEHIND]
    for seconds in BEHIND_SECONDS:
        await asyncio.sleep(seconds)
        known = {crash["worker_id"] for crash in hub.table.crashes}
        try:
            fates = await hub.surroundings.deaths(waited, document["job_id"])
        except Exception as error:  # noqa: BLE001 - Ray has many; a GCS that is busy is asked again
            say(f"the deaths behind crash {document['id']} are not known yet: {error!r}")
            continue
        fresh = [fate for fate in fates if fate["identity"]["worker_id"] not in known]
        for fate in fresh:
            await keep_death(hub, fate["identity"], fate)
        deaths = [crash for crash in hub.table.crashes if crash["kind"] == "exit"]
        if not fresh and any(is_of(task, death["task_id"]) for death in deaths for task in waited):
            return


async def retire(hub: Hub, job_id: str) -> None:
    """A little after the end of a job its breakpoints go: who started it asks first what they have hit."""
    mine = {name for name, each in hub.table.breakpoints.items() if job_id and each.get("job_id") == job_id}
    if mine and await hub.surroundings.is_over(job_id):
        await asyncio.sleep(RETIRE_SECONDS)
        for name in mine & hub.table.breakpoints.keys():
            hub.update(table.cleared(hub.table, name))
        await hub.surroundings.keep(list(hub.table.breakpoints.values()))
