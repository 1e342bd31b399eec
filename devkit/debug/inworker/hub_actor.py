"""The hub as a Ray actor: one per cluster, detached, made by whichever process of a debugged job comes first.

It publishes where it listens in Ray's key-value store, for the agents, and in a file among Ray's logs, which the
dashboard gives to who has the cluster's token. Clients that reach nothing but the dashboard speak to it through
`relay.py`.
"""

from __future__ import annotations

import asyncio
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

from . import PROTOCOL, fates, private, ray_tasks, threads, unmet
from .auth import cluster_token
from .blocking import in_thread, until_done
from .hub import Hub
from .hub_links import raise_files
from .hub_place import (
    CRASH_FOLDER,
    HUB_FILE,
    HUB_NAME,
    KV_HUB,
    KV_NAMESPACE,
    KV_SECONDS,
    error_log,
    gcs,
    log_folder,
    published,
    signed,
)
from .onlooker import Onlookers, look
from .relay import Relay
from .table import Document
from .wire import derive_key
from .words import say

NAME = f"{HUB_NAME}-{PROTOCOL}"
NAMESPACE = "_devkit"
HEAD_RESOURCE = "node:__internal_head__"
START_SECONDS = 30.0
SPARE_HOOK = "DEVKIT_SPARE_HOOK"  # ship.py reads it
spares_hook = False  # whether the job has a set-up hook of its own; a runtime_env for the hub costs a second


class DevkitHub:
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
        ray.remote(DevkitHub)
        .options(
            name=NAME,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=-1,
            resources={HEAD_RESOURCE: 0.001},
            **({"runtime_env": {"env_vars": {SPARE_HOOK: "1"}}} if spares_hook else {}),
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
        fate: Document | None = await in_thread(fates.fate, worker_id, node_id, job_id)
        return fate

    async def last_words(self, identity: Document) -> Document | None:
        if identity["node_id"] != self.place["node_id"]:
            return None
        from .kernel import killed_for_memory
        from .lastwords import last_words

        return last_words(error_log(identity)) or killed_for_memory(identity["pid"], identity["role"])

    def is_here(self, node_id: str) -> bool:
        return bool(node_id == self.place["node_id"])

    async def onlook(self, node_id: str, op: str, timeout: float, arguments: Document) -> Document:
        if self.is_here(node_id):  # the hub itself is there; an actor would have to start first
            found: Document = await in_thread(look, op, arguments)
            return found
        return await self._onlookers.ask(node_id, op, timeout, arguments)

    async def deaths(self, task_ids: list[str], job_id: str) -> list[Document]:
        found: list[Document] = await in_thread(fates.deaths, task_ids, job_id)
        return found

    async def unheard(self, worker_id: str) -> Document:
        return next((each for each in unmet.found() if each["identity"]["worker_id"] == worker_id), {})

    def is_gone(self, identity: Document) -> bool:
        from .lastwords import lives

        return identity["node_id"] == self.place["node_id"] and not lives(identity["pid"])

    async def stores(self) -> list[Document]:
        from .ray_stores import stores

        found: list[Document] = await in_thread(stores)
        return found

    async def named(self, name: str) -> list[Document]:
        found: list[Document] = await in_thread(fates.named, name)
        return found

    async def instance(self, actor: str, job_id: str) -> Document | None:
        found: Document | None = await in_thread(fates.instance, actor, job_id)
        return found

    async def is_tried_again(self, task_id: str, attempt: int) -> bool:
        return bool(await in_thread(ray_tasks.is_tried_again, task_id, attempt))

    async def orphaned(self, job_id: str) -> list[Document]:
        found: list[Document] = await in_thread(fates.orphaned, job_id)
        return found

    async def is_over(self, job_id: str) -> bool:
        return bool(await until_done(partial(fates.is_over, job_id)))

    async def keep(self, breakpoints: list[Document]) -> None:
        self._wanted = json.dumps({**self.place, "breakpoints": breakpoints}).encode()
        async with self._writing:  # one at a time, and the last word is the newest
            await until_done(self._write)

    def _write(self) -> None:
        gcs().internal_kv_put(KV_HUB, self._wanted, True, KV_NAMESPACE, timeout=KV_SECONDS)


def announce(path: Path, place: Document, token: str) -> None:
    """For clients that ask the dashboard. Raises OSError where the folder is not this user's alone."""
    private.write(path, json.dumps(signed(place, token)))
