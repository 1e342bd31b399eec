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
from pathlib import Path
from typing import Any

from . import PROTOCOL
from .auth import cluster_token
from .hub import Hub, in_thread
from .hub_place import CRASH_FOLDER, HUB_FILE, KV_HUB, KV_NAMESPACE, error_log, gcs, log_folder, published
from .onlooker import Onlookers
from .relay import Relay
from .table import Document
from .wire import derive_key

NAME = f"devkit-hub-{PROTOCOL}"
NAMESPACE = "_devkit"
HEAD_RESOURCE = "node:__internal_head__"
START_SECONDS = 30.0

# Ends that nobody needs to hear of: the job is over, the worker was idle, ray.kill, exit_actor.
ADVICE = (" Some common causes include", " Traceback: ")
NO_WORD_AS_RAY_SAYS = "connection error code 2. End of file"
NO_WORD = "without a word, as by SIGKILL or the kernel's out-of-memory killer"
ENDED_BY_RAY = "SIGTERM"  # in Ray's words on a worker's end
EXPECTED_EXITS = frozenset({"INTENDED_SYSTEM_EXIT", "INTENDED_USER_EXIT"})


class HubActor:
    """What Ray makes, and makes again when it died. The hub has a thread and an event loop of its own in it."""

    def __init__(self) -> None:
        from .agent import stand_down

        stand_down()
        self._ready = threading.Event()
        self._place: Document = {}
        threading.Thread(target=self._run, name="devkit-hub", daemon=True).start()

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

    before = (published() or {}).get("breakpoints", [])
    hub_id = secrets.token_hex(16)
    folder = log_folder()
    surroundings = RaySurroundings()
    hub = Hub(derive_key(cluster_token(), hub_id), folder / CRASH_FOLDER, surroundings)
    hub.restore(before)
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
    surroundings.keep(before)
    _write_private(folder / HUB_FILE, surroundings.place)
    return surroundings.place, Relay(hub, hub_id, folder, gcs())


class RaySurroundings:
    """What the hub asks of Ray."""

    def __init__(self) -> None:
        self.place: Document = {}
        self._onlookers = Onlookers()

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

    def keep(self, breakpoints: list[Document]) -> None:
        value = json.dumps({**self.place, "breakpoints": breakpoints}).encode()
        gcs().internal_kv_put(KV_HUB, value, True, KV_NAMESPACE, timeout=5)


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
    if kind in EXPECTED_EXITS or (ENDED_BY_RAY in detail and _is_over(job_id)):
        return {"reason": f"the process died: {detail}", "kind": kind, "crashed": False}
    return {"reason": f"the process died: {detail}", "kind": kind, "crashed": True, "role": _class_of(worker_id)}


def _is_over(job_id: str) -> bool:
    """Whether a job's driver has ended. Ray then ends its workers, and calls that unexpected now and then."""
    import ray

    return any(job["JobID"] == job_id and job["IsDead"] for job in ray._private.state.state.job_table())


def in_short(detail: str) -> str:
    """What Ray says of a worker's end, without its advice.

    >>> in_short("Worker exits unexpectedly. Worker exits with an exit code 3.")
    'Worker exits unexpectedly. Worker exits with an exit code 3.'
    """
    text = " ".join(detail.split())
    for advice in ADVICE:
        text = text.partition(advice)[0]
    return NO_WORD if NO_WORD_AS_RAY_SAYS in text else text.strip()


def _class_of(worker_id: str) -> str:
    """The class of the actor that lived in a worker; it may have died before its agent could tell."""
    import ray

    accessor = ray._private.state.state._connect_and_get_accessor()
    actor_data = _generated("gcs_pb2").ActorTableData
    actors = (actor_data.FromString(serialized) for serialized in accessor.get_actor_table(None, None))
    return next((actor.class_name for actor in actors if actor.address.worker_id.hex() == worker_id), "")


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


def _write_private(path: Path, document: Document) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = path.with_suffix(f".{os.getpid()}")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(document, file)
    new.replace(path)
