"""The hub as a Ray actor: one per cluster, detached, made by whichever process of a debugged job comes first.

It publishes where it listens in Ray's key-value store, for the agents, and in a file among Ray's logs, which the
dashboard gives to who has the cluster's token. Clients that reach nothing but the dashboard speak to it through
`relay.py`.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import secrets
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from . import PROTOCOL, private, threads
from .auth import cluster_token
from .blocking import in_thread, until_done
from .hub import Hub
from .hub_links import raise_files
from .hub_place import (
    CRASH_FOLDER,
    HUB_FILE,
    KV_HUB,
    KV_NAMESPACE,
    KV_SECONDS,
    error_log,
    gcs,
    log_folder,
    published,
    signed,
)
from .identity import WORKER
from .onlooker import Onlookers
from .records import Identity
from .relay import Relay
from .table import Document
from .wire import derive_key
from .words import in_short, say

NAME = f"devkit-hub-{PROTOCOL}"
NAMESPACE = "_devkit"
HEAD_RESOURCE = "node:__internal_head__"
START_SECONDS = 30.0

ENDED_BY_RAY = "SIGTERM"  # in Ray's words on a worker's end
# Ends that nobody needs to hear of: the job is over, the worker was idle, ray.kill, exit_actor.
EXPECTED_EXITS = frozenset({"INTENDED_SYSTEM_EXIT", "INTENDED_USER_EXIT"})


class HubActor:
    """What Ray makes, and makes again when it died. The hub has a thread and an event loop of its own in it."""

    def __init__(self) -> None:
        from .agent import stand_down

        stand_down()
        with suppress(OSError):  # who may do so: Ray gives workers little of a busy machine's time
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        self._ready = threading.Event()
        self._place: Document = {}
        threads.start(self._run, "devkit-hub")

    def place(self) -> Document:
        """Where the hub listens. Raises `TimeoutError` when it could not start."""
        if not self._ready.wait(START_SECONDS):
            raise TimeoutError("devkit's hub did not start: its actor's log says why")
        return self._place

    def _run(self) -> None:
        """A hub that failed ends its process, so that Ray starts another one."""
        try:
            asyncio.run(_serve(self._publish))
        finally:
            traceback.print_exc()
            os._exit(1)

    def _publish(self, place: Document) -> None:
        self._place = place
        self._ready.set()


def create() -> Any:
    """The hub's actor, made if there is none. Needs a connected Ray."""
    import ray

    return (
        ray.remote(HubActor)
        .options(
            name=NAME,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=-1,
            resources={HEAD_RESOURCE: 0.001},
        )
        .remote()
    )


async def _serve(publish: Callable[[Document], None]) -> None:
    place, relay = await _start()
    publish(place)
    await relay.run()


async def _start() -> tuple[Document, Relay]:
    import ray

    raise_files()
    earlier = await until_done(published)
    before = (earlier or {}).get("breakpoints", [])
    hub_id = secrets.token_hex(16)
    folder = log_folder()
    surroundings = RaySurroundings()
    hub = Hub(derive_key(cluster_token(), hub_id), folder / CRASH_FOLDER, surroundings)
    hub.restore(before)
    if earlier is not None:
        hub.gather()
    host = ray.util.get_node_ip_address()
    surroundings.place = {
        "hub_id": hub_id,
        "host": host,
        "port": await hub.serve(host),
        "node_id": ray.get_runtime_context().get_node_id(),
        "pid": os.getpid(),
        "since": time.time(),
        "protocol": PROTOCOL,
        "python": sys.version.split()[0],
    }
    await surroundings.keep(before)
    try:
        announce(folder / HUB_FILE, surroundings.place, cluster_token())
    except OSError as error:  # agents and clients of this machine find it all the same, by Ray's key-value store
        say(f"clients that ask the dashboard can't find the hub: {folder / HUB_FILE}: {error.strerror}")
    return surroundings.place, Relay(hub, hub_id, folder, gcs())


class RaySurroundings:
    """What the hub asks of Ray."""

    def __init__(self) -> None:
        self.place: Document = {}
        self._onlookers = Onlookers()
        self._wanted = b""  # what Ray's key-value store is to have
        self._writing = asyncio.Lock()

    async def fate(self, worker_id: str, node_id: str, job_id: str) -> Document | None:
        fate: Document | None = await in_thread(_fate, worker_id, node_id, job_id)
        return fate

    async def last_words(self, identity: Document) -> Document | None:
        if identity["node_id"] != self.place["node_id"]:
            return None
        from .kernel import killed_for_memory
        from .lastwords import last_words

        return last_words(error_log(identity)) or killed_for_memory(identity["pid"], identity["role"])

    async def onlook(self, node_id: str, op: str, timeout: float, arguments: Document) -> Document:
        return await self._onlookers.ask(node_id, op, timeout, arguments)

    async def deaths(self, task_ids: list[str], job_id: str) -> list[Document]:
        found: list[Document] = await in_thread(_deaths, task_ids, job_id)
        return found

    async def stores(self) -> list[Document]:
        from .ray_stores import stores

        found: list[Document] = await in_thread(stores)
        return found

    async def is_over(self, job_id: str) -> bool:
        return bool(await until_done(partial(_is_over, job_id)))

    async def keep(self, breakpoints: list[Document]) -> None:
        self._wanted = json.dumps({**self.place, "breakpoints": breakpoints}).encode()
        async with self._writing:  # one at a time, and the last word is the newest
            await until_done(self._write)

    def _write(self) -> None:
        gcs().internal_kv_put(KV_HUB, self._wanted, True, KV_NAMESPACE, timeout=KV_SECONDS)


