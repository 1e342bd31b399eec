"""A hub without Ray, in a thread of its own, and agents made of nothing but a connection."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from devkit.debug.client import HubClient
from devkit.debug.inworker import wire
from devkit.debug.inworker.hub import Hub
from tests.pace import stretched

KEY = wire.derive_key("the token", "hub 1")
Document = dict[str, Any]


class Surroundings:
    """What Ray would tell the hub; `fates` is filled by the test."""

    def __init__(self) -> None:
        self.fates: dict[str, Document] = {}
        self.kept: list[list[Document]] = []
        self.over: set[str] = set()
        self.died: list[tuple[int, Document]] = []  # after so many looks that did not find it
        self.looks = 0
        self.full: list[Document] = []  # what the nodes' object stores have
        self.late: set[int] = set()  # looks that get no answer
        self.actors: list[Document] = []  # of Ray's table, with a name
        self.orphans: list[Document] = []  # that ended with their owner
        self.instances: list[Document] = []  # how actors are now
        self.tries: dict[str, int] = {}  # the last try of a task
        self.gone: set[str] = set()  # workers whose processes run no more

    async def fate(self, worker_id: str, node_id: str, job_id: str) -> Document | None:
        return self.fates.get(worker_id)

    def is_gone(self, identity: Document) -> bool:
        return identity["worker_id"] in self.gone

    async def last_words(self, identity: Document) -> Document | None:
        return None

    def is_here(self, node_id: str) -> bool:
        return False

    async def onlook(self, node_id: str, op: str, timeout: float, arguments: Document) -> Document:
        return {"error": "nobody is there"}

    async def deaths(self, task_ids: list[str], job_id: str) -> list[Document]:
        self.looks += 1
        if self.looks in self.late:
            raise TimeoutError("the GCS is busy")
        return [each for looks, each in self.died if looks < self.looks and each["task"]["task_id"] in task_ids]

    async def unheard(self, worker_id: str) -> Document:
        return {}

    async def named(self, name: str) -> list[Document]:
        return [each for each in self.actors if each["name"] == name]

    async def instance(self, actor: str, job_id: str) -> Document | None:
        return next((each for each in self.instances if actor == each["actor"]), None)

    async def is_tried_again(self, task_id: str, attempt: int) -> bool:
        return attempt < self.tries.get(task_id, 0)

    async def orphaned(self, job_id: str) -> list[Document]:
        return [{**each, "owner": dict(each["owner"])} for each in self.orphans]

    async def stores(self) -> list[Document]:
        return self.full

    async def is_over(self, job_id: str) -> bool:
        return job_id in self.over

    async def keep(self, breakpoints: list[Document]) -> None:
        self.kept.append(breakpoints)


class RunningHub:
    def __init__(self, folder: Path, *, after_another: bool = False) -> None:
        self.surroundings = Surroundings()
        self.port = 0
        self.agents: list[FakeAgent] = []
        self._folder, self._after_another = folder, after_another
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(stretched(10))

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self.hub = Hub(KEY, self._folder, self.surroundings)
        if self._after_another:
            self.hub.gather()
        self.port = self._loop.run_until_complete(self.hub.serve("127.0.0.1"))
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self.hub.close())
        while tasks := asyncio.all_tasks(self._loop):
            # One that asks what became of a worker would ask for ever: its goodbye may have been lost with the rest.
            if self._loop.run_until_complete(asyncio.wait(tasks, timeout=0.2))[1]:
                for task in tasks:
                    task.cancel()
        self._loop.close()

    def client(self) -> HubClient:
        return HubClient(wire.Connection(("127.0.0.1", self.port), KEY, "client"))

    def stop(self) -> None:
        for agent in self.agents:
            agent.close()
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(stretched(10))


@contextmanager
def running_hub(folder: Path, *, after_another: bool = False) -> Iterator[RunningHub]:
    hub = RunningHub(folder, after_another=after_another)
    try:
        yield hub
    finally:
        hub.stop()


def identity(worker_id: str, rank: int = 0, job_id: str = "01", node_id: str = "node1") -> Document:
    return {
        "job_id": job_id,
        "worker_id": worker_id,
        "node_id": node_id,
        "node_ip": "10.0.0.1",
        "host": "h",
        "pid": 100 + rank,
        "role": "Worker",
        "actor": "",
        "rank": rank,
        "python": "3.11.7",
        "parent": 0,
    }


def stop(worker_id: str, number: int = 1, rank: int = 0) -> Document:
    who = identity(worker_id, rank)
    return {
        **{name: who[name] for name in ("job_id", "actor", "role", "rank", "node_ip", "pid", "worker_id")},
        "id": f"{worker_id}-{number}",
        "file": "/p/job.py",
        "line": 7,
        "function": "step",
        "reason": "breakpoint",
        "exception": None,
        "since": 1000.0 + number,
        "attached": 0,
        "thread": "MainThread",
        "breakpoint": "",
        "breakpoints": [],
    }


class FakeAgent:
    """Joins a hub and answers its requests by `answers`: op -> reply, or a function of the request.

    What is not among them gets no answer. Only what the hub asks of everybody in passing, and waits for, it answers in
    any case, as one that has nothing to tell.
    """

    IN_PASSING: ClassVar[Document] = {"kept": {}, "clear": {}, "last_words": {}}

    def __init__(self, hub: RunningHub, who: Document, answers: dict[str, Any] | None = None) -> None:
        self.who = who
        self.answers: Document = {**self.IN_PASSING, **(answers or {})}
        self.welcomed = threading.Event()
        self.settled = threading.Event()
        self.breakpoints: list[Document] = []
        self.requests: list[Document] = []
        self.channels: list[Document] = []
        self.connection = wire.Connection(("127.0.0.1", hub.port), KEY, "agent")
        hub.agents.append(self)
        self.connection.send({"type": "hello", "identity": who})
        threading.Thread(target=self._run, daemon=True).start()
        assert self.welcomed.wait(stretched(10))

    def _run(self) -> None:
        for document in self.connection:
            if document["type"] == "welcome":
                self.breakpoints = document["breakpoints"]
                self.welcomed.set()
            elif document["type"] == "request":
                self.requests.append(document)
                answer = self.answers.get(document["op"])
                reply = answer(document) if isinstance(answer, Callable) else answer
                if reply is not None:
                    self.connection.send({"type": "reply", "id": document["id"], **reply})
            elif document["type"] == "settled":
                self.settled.set()
            elif document["type"] == "channel":
                self.channels.append(document)
                if "message" in document:
                    self.connection.send({**document, "message": {"echo": document["message"]}})

    def report(self, *stops: Document, armed: Document | None = None, ended: tuple[Document, ...] = ()) -> None:
        self.connection.send(self.report_of(*stops, armed=armed, ended=ended))

    def report_of(self, *stops: Document, armed: Document | None = None, ended: tuple[Document, ...] = ()) -> Document:
        return {"type": "report", "identity": self.who, "stops": stops, "armed": armed or {}, "ended": list(ended)}

    def close(self) -> None:
        self.connection.close()
