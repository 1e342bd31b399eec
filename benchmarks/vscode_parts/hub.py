"""The hub without Ray, as a process: prints where it is, and serves until its stdin ends."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from devkit.debug.inworker import wire
from devkit.debug.inworker.hub import Hub

HUB_ID = "benchmark"


class Nowhere:
    """A cluster of which nothing is known."""

    async def fate(self, worker_id: str, node_id: str, job_id: str) -> dict[str, Any] | None:
        return {"reason": "it ended", "crashed": False}

    async def last_words(self, identity: dict[str, Any]) -> dict[str, Any] | None:
        return None

    def is_here(self, node_id: str) -> bool:
        return False

    async def onlook(self, node_id: str, op: str, timeout: float, arguments: dict[str, Any]) -> dict[str, Any]:
        return {"error": "nobody is there"}

    async def deaths(self, task_ids: list[str], job_id: str) -> list[dict[str, Any]]:
        return []

    def is_gone(self, identity: dict[str, Any]) -> bool:
        return False

    async def unheard(self, worker_id: str) -> dict[str, Any]:
        return {}

    async def named(self, name: str) -> list[dict[str, Any]]:
        return []

    async def instance(self, actor: str, job_id: str) -> dict[str, Any] | None:
        return None

    async def is_tried_again(self, task_id: str, attempt: int) -> bool:
        return False

    async def orphaned(self, job_id: str) -> list[dict[str, Any]]:
        return []

    async def stores(self) -> list[dict[str, Any]]:
        return []

    async def is_over(self, job_id: str) -> bool:
        return False

    async def keep(self, breakpoints: list[dict[str, Any]]) -> None: ...


async def serve(folder: Path) -> None:
    hub = Hub(wire.derive_key("", HUB_ID), folder, Nowhere())
    port = await hub.serve("127.0.0.1")
    place = {"hub_id": HUB_ID, "host": "127.0.0.1", "port": port, "node_id": "node"}
    print(json.dumps(place), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await hub.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(serve(Path(folder)))