def _fate(worker_id: str, node_id: str, job_id: str) -> Document | None:
    """How a worker ended, as Ray has it; None while Ray thinks that it lives."""
    import ray

    if not any(node["NodeID"] == node_id and node["Alive"] for node in ray.nodes()):
        return {"reason": "the node was lost"}
    info = _worker_info(worker_id)
    if info is None or info.is_alive:
        return None
    kind = _generated("common_pb2").WorkerExitType.Name(info.exit_type)
    detail = in_short(str(info.exit_detail))
    ended = info.end_time_ms / 1000 if info.end_time_ms else None
    if kind in EXPECTED_EXITS or (ENDED_BY_RAY in detail and _is_over(job_id)):
        return {"reason": f"the process died: {detail}", "kind": kind, "crashed": False, "time": ended}
    actor = _actor_of(worker_id)
    return {
        "reason": f"the process died: {detail}",
        "kind": kind,
        "crashed": True,
        "role": actor.class_name if actor else "",
        "actor": actor.name if actor else "",
        "pid": info.pid,
        "task": _task_of(worker_id, job_id),
        "time": ended,
    }


def _task_of(worker_id: str, job_id: str) -> Document | None:
    """What it was at; None where Ray's table does not tell."""
    from .ray_tasks import of_worker

    try:
        return of_worker(worker_id, job_id) if job_id else None
    except Exception as error:  # noqa: BLE001 - a GCS that fails, or another Ray's: the crash is kept without a task
        say(f"the task of worker {worker_id} is not known: {error!r}")
        return None


def _is_over(job_id: str) -> bool:
    """Whether a job's driver has ended. Ray then ends its workers, and calls that unexpected now and then."""
    import ray

    return any(job["JobID"] == job_id and job["IsDead"] for job in ray._private.state.state.job_table())


def _actor_of(worker_id: str) -> Any:
    """Ray's record of the actor that lived in a worker; it may have died before its agent could tell."""
    import ray

    accessor = ray._private.state.state._connect_and_get_accessor()
    actor_data = _generated("gcs_pb2").ActorTableData
    actors = (actor_data.FromString(serialized) for serialized in accessor.get_actor_table(None, None))
    return next((actor for actor in actors if actor.address.worker_id.hex() == worker_id), None)


def _deaths(task_ids: list[str], job_id: str) -> list[Document]:
    """Workers that died at one of these tasks: {"identity"} beside their fate."""
    import ray

    from .ray_tasks import asker_of, of_ids

    ips = {node["NodeID"]: str(node["NodeManagerAddress"]) for node in ray.nodes()}
    found = []
    for row in of_ids(task_ids):
        fate = _fate(row["worker_id"], row["node_id"], job_id) if row["worker_id"] else None
        if fate is not None and fate.get("crashed"):
            ip = ips.get(row["node_id"], "")
            role, pid = fate.get("role") or WORKER, row["pid"] or fate["pid"]
            who = Identity(job_id, row["worker_id"], row["node_id"], ip, "", pid, role, actor=fate["actor"])
            task = {**row, "asked_by": asker_of(row)}
            found.append({**fate, "identity": who.to_json(), "task": task})
    return found


def _worker_info(worker_id: str) -> Any:
    """Ray's record of a worker; None for a process that Ray does not know, such as a child of a worker."""
    import ray

    accessor = ray._private.state.state._connect_and_get_accessor()
    try:
        serialized = accessor.get_worker_info(ray.WorkerID.from_hex(worker_id))
    except ValueError:
        return None
    return _generated("gcs_pb2").WorkerTableData.FromString(serialized) if serialized else None


def _generated(name: str) -> Any:
    """A module of Ray's messages; they have no types."""
    return importlib.import_module(f"ray.core.generated.{name}")


def announce(path: Path, place: Document, token: str) -> None:
    """For clients that ask the dashboard. Raises OSError where the folder is not this user's alone."""
    private.write(path, json.dumps(signed(place, token)))
