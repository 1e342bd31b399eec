"""What the hub does when something has ended: a worker that died, a job."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from . import cancels, editions, hub_caught, kept_waiting, kills, named, orphans, packages, signals, table
from .hub_place import is_own
from .identity import DRIVER
from .lineage import is_of, is_of_a_death
from .ownership import OWNER_DIED, actor_of, sentence
from .records import CrashRecord, Identity
from .words import NO_WORD_YET, say

if TYPE_CHECKING:
    from .hub import Hub
    from .hub_links import Link

# Between the looks for a death behind an error. The agent's own connection tells more, so it comes first; and Ray's
# tables are filled by the processes' own reports, which are late on a busy machine.
BEHIND_SECONDS = (3.0, 2.0, 5.0, 10.0, 20.0)
MOST_BEHIND = 20  # tasks that are asked for
TOLD_SECONDS = 3.0  # for `devkit run` to tell how its command has ended
EXPLAIN_SECONDS = 3.0  # for an owner's end to be known
KILLER_SECONDS = 1.0  # for the one who has killed an actor to tell of it
DRIVER_SECONDS = 2.0  # for the driver to join, where its job fails at once
WHERE_SECONDS = 2.0  # for a process to say where it is
MODULES_SECONDS = 2.0  # for it to look at its modules
MOST_ASKED = 16  # workers, for their versions of packages
SETTLE_SECONDS = 4.0  # for what is to be found out before a Ray ends with its driver
HURRY_SECONDS = 0.2  # between the looks for it
RETIRE_SECONDS = 20.0  # until the breakpoints of a job that has ended go

Document = dict[str, Any]


async def keep_death(hub: Hub, identity: Document, fate: Document, seen: Document | None = None) -> None:
    """A worker that died leaves what can be known: Ray's reason, its task, its last words, or the last look at it.

    Once: it is missed at its connection and found behind an error, and both may wait for its last words.
    """
    from .vanished import vanished

    if is_own(identity):
        return
    words = await hub.last_words(identity)
    worker_id = identity["worker_id"]
    if any(crash["worker_id"] == worker_id and crash["kind"] == "exit" for crash in hub.table.crashes):
        return
    if worker_id in hub.table.workers:  # it knows of itself what Ray does not: its rank
        identity = {**hub.table.workers[worker_id].identity, "role": identity["role"]}
    seen = seen or hub.doing.get(worker_id)
    if seen is None:  # it may have told of itself before there was a hub that heard it
        told = await hub.surroundings.unheard(worker_id)
        identity, seen = told.get("identity", identity), told.get("seen")
    who, reason = Identity.from_json(identity), str(fate["reason"])
    if sent := signals.sender(identity, _tellers(hub)):
        reason = signals.sentence(reason, *sent, float(fate.get("time") or time.time()))
    hub.keep_crash(vanished(who, words, reason, task=fate.get("task"), died=fate.get("time"), seen=seen))


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
        await pause(hub, seconds)
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


async def explain(hub: Hub, document: Document) -> None:
    """An object was lost with its owner: who that was, how it ended, and where it had put the object, is what to say.

    What Ray says itself stays in the chain of the exception.
    """
    try:
        owner = str(document["lost"]["owner"])
        until = time.monotonic() + EXPLAIN_SECONDS
        while owner in hub.table.workers and time.monotonic() < until:  # nobody has missed it yet
            await asyncio.sleep(0.05)
        end = await _end_of(hub, owner, document)
        if end is not None:  # Ray has another reason where the handle is let go of right behind `ray.kill`
            actor, told = actor_of(str(document["lost"]["object"])), kills.BY_KILL in end["reason"]
            killer = await _killer_of(hub, actor) if told else _known_killer(hub, actor)
            end["reason"] = kills.reason(*killer) if killer is not None else end["reason"]
        message = sentence(str(document["lost"]["object"]), end, await _puts_of(hub, owner))
        said = {"exception": {**document["exception"], "message": message}, "lost": {**document["lost"], "known": True}}
        hub.add_to_crash(document, **said)
    finally:
        hub.explaining.discard(document["id"])


async def name_killer(hub: Hub, document: Document) -> None:
    """Of an actor that was killed Ray does not say by whom: who called `ray.kill` has noted where, and tells that."""
    known = kills.victim(document)
    try:
        found = await _killer_of(hub, known["actor_id"])
        if found is not None:
            said = {**document["exception"], "message": kills.sentence(known, *found)}
            hub.add_to_crash(document, exception=said, killed={"known": True, **found[1]})
    finally:
        hub.explaining.discard(document["id"])


def is_comparable(document: Document) -> bool:
    """Whether a process has failed by what may be another copy or version than that of who has sent it something."""
    return any(document.get(each) for each in ("modules", "packages", "unpickled"))


def is_to_be_looked_at(document: Document) -> bool:
    """Whether others may know more of it."""
    of_others = bool(kept_waiting.actors_of(document) or named.wanted(document) or document.get("cancels"))
    return of_others or is_comparable(document) or may_miss_others(document)


def may_miss_others(document: Document) -> bool:
    """Whether a driver has failed by an error of its own: it may have caught those of actors before; or whoever by the
    end of an actor's owner.
    """
    if document.get("light"):
        return False
    errors = (document["exception"], *(document.get("chain") or ()))
    if any(orphans.owner_in(str(each.get("message") or "")) for each in errors):
        return True
    return bool(document["kind"] == DRIVER and not document.get("root"))


async def look_closer(hub: Hub, document: Document) -> None:
    """Where those are that it has waited for; what Ray's table has of a name that was not found, and of actors that
    ended before; then what differs from what others have.
    """
    try:
        if actors := kept_waiting.actors_of(document):
            await _find_places(hub, document, actors)
        if tasks := document.get("cancels"):
            await _find_cancel(hub, document, [*map(str, tasks)])
        if name := named.wanted(document):
            await _find_name(hub, document, name)
        if may_miss_others(document):
            await _find_orphans(hub, document)
        if is_comparable(document):
            await _compare(hub, document)
    finally:
        hub.explaining.discard(document["id"])


async def _find_places(hub: Hub, document: Document, actors: list[str]) -> None:
    workers = [each for each in hub.meant(document["job_id"]) if each != document["worker_id"]]
    whose = [hub.table.workers[each].identity for each in workers]  # some may be gone when the others have answered
    answers = await asyncio.gather(*(hub.ask(each, "where", WHERE_SECONDS, actors=actors) for each in workers))
    if found := kept_waiting.said(document, list(zip(whose, answers, strict=True))):
        hub.add_to_crash(document, waiting=found)


async def _find_cancel(hub: Hub, document: Document, tasks: list[str]) -> None:
    workers = [each for each in hub.meant(document["job_id"]) if each != document["worker_id"]]
    whose = [hub.table.workers[each].identity for each in workers]
    answers = await asyncio.gather(*(hub.ask(each, "cancelled", WHERE_SECONDS, tasks=tasks) for each in workers))
    told = ((by, each["site"]) for by, each in zip(whose, answers, strict=True) if cancels.is_site(each.get("site")))
    if found := next(told, None):
        by, at = found
        hub.add_to_crash(document, cancelled=[cancels.sentence(at, by), *(document.get("cancelled") or ())])


async def _find_name(hub: Hub, document: Document, name: str) -> None:
    try:
        found = await hub.surroundings.named(name)
    except Exception as error:  # noqa: BLE001 - a GCS that is busy: the crash is told without it
        say(f"the actors called {name!r} are not known: {error!r}")
        return
    hub.add_to_crash(document, named=named.said(name, found, document["time"]))


async def _find_orphans(hub: Hub, document: Document) -> None:
    try:
        ended = await hub.surroundings.orphaned(document["job_id"])
    except Exception as error:  # noqa: BLE001 - a GCS that is busy: the crash is told without it
        say(f"which actors ended before crash {document['id']} is not known: {error!r}")
        return
    killers: dict[str, Document | None] = {}
    for owner in (one for each in ended if (one := each.get("owner"))):
        actor = str(owner.get("actor") or "")
        if actor not in killers:
            killers[actor] = await _killed(hub, actor, str(owner["why"]))
        owner["killed"] = killers[actor]
    if found := orphans.said(ended, document["time"]):
        hub.add_to_crash(document, orphans=found)


async def _killed(hub: Hub, actor: str, why: str) -> Document | None:
    """Who killed an owner by `ray.kill`, and where; `why` it ended, in Ray's words."""
    killer = await _killer_of(hub, actor) if kills.BY_KILL in why else _known_killer(hub, actor)
    return {"by": kills.who(killer[0]), **killer[1]} if killer is not None else None


