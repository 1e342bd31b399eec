"""The hub: where the agents of all workers of a cluster meet the clients.

It holds one connection to each agent, the table of what they report (`table.py`), and copies of the crash snapshots, so
that these outlive their node. It decides nothing about the program: when it dies the stops stay, and when it is started
again the agents join again and tell it everything.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from . import again, anew, hub_after, hub_looks, kills, table, told, wire
from .hub_links import Link, Links
from .records import is_breakpoint
from .surroundings import Surroundings
from .table import Document, Table

ANSWER_SECONDS = 10.0  # how long agents may take, unless the client says otherwise
LOOK_SECONDS = 18.0  # for neighbours, and for who is sent to their node
REJOIN_SECONDS = 1.0  # an agent whose connection broke may come back
ARM_SECONDS = 5.0
MOST_DOING = 2000  # processes of which the last look is kept, when some of them are gone
GATHER_SECONDS = 3.0  # for agents to join a hub that was started again; they try at least every two seconds


class HubError(Exception):
    """What a client is told instead of an answer."""

    def __init__(self, message: str, hint: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.hint = hint
        self.exit_code = exit_code


class Hub:
    """The hub without Ray around it: `serve`, and `accept` for links that come in by another way."""

    def __init__(self, key: bytes, crash_folder: Path, surroundings: Surroundings) -> None:
        self.table = Table()
        self.crash_folder = crash_folder
        self.surroundings = surroundings
        self.agents: dict[str, Link] = {}
        self.watchers: set[Link] = set()
        self.doing: dict[str, Document] = {}  # by worker: where it was at the last look; nobody is told of a change
        self.numbers = itertools.count(1)
        self.leaving = asyncio.Event()  # the driver to which this Ray belongs is about to end
        self.tried: set[str] = set()  # crashes of calls of which is asked whether they are tried again
        self.explaining: set[str] = set()  # crashes of which more will be known in a moment
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._links = Links(key, self)
        self._gathered = 0.0  # from then on, what agents have told is all that there is

    async def serve(self, host: str) -> int:
        """Listens on a free port of `host` and returns it."""
        port = await self._links.serve(host)
        self._spawn(self._tell_watchers())
        for job_id in {str(each.get("job_id") or "") for each in self.table.breakpoints.values()}:
            self._spawn(hub_after.retire(self, job_id))  # it may have ended while there was no hub
        return port

    async def close(self) -> None:
        """Ends everything that `serve` began."""
        self._links.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # what was closed has a last call of the loop to get

    def restore(self, breakpoints: list[Document]) -> None:
        """After a restart: the breakpoints that an earlier hub had, and the crashes that it kept."""
        for document in filter(is_breakpoint, breakpoints):
            self.table = table.posted(self.table, document)
        self._list_kept()

    def gather(self) -> None:
        """There was an earlier hub: its agents look for this one, and until they were heard nobody is told anything."""
        self._gathered = time.monotonic() + GATHER_SECONDS

    def _list_kept(self) -> None:
        """The crashes of the hub's own folder, told or not: a worker of its node may have died before it could."""
        from . import snapshot

        for record in snapshot.list_folder(self.crash_folder):
            self.update(table.crashed(self.table, record.to_json()))

    async def collect(self, node_ids: set[str]) -> None:
        """Snapshots of workers that died before they could tell; whoever lives on their node has them."""
        self._list_kept()
        known = [crash["id"] for crash in self.table.crashes]
        near = {self.table.workers[name].identity["node_id"]: name for name in self.agents}
        asked = (self.ask(near[node], "kept", ARM_SECONDS, known=known) for node in node_ids.intersection(near))
        for reply in await asyncio.gather(*asked):
            for document in reply.get("documents", ()):
                self.keep_crash(document)

    # ---- connections

    def closed(self, link: Link) -> None:
        """The other end is gone."""
        self.watchers.discard(link)
        for channel, other in list(link.channels.items()):
            other.channels.pop(channel, None)
            with suppress(OSError):
                other.write({"type": "channel", "channel": channel, "closed": True})
        for answer in link.waiting.values():
            if not answer.done():
                answer.set_exception(HubError("the worker went away", "devkit ps shows what became of it"))
        if link.worker_id and self.agents.get(link.worker_id) is link:
            del self.agents[link.worker_id]
            self.update(table.disconnected(self.table, link.worker_id))
            self._spawn(self._find_out(link.worker_id))

    async def _find_out(self, worker_id: str) -> None:
        """A worker that stays away is asked after until its fate is known."""
        await hub_after.pause(self, REJOIN_SECONDS)
        while worker_id not in self.agents and worker_id in self.table.workers:
            fate = await self._fate(worker_id)
            if fate is not None:
                await self._gone(worker_id, fate)
                return
            await hub_after.pause(self, REJOIN_SECONDS)

    async def settled(self, seconds: float) -> None:
        """Once the fate of all workers that went away is known, or after so many seconds."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not all(each.connected for each in self.table.workers.values()):
            await asyncio.sleep(0.05)

    async def fate_of(self, worker_id: str) -> Document | None:
        """What became of a worker: {"reason", "crashed"}; None while it may live."""
        return await self._fate(worker_id) if worker_id in self.table.workers else None

    async def _fate(self, worker_id: str) -> Document | None:
        identity = self.table.workers[worker_id].identity
        parent, dash, _ = worker_id.partition("-")
        try:
            fate = await self.surroundings.fate(parent, identity["node_id"], identity["job_id"])
            return await self._fate_of_child(identity) if fate is None and dash else fate
        except Exception as error:  # noqa: BLE001 - a GCS that fails now is asked again; else its stops never end
            print(f"devkit: cannot get information about worker {worker_id}: {error!r}", file=sys.stderr)  # noqa: T201
            return None

    async def _fate_of_child(self, identity: Document) -> Document | None:
        """Ray knows nothing of a worker's children: whoever lives on the same node looks."""
        reply = await self.ask_nearby(identity, "lives", LOOK_SECONDS, pid=identity["pid"])
        return {"reason": "the child process ended"} if reply.get("lives") is False else None

    async def _gone(self, worker_id: str, fate: Document) -> None:
        """A worker that crashed leaves what can be known: a record with Ray's reason and its last words."""
        identity = self.table.workers[worker_id].identity
        identity = {**identity, "role": fate.get("role") or identity["role"]}
        await self.collect({identity["node_id"]})
        crashed = fate.get("crashed") and not self._has_crashed(worker_id, fate)
        if crashed and not await hub_after.has_ended_well(self, identity):
            await hub_after.keep_death(self, identity, fate, self.doing.get(worker_id))
        self.update(table.left(self.table, worker_id, fate["reason"], fate.get("time") or time.time()))
        for old in list(self.doing.keys() - self.table.workers.keys())[: max(0, len(self.doing) - MOST_DOING)]:
            del self.doing[old]
        self._spawn(hub_after.retire(self, identity["job_id"]))

    def _has_crashed(self, worker_id: str, fate: Document) -> bool:
        """Whether a snapshot tells already why it ended: `sys.exit`, or an exception in `__init__`, which Ray names."""
        kinds = [crash["kind"] for crash in self.table.crashes if crash["worker_id"] == worker_id]
        return "exit" in kinds or bool(kinds and fate.get("kind") == "USER_ERROR")

    async def last_words(self, identity: Document) -> Document | None:
        """What is in the error log of a dead worker, read by whoever lives on its node."""
        words = await self.surroundings.last_words(identity)
        if words is None:
            reply = await self.ask_nearby(identity, "last_words", LOOK_SECONDS, identity=identity)
            words = reply.get("words")
        return words

    # ---- agents

    def from_agent(self, link: Link, document: Document) -> None:
        kind = document.get("type")
        link.heard = time.monotonic()
        if problem := told.problem(document):
            self._links.complaints.tell("the hub passed over a message of an agent", problem)
        elif kind == "hello":
            self._hello(link, document)
        elif kind == "report":
            self.update(table.reported(self.table, link.worker_id, document, time.time()))
        elif kind == "reply":
            if "report" in document:  # at once: a newer one may be right behind it
                self.update(table.reported(self.table, link.worker_id, document["report"], time.time()))
            answer = link.waiting.pop(document["id"], None)
            if answer is not None and not answer.done():
                answer.set_result(document)
        elif kind == "channel":
            self._forward(link, document)
        elif kind == "doing":
            self.doing[link.worker_id] = document
        elif kind == "crash":
            self.keep_crash(document["document"])
        elif kind == "caught":  # the last that it says
            self.update(table.counted(self.table, link.worker_id, document["caught"]))
        elif kind == "leaving":
            self._spawn(hub_after.settle(self, link, document))
        elif kind == "bye":
            self.update(table.left(self.table, link.worker_id, document["reason"], time.time()))
            self.agents.pop(link.worker_id, None)
            link.worker_id = ""

    def _hello(self, link: Link, document: Document) -> None:
        identity = document["identity"]
        link.worker_id = identity["worker_id"]
        self.agents[link.worker_id] = link
        self.update(table.joined(self.table, identity))
        self._learn(document.get("breakpoints", ()))
        wanted = [each for each in self.table.breakpoints.values() if is_for(each, identity)]
        link.write({"type": "welcome", "breakpoints": wanted, "cleared": list(self.table.cleared)})

    def _learn(self, breakpoints: Iterable[Document]) -> None:
        """Those that the job was started with: they are listed, and can be cleared, as any other."""
        known = {*self.table.breakpoints, *self.table.cleared}
        fresh = [each for each in breakpoints if is_breakpoint(each) and each["id"] not in known and each.get("job_id")]
        for each in fresh:
            self.update(table.posted(self.table, each))
        if fresh:
            self._spawn(self.surroundings.keep(list(self.table.breakpoints.values())))

    def keep_crash(self, document: Document) -> None:
        from . import snapshot

        try:
            record = snapshot.record_of(document)
        except ValueError as error:
            self._links.complaints.tell("the hub passed over a crash", error)
            return
        snapshot.store(document, self.crash_folder)
        self.update(table.crashed(self.table, record.to_json()))
        if anew.is_wanted(document) and anew.has_room(self):
            self.explaining.add(anew.mark(document))
            self._spawn(anew.look(self, document))
        if again.is_wanted(document) and len(self.tried) < again.MOST_ASKED:
            self.tried.add(document["id"])
            self._spawn(again.look(self, document))
        if document.get("lost"):
            self.explaining.add(document["id"])
            self._spawn(hub_after.explain(self, document))
        elif kills.victim(document):
            self.explaining.add(document["id"])
            self._spawn(hub_after.name_killer(self, document))
        else:
            if hub_after.is_to_be_looked_at(document):
                self.explaining.add(document["id"])
                self._spawn(hub_after.look_closer(self, document))
            if document.get("waited"):
                self._spawn(hub_after.look_behind(self, document))

    def add_to_crash(self, document: Document, **more: Any) -> None:
        """More is known of one that is listed, beside what others may have found out since it had come."""
        from . import snapshot

        with suppress(OSError, ValueError):  # the folder can't be written to, or it was one too many
            document = snapshot.load(self.crash_folder / f"{document['id']}.json")
        newer = {**document, **more}
        snapshot.store(newer, self.crash_folder)
        self.update(table.corrected(self.table, snapshot.record_of(newer).to_json()))

    async def ask(self, worker_id: str, op: str, timeout: float, **arguments: Any) -> Document:
        """One agent's answer; one that does not come is an answer with an `error`."""
        link = self.agents.get(worker_id)
        if link is None:
            fate = await self.fate_of(worker_id)
            return {"error": f"it is gone: {fate['reason']}" if fate else "this worker is not connected"}
        number = next(self.numbers)
        answer: asyncio.Future[Document] = asyncio.get_running_loop().create_future()
        link.waiting[number] = answer
        link.write({"type": "request", "id": number, "op": op, **arguments})
        try:
            return await asyncio.wait_for(answer, timeout)
        except TimeoutError:
            return {"error": f"{wire.LATE} {round(timeout, 1):g} s"}
        except HubError as error:
            return {"error": str(error)}
        finally:
            link.waiting.pop(number, None)

    async def ask_nearby(self, identity: Document, op: str, timeout: float, /, **arguments: Any) -> Document:
        """What others on a worker's node say of it, in `timeout` seconds: the hub itself if it is there, neighbours,
        and where none of them answers, somebody who is sent there.
        """
        return await hub_looks.nearby(self, identity, op, timeout, arguments)

    # ---- clients

    def from_client(self, link: Link, document: Document) -> None:
        if document.get("type") == "channel":
            self._forward(link, document)
        else:
            self._spawn(self._answer(link, document))

    async def _answer(self, link: Link, document: Document) -> None:
        from .hub_requests import OPERATIONS

        number = document.get("id")
        try:
            operation = OPERATIONS.get(str(document.get("op")))
            if operation is None:
                raise HubError(f"the hub does not know {document.get('op')}", "it was started by a different devkit", 2)
            await asyncio.sleep(max(0.0, self._gathered - time.monotonic()))
            link.write({"id": number, "ok": await operation(self, link, {**document["arguments"], "request": number})})
        except HubError as error:
            link.write({"id": number, "error": str(error), "hint": error.hint, "exit_code": error.exit_code})
        except Exception as error:  # noqa: BLE001 - who asked would wait for an answer; most often it can't be read
            hint = "was the hub started by another version of devkit?"
            link.write({"id": number, "error": f"a request the hub can't answer: {error!r}", "hint": hint})

    def _forward(self, link: Link, document: Document) -> None:
        other = link.channels.get(document["channel"])
        if other is None:
            return
        if document.get("closed"):
            link.channels.pop(document["channel"])
            other.channels.pop(document["channel"], None)
        other.write(document)

    # ---- common

    def neighbours(self, worker_id: str, node_id: str) -> list[str]:
        """Other workers of the same node; two are enough to ask."""
        workers = self.table.workers
        near = [name for name in self.agents if workers[name].identity["node_id"] == node_id and name != worker_id]
        return near[:2]

    def meant(self, job_id: str | None) -> list[str]:
        """The connected workers of a job, or of any that goes on; those that Ray started in advance have none."""
        jobs = {name: self.table.workers[name].identity["job_id"] for name in self.agents}
        over = table.over(self.table)
        return [name for name, job in jobs.items() if (job and job not in over if job_id is None else job == job_id)]

    def update(self, newer: Table) -> None:
        if newer is not self.table:
            self.table = newer
            self._changed.set()

    async def _tell_watchers(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self.watchers:
                try:
                    document = table.ps(self.table)
                except Exception as error:  # noqa: BLE001 - something that an agent said can't be read; the next may be
                    self._links.complaints.tell("the hub could not tell those who watch", error)
                    continue
                for link in self.watchers:
                    for number in link.watches:
                        link.write({"id": number, "event": document})
                await asyncio.sleep(0.05)  # many changes at once are told once

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._links.complaints.tell("the hub gave up a task", error)


def is_for(breakpoint: Document, identity: Document) -> bool:  # noqa: A002 - the field's own word
    """A worker without a job may get any."""
    return not breakpoint.get("job_id") or identity["job_id"] in ("", breakpoint["job_id"])
