"""An actor that died and that Ray has started anew: what calls had set in it is gone, and later calls go on without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import hub_after
from .lineage import NO_ACTOR, TASK_OWN
from .words import say

if TYPE_CHECKING:
    from .hub import Hub

LOOKS = (0.5, 0.5, 1.0, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0)  # seconds between them: a process starts in some
MOST = 4  # methods that are named
MOST_AT_ONCE = (
    20  # ends that are looked into: of a node that is lost there may be hundreds, and each look reads a table
)
_MARK = " anew"

Document = dict[str, Any]


def is_wanted(document: Document) -> bool:
    """Whether a crash is the end of a worker that may have had an actor."""
    return document["kind"] == "exit" and bool(_actor_of(document)) and "-" not in str(document["worker_id"])


def _actor_of(document: Document) -> str:
    """Its id, by that of its task; else its name, or the beginning of its id."""
    own = str(document.get("task_id") or "")[TASK_OWN:]
    return own if own and not own.startswith(NO_ACTOR) else str(document.get("actor") or "")


def mark(document: Document) -> str:
    """What stands for the look among those that the end of a driver waits for."""
    return f"{document['id']}{_MARK}"


def has_room(hub: Hub) -> bool:
    """Whether one more may be looked into now."""
    return sum(each.endswith(_MARK) for each in hub.explaining) < MOST_AT_ONCE


async def look(hub: Hub, document: Document) -> None:
    """Asks Ray's table until the actor lives again, or will not."""
    try:
        for seconds in LOOKS:
            found = await _found(hub, document)
            if found is None or not found["restarts"]:
                return
            if found["worker_id"] not in ("", document["worker_id"]) and found["state"] == "ALIVE":
                _tell(hub, document, found)
                return
            await hub_after.pause(hub, seconds)
        if found is not None and found["state"] == "RESTARTING":
            _tell(hub, document, found)
    finally:
        hub.explaining.discard(mark(document))


async def _found(hub: Hub, document: Document) -> Document | None:
    try:
        return await hub.surroundings.instance(_actor_of(document), document["job_id"])
    except Exception as error:  # noqa: BLE001 - a GCS that is busy: it is asked again
        say(f"whether actor {_actor_of(document)} was started anew is not known yet: {error!r}")
        return {"restarts": True, "state": "", "worker_id": "", "pid": 0}


def _tell(hub: Hub, document: Document, found: Document) -> None:
    methods = (hub.doing.get(document["worker_id"]) or {}).get("methods") or []
    last = str(document.get("called") or "") or _outermost(document, methods)
    hub.add_to_crash(document, anew=sentence(found, [each for each in methods if each != last]))


def _outermost(document: Document, methods: Sequence[str]) -> str:
    """The method in which it ended, by its frames."""
    names = [str(each["function"]).rpartition(".")[2] for each in document.get("frames") or ()]
    return next((each for each in reversed(names) if each in methods), "")


def sentence(found: Document, methods: Sequence[str]) -> str:
    """
    Args:
        found: {"state", "pid"} of the actor now.
        methods: those that were called in the one that died, but for the one that it died in.

    >>> sentence({"state": "ALIVE", "pid": 1277}, ["setup", "load"])[:63]
    'Ray has started this actor anew, pid 1277, by its constructor: '
    >>> sentence({"state": "ALIVE", "pid": 1277}, ["setup", "load"])[63:]
    'whatever calls such as setup, load had set in it before is gone, for later calls and those that are tried again'
    >>> sentence({"state": "RESTARTING", "pid": 0}, [])
    'Ray starts this actor anew, by its constructor: whatever calls had set in it before is gone, for later calls and \
those that are tried again'
    """
    names = f" such as {', '.join(methods[:MOST])}" if methods else ""
    begun = (
        f"has started this actor anew, pid {found['pid']}" if found["state"] == "ALIVE" else "starts this actor anew"
    )
    gone = f"whatever calls{names} had set in it before is gone, for later calls and those that are tried again"
    return f"Ray {begun}, by its constructor: {gone}"


__all__ = ["has_room", "is_wanted", "look", "mark", "sentence"]