async def _compare(hub: Hub, document: Document) -> None:
    """Whether the driver has the same copies of the modules in which a worker has failed, and of packages the version.

    What arrives somewhere may come from a worker, too: where the driver is no other, those are asked.
    """
    in_driver = document["role"] == DRIVER
    driver = "" if in_driver else await _joined_driver(hub, document["job_id"])
    found = await _compared(hub, document, [driver]) if driver else {}
    if not found.get("other_versions") and (in_driver or document.get("unpickled")):
        others = [each for each in hub.meant(document["job_id"]) if each not in (driver, document["worker_id"])]
        found |= await _compared(hub, {**document, "modules": {}}, others[:MOST_ASKED])
    if found:
        hub.add_to_crash(document, **found)


async def _compared(hub: Hub, document: Document, workers: list[str]) -> Document:
    """What differs in these, if anything: `differs` and `other_versions`."""
    whose = {each: hub.table.workers[each].identity for each in workers}
    mine, named = document.get("modules", {}), document.get("packages", {})
    asked = {"names": list(mine), "packages": list(named)}
    wanted = bool(mine or named)  # else only Python's own version is of interest, and that is known
    replies = await asyncio.gather(*(hub.ask(each, "modules", MODULES_SECONDS, **asked) for each in workers if wanted))
    differs = [each for reply in replies for each in editions.differing(mine, reply.get("modules", {}))]
    versions = [
        each
        for who, reply in zip(whose.values(), replies or [{}] * len(whose), strict=True)
        for each in packages.differing(named, reply.get("packages", {}), who["role"])
    ]
    if document.get("unpickled"):
        here = document["versions"]["python"]
        versions += [
            each for who in whose.values() for each in packages.other_python(here, who.get("python") or "", who["role"])
        ]
    return {name: each for name, each in (("differs", differs), ("other_versions", packages.once(versions))) if each}


