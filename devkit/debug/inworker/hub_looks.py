"""What every process of a job does, for `stacks` and `hang`: from inside, else as somebody beside it sees it.

On a machine with too little time for all, a process is late, and so is who looks at it. Its own answer counts whenever
it comes; at the end of the time that the client gives, what has come is told, and of the others that it has not.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .table import Document

if TYPE_CHECKING:
    from .hub import Hub

STACK_SECONDS = 1.0  # after which a neighbour is asked, too
LATE_SECONDS = 3.0  # that a process has more, when nobody else can see it
CHILDREN_SECONDS = 4.0  # for a process to tell of its descendants: they have a second, and who looks at them two
PROGRESS_SECONDS = 1.5  # an agent that has not answered by then may be frozen, or a call holds Python's lock
NEARBY_SECONDS = 4.0  # for a neighbour; then another one is asked
NEARLY = 0.9
SPY_SECONDS = 8.0  # for py-spy, and more where the client has more time


class Until:
    """A time of so many seconds from now on."""

    def __init__(self, seconds: float) -> None:
        self._began = time.monotonic()
        self._end = self._began + seconds

    def left(self, most: float = float("inf")) -> float:
        """The seconds that are left of it, `most` at most."""
        return min(most, max(0.0, self._end - time.monotonic()))

    def late(self) -> str:
        """What is told of who has not answered until now."""
        return f"no answer within {time.monotonic() - self._began:.0f} s"

    def part(self, part: float) -> Until:
        return Until(part * self.left())


async def stacks(hub: Hub, job_id: str | None, native: bool, seconds: float) -> list[Document]:
    """The stacks of a job's processes, and of their children, within so many seconds: `documents.StackProcess`.

    `untold` of a process counts children that did not say in time what they do.
    """
    looks = await _all(hub, job_id, seconds, lambda worker, until: _stack(hub, worker, native, until))
    ranks = [{**look.found, "untold": look.untold} if look.untold else look.found for look in looks]
    return [*ranks, *map(_stack_of_child, _born(looks))]


async def samples(hub: Hub, job_id: str | None, seconds: float) -> list[Document]:
    """What each process of a job is at, and each of their children, within so many seconds."""
    looks = await _all(hub, job_id, seconds, lambda worker, until: _progress(hub, worker, until))
    return [*(look.found for look in looks), *_born(looks)]


@dataclass(frozen=True)
class Look:
    """What there is of one process, and what it says of those of its descendants that have no agent."""

    owner: Document  # its identity
    found: Document
    children: list[Document]
    untold: int = 0  # children of which it said that they are there, and no more


async def _all(
    hub: Hub, job_id: str | None, seconds: float, look: Callable[[str, Until], Awaitable[Document]]
) -> list[Look]:
    until, workers = Until(seconds), hub.meant(job_id)
    return await asyncio.gather(*(_with_children(hub, each, look(each, until), until) for each in workers))


async def _with_children(hub: Hub, worker_id: str, look: Awaitable[Document], until: Until) -> Look:
    """It is asked for its children beside `look`, and not much longer: who does not answer now will not later."""
    owner, began = hub.table.workers[worker_id].identity, time.monotonic()
    counting = asyncio.ensure_future(hub.ask(worker_id, "children", until.left(), count=True))
    try:
        found = await look
        took = time.monotonic() - began
        await asyncio.wait({counting}, timeout=until.left(max(PROGRESS_SECONDS - took, took / 4)))
        count = counting.result() if counting.done() else {}
    finally:
        counting.cancel()
    if not count.get("count"):  # an older agent tells of its children at once
        return Look(owner, found, count.get("children") or [])
    told = await hub.ask(worker_id, "children", until.left(max(CHILDREN_SECONDS, took)))
    return Look(owner, found, told.get("children") or [], 0 if "children" in told else int(count["count"]))


# ---- a process


async def nearby(hub: Hub, identity: Document, op: str, seconds: float, arguments: Document) -> Document:
    """As `Hub.ask_nearby` says."""
    until, node_id = Until(seconds), identity["node_id"]
    here = hub.surroundings.is_here(node_id)
    failed = await _onlook(hub, node_id, op, until, arguments) if here else Document()
    if here and "error" not in failed:
        return failed
    for name in hub.neighbours(identity["worker_id"], node_id):
        patience = min(seconds / 3, max(NEARBY_SECONDS, seconds / 8))
        reply = await hub.ask(name, op, until.left(patience), **arguments)
        if "error" not in reply:
            return reply
        failed = failed or reply  # why it can't be seen, if nobody can
    if here:
        return failed
    reply = await _onlook(hub, node_id, op, until, arguments)
    return failed if failed and "error" in reply else reply


async def _onlook(hub: Hub, node_id: str, op: str, until: Until, arguments: Document) -> Document:
    look = hub.surroundings.onlook(node_id, op, until.left(), arguments)
    try:
        return await asyncio.wait_for(look, until.left())
    except TimeoutError:
        return {"error": f"nothing on its node responds: {until.late()}"}


async def either(
    own: Awaitable[Document],
    look: Callable[[], Awaitable[Document]],
    tells: Callable[[Document], bool],
    soon: float,
    until: Until,
) -> tuple[Document, Document]:
    """A process's own answer, and what `look` sees of it, which begins where that does not come soon (seconds).

    Of each nothing where it has not come. Done when one of them `tells`. Where `look` sees nothing, the process has as
    long again as that took.
    """
    asked, seen = asyncio.ensure_future(own), None
    try:
        await asyncio.wait({asked}, timeout=until.left(soon))
        if not _came(asked, tells):
            began, seen = time.monotonic(), asyncio.ensure_future(look())
            await _one_of(asked, seen, tells, until)
            took = time.monotonic() - began
            if not asked.done() and not _came(seen, tells):
                await asyncio.wait({asked}, timeout=until.left(max(LATE_SECONDS, took)))
        return asked.result() if asked.done() else {}, seen.result() if seen and seen.done() else {}
    finally:
        asked.cancel()
        if seen is not None:
            seen.cancel()


async def _one_of(
    asked: asyncio.Future[Document], seen: asyncio.Future[Document], tells: Callable[[Document], bool], until: Until
) -> None:
    """Until one tells, or the look is over."""
    waiting = {asked, seen}
    while seen in waiting and until.left() and not _came(asked, tells):
        _, waiting = await asyncio.wait(waiting, timeout=until.left(), return_when=asyncio.FIRST_COMPLETED)


def _came(future: asyncio.Future[Document], tells: Callable[[Document], bool]) -> bool:
    return future.done() and tells(future.result())


async def _stack(hub: Hub, worker_id: str, native: bool, until: Until) -> Document:
    """From inside the process; by a neighbour where it does not answer, or where native frames are wanted."""
    identity = hub.table.workers[worker_id].identity
    reply = await (_native_stack if native else _own_stack)(hub, worker_id, identity, until)
    return {
        "role": identity["role"],
        "rank": identity["rank"],
        "node_ip": identity["node_ip"],
        "pid": identity["pid"],
        "parent": identity.get("parent", 0),  # an older agent's has none
        "worker_id": identity["worker_id"],
        "job_id": identity["job_id"],
        "threads": reply.get("threads", []),
        "error": reply.get("error"),
        "task": reply.get("task", ""),
        "call": reply.get("call", ""),
    }


def _has_threads(reply: Document) -> bool:
    return "threads" in reply


async def _own_stack(hub: Hub, worker_id: str, identity: Document, until: Until) -> Document:
    own, seen = await either(
        hub.ask(worker_id, "stacks", until.left()),
        lambda: _spied(hub, identity, until, native=False),
        _has_threads,
        STACK_SECONDS,
        until,
    )
    return _first(own, seen) or {"error": until.late()}


async def _native_stack(hub: Hub, worker_id: str, identity: Document, until: Until) -> Document:
    """Who has no neighbour that sees it looks at itself."""
    seen = await _spied(hub, identity, until.part(0.5), native=True)
    if _has_threads(seen):
        return seen
    wanted = {"pid": identity["pid"], "native": True, "within": max(SPY_SECONDS, until.left())}
    return _first(await hub.ask(worker_id, "spy", until.left(), **wanted), seen) or {"error": until.late()}


def _first(*replies: Document) -> Document:
    """The first that has stacks, or all reasons why there are none, if any is known."""
    reasons = dict.fromkeys(filter(None, (each.get("error") for each in replies)))
    return next(filter(_has_threads, replies), {"error": "; ".join(reasons)} if reasons else {})


async def _spied(hub: Hub, identity: Document, until: Until, **wanted: bool) -> Document:
    within = max(SPY_SECONDS, until.left() / 8)
    return await hub.ask_nearby(identity, "spy", until.left(), pid=identity["pid"], within=within, **wanted)


def _moves(reply: Document) -> bool:
    return bool(reply.get("facts")) or "process" in reply


async def _progress(hub: Hub, worker_id: str, until: Until) -> Document:
    """From inside the process; where it does not answer, what a neighbour sees of it, or its fate."""
    identity = hub.table.workers[worker_id].identity
    looks = until.part(NEARLY)  # the rest is for Ray, which may know its fate
    own, seen = await either(
        hub.ask(worker_id, "progress", looks.left()),
        lambda: _seen_by_neighbour(hub, identity, looks),
        _moves,
        PROGRESS_SECONDS,
        looks,
    )
    if own.get("facts"):
        return {"identity": identity, "facts": own["facts"], "error": None}
    found: Document = {"identity": identity, "facts": None, "error": own.get("error") or looks.late()}
    if (link := hub.agents.get(worker_id)) is not None:
        found["heard"] = time.monotonic() - link.heard
    if "process" in seen:
        return {**found, **seen}
    with suppress(TimeoutError):
        if fate := await asyncio.wait_for(hub.fate_of(worker_id), until.left()):
            return {**found, "fate": fate["reason"]}
    return found


async def _seen_by_neighbour(hub: Hub, identity: Document, until: Until) -> Document:
    """`process` is null when it is dead; without it nobody could look. Its stack is not asked of a frozen one."""
    seen = await hub.ask_nearby(identity, "look", until.left() / 2, pid=identity["pid"])
    if "process" not in seen:
        return {}
    process = seen["process"]
    known = {"process": process, "connected": seen.get("connected") or {}}
    if process is None or process["state"] in "TtZX":
        return {**known, "threads": []}
    in_time = until.part(NEARLY)  # to tell of `process` in any case
    spied = await _spied(hub, identity, in_time, native=False, statements=True)
    return {**known, "threads": spied.get("threads", []), "statements": spied.get("statements", [])}


# ---- its children


def _born(looks: Iterable[Look]) -> list[Document]:
    """Descendants that have no agent, each once, as a sample has processes; each says who its `parent` is."""
    looks = list(looks)
    known = {(look.owner["node_id"], look.owner["pid"]) for look in looks}
    found = []
    for look in looks:
        for child in look.children:
            with suppress(KeyError, TypeError, AttributeError):  # another devkit's
                if (look.owner["node_id"], child["pid"]) not in known:
                    found.append(_child(look.owner, child))
                    known.add((look.owner["node_id"], child["pid"]))
    return found


def _child(owner: Document, child: Document) -> Document:
    own = {"worker_id": f"{owner['worker_id']}-{child['pid']}", "pid": child["pid"], "parent": owner["pid"]}
    facts, command = {**child["facts"], "rank": owner["rank"]}, child["command"]
    return {"identity": {**owner, **own}, "facts": facts, "command": command, "error": _unseen(facts, command)}


def _stack_of_child(child: Document) -> Document:
    identity, threads = child["identity"], child["facts"]["threads"]
    shown = [{name: each.get(name) for name in ("name", "frames", "stopped")} for each in threads]
    keys = ("role", "rank", "node_ip", "pid", "parent", "worker_id", "job_id")
    return {**{key: identity[key] for key in keys}, "threads": shown, "error": child["error"]}


def _unseen(facts: Document, command: str) -> str | None:
    """Why there are no stacks, and what the kernel tells instead."""
    if facts["threads"]:
        return None
    main = facts["main"]
    wait = main.get("wait", {})
    state = f"state {facts['process']['state']}" + (f", in {wait['call']}" if wait else "")
    on = f" on {wait['target']}" if wait.get("target") else ""
    return f"{command or 'it does not answer, and py-spy is not there to look'} ({state}{on})"
