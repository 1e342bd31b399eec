"""A call that failed and that Ray runs again from its beginning: what it had done outside by then stays done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import hub_after
from .calls_made import at_least
from .words import say

if TYPE_CHECKING:
    from .hub import Hub

LOOKS = (0.7, 1.0, 2.0, 4.0)  # seconds before each: whoever has made the call reports each second what becomes of it
MOST_ASKED = 20  # crashes at once
MOST = 4  # kinds of calls that are named

Document = dict[str, Any]


def is_wanted(document: Document) -> bool:
    """Whether a crash is of a call, which Ray may run again."""
    return document["kind"] in ("task", "actor", "exit") and bool(str(document.get("task_id") or "").strip("f"))


async def look(hub: Hub, document: Document) -> None:
    """Asks Ray's table until there is a later try. Nothing is said of one that is not known."""
    try:
        for seconds in LOOKS:
            await hub_after.pause(hub, seconds)
            if await _is_again(hub, document):
                hub.add_to_crash(
                    document, again=sentence(document.get("outside") or {}, begun=bool(document.get("frames")))
                )
                return
    finally:
        hub.tried.discard(document["id"])


async def _is_again(hub: Hub, document: Document) -> bool:
    try:
        return await hub.surroundings.is_tried_again(str(document["task_id"]), int(document.get("attempt") or 0))
    except Exception as error:  # noqa: BLE001 - a GCS that is busy: it is asked again
        say(f"whether crash {document['id']} was of a call that is tried again is not known yet: {error!r}")
        return False


def sentence(calls: dict[str, int], *, begun: bool = True) -> str:
    """
    Args:
        calls: those that the failed try is known to have made, by name.
        begun: whether it had certainly begun: of a process that was killed, Ray may have kept it waiting.

    >>> sentence({})[:82]
    'Ray tries this call again from its beginning: what this try had done outside of it'
    >>> sentence({"Buffer.add": 3, "Sandbox.execute": 1})[83:]
    'stays done, and may be done twice, such as its calls Buffer.add (3 times), Sandbox.execute'
    """
    least = at_least(sum(calls.values()))
    named = [f"{name} ({least}{times} times)" if times > 1 else name for name, times in list(calls.items())[:MOST]]
    more = ", ..." if len(calls) > MOST else ""
    such = f", such as its calls {', '.join(named)}{more}" if named else ""
    tried = "this try" if begun or calls else "this try, if it had begun,"
    done = f"what {tried} had done outside of it stays done, and may be done twice"
    return f"Ray tries this call again from its beginning: {done}{such}"


__all__ = ["is_wanted", "look", "sentence"]