async def _joined_driver(hub: Hub, job_id: str) -> str:
    """The driver of a job, in a moment where it has not joined yet; empty: it cannot be asked."""
    until = time.monotonic() + DRIVER_SECONDS
    while (driver := _driver_of(hub, job_id)) is None and time.monotonic() < until:
        await asyncio.sleep(0.05)
    return driver or ""


def _driver_of(hub: Hub, job_id: str) -> str | None:
    """The driver of a job, if it can be asked."""
    known = ((name, hub.table.workers[name].identity) for name in list(hub.agents) if name in hub.table.workers)
    return next((name for name, each in known if each["role"] == DRIVER and each["job_id"] == job_id), None)


def _tellers(hub: Hub) -> Iterator[tuple[Document, Document]]:
    """Who has told of what it does, and what."""
    left = {each["identity"]["worker_id"]: each["identity"] for each in hub.table.left}
    known = left | {name: each.identity for name, each in hub.table.workers.items()}
    return ((known[name], told) for name, told in list(hub.doing.items()) if name in known)


async def _killer_of(hub: Hub, actor_id: str) -> tuple[Document, Document] | None:
    """The identity of who killed an actor, and the note of it, which may be on its way."""
    until = time.monotonic() + KILLER_SECONDS
    while (found := _known_killer(hub, actor_id)) is None and time.monotonic() < until:
        await asyncio.sleep(0.05)
    return found


def _known_killer(hub: Hub, actor_id: str) -> tuple[Document, Document] | None:
    for worker_id, seen in list(hub.doing.items()):
        site = next((each for each in reversed(seen.get("kills", [])) if each["actor"] == actor_id), None)
        if site is not None:
            left = (each["identity"] for each in hub.table.left if each["identity"]["worker_id"] == worker_id)
            worker = hub.table.workers.get(worker_id)
            who = worker.identity if worker else next(left, {"role": "a worker that is gone", "pid": 0})
            return who, site
    return None


