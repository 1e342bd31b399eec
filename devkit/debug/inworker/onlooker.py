"""Looks for the hub at a process on whose node no other worker is: an actor there, made when it is needed.

A node with one GPU has one rank, and nobody beside it who could say that it is frozen, or what it died of.
"""

from __future__ import annotations

import asyncio
from typing import Any

from .blocking import in_thread
from .hub_place import OWN
from .table import Document

IDLE_SECONDS = 60.0  # after the last question the actor goes
NAME = f"{OWN}onlooker"


class DevkitOnlooker:
    """What Ray makes on the node."""

    def __init__(self) -> None:
        from .agent import stand_down

        stand_down()

    def ask(self, op: str, arguments: Document) -> Document:
        """One of the operations that need no agent."""
        return look(op, arguments)


def look(op: str, arguments: Document) -> Document:
    """What this process sees of one beside it."""
    from .operations import OPERATIONS

    try:
        return OPERATIONS[op](None, arguments)
    except Exception as error:  # noqa: BLE001 - the hub tells whoever asked
        return {"error": str(error) or repr(error)}


class Onlookers:
    """One actor for each node that was asked about, as long as there are questions."""

    def __init__(self) -> None:
        self._actors: dict[str, Any] = {}
        self._ends: dict[str, asyncio.TimerHandle] = {}

    async def ask(self, node_id: str, op: str, timeout: float, arguments: Document) -> Document:
        """The answer of the one on that node, or an `error`: the node may be out of reach."""
        if node_id in self._ends:
            self._ends.pop(node_id).cancel()
        try:
            return dict(await in_thread(self._ask, node_id, op, timeout, arguments))
        except Exception as error:  # noqa: BLE001 - Ray has many; each means that nobody there could look
            if type(error).__name__ != "GetTimeoutError":  # that one may still be coming up
                self._end(node_id)
            return {"error": f"nothing on its node responds: {type(error).__name__}"}
        finally:
            if node_id in self._actors:
                loop = asyncio.get_running_loop()
                self._ends[node_id] = loop.call_later(IDLE_SECONDS, self._end, node_id)

    def _ask(self, node_id: str, op: str, timeout: float, arguments: Document) -> Any:
        import ray

        if node_id not in self._actors:
            self._actors[node_id] = _make(node_id)
        return ray.get(self._actors[node_id].ask.remote(op, arguments), timeout=timeout)

    def _end(self, node_id: str) -> None:
        import ray

        actor = self._actors.pop(node_id, None)
        if actor is not None:
            ray.kill(actor)


def _make(node_id: str) -> Any:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(node_id, soft=False)
    name = f"{NAME}-{node_id[:12]}"
    options = {"name": name, "get_if_exists": True, "num_cpus": 0, "max_concurrency": 8}
    return ray.remote(DevkitOnlooker).options(**options, scheduling_strategy=there).remote()