async def _end_of(hub: Hub, worker_id: str, document: Document) -> Document | None:
    """Who a worker was that is gone, why it ended, and how long before a crash. Ray knows of one that never joined."""
    left = next((each for each in hub.table.left if each["identity"]["worker_id"] == worker_id), None)
    if left is not None:
        known = {**left["identity"], "reason": left["reason"], "time": left["time"]}
    else:
        node_id = str(document["lost"].get("node") or "")
        found = await hub.surroundings.fate(worker_id, node_id, document["job_id"]) if worker_id else None
        if found is None or "pid" not in found:
            return None
        known = found
    ago = float(document["time"]) - known["time"] if known.get("time") else 0.0
    who = kills.who({**known, "role": known.get("role") or "a worker"})
    return {"who": who, "reason": known["reason"], "ago": ago if ago > 0 else None}


async def _puts_of(hub: Hub, worker_id: str) -> list[Document]:
    seen = hub.doing.get(worker_id) or (await hub.surroundings.unheard(worker_id)).get("seen") or {}
    found: list[Document] = seen.get("puts", [])
    return found


async def pause(hub: Hub, seconds: float) -> None:
    """So long, or shorter once nobody has that much time any more."""
    if not hub.leaving.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(hub.leaving.wait(), seconds)
            return
    else:
        await asyncio.sleep(min(seconds, HURRY_SECONDS))


async def settle(hub: Hub, link: Link, last: Document) -> None:
    """The driver to which this Ray belongs ends, and all that is known with it: what can be found out is kept before.

    What Ray has no word on in time is kept by what is known without. `last` is the driver's last message.
    """
    leaves, until = hub.table.workers.get(link.worker_id), time.monotonic() + SETTLE_SECONDS
    if leaves is None or leaves.identity["role"] != DRIVER:
        return
    hub.leaving.set()
    job_id = leaves.identity["job_id"]
    asked = asyncio.create_task(hub_caught.ask(hub, job_id, link.worker_id, last))
    while time.monotonic() < until and (missing(hub, job_id) or unexplained(hub, job_id) or hub.explaining):
        await asyncio.sleep(0.05)
    for worker_id in missing(hub, job_id) if unexplained(hub, job_id) else ():
        identity = hub.table.workers[worker_id].identity
        await keep_death(hub, identity, {"reason": NO_WORD_YET}, hub.doing.get(worker_id))
    await asked
    hub_caught.keep(hub, job_id, last)
    link.write({"type": "settled"})


def missing(hub: Hub, job_id: str) -> list[str]:
    """Workers of a job that went away, it is not known yet why; or that are dead, and the hub has not heard it yet."""

    def away(worker: table.Worker) -> bool:
        return not worker.connected or hub.surroundings.is_gone(worker.identity)

    workers = hub.table.workers.items()
    return [name for name, each in workers if each.identity["job_id"] == job_id and away(each)]


def unexplained(hub: Hub, job_id: str) -> bool:
    """Whether somebody was told of a death, and nothing is known that may be why."""
    crashes = [CrashRecord.from_json(each) for each in hub.table.crashes if each["job_id"] == job_id]
    deaths = [each.exception for each in crashes if is_of_a_death(each.exception["type"])]
    told = [each for each in deaths if OWNER_DIED not in each["type"] and not kills.is_told(each["message"])]
    return bool(told) and len(deaths) == len(crashes)


async def retire(hub: Hub, job_id: str) -> None:
    """A little after the end of a job its breakpoints go: who started it asks first what they have hit."""
    mine = {name for name, each in hub.table.breakpoints.items() if job_id and each.get("job_id") == job_id}
    if mine and await hub.surroundings.is_over(job_id):
        await asyncio.sleep(RETIRE_SECONDS)
        for name in mine & hub.table.breakpoints.keys():
            hub.update(table.cleared(hub.table, name))
        await hub.surroundings.keep(list(hub.table.breakpoints.values()))
