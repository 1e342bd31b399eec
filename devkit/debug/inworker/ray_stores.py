"""The object stores of the nodes, as their raylets have them at this moment: full, spilling, and by whom."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

ASK_SECONDS = 2.0
MOST_NODES = 256
MOST_BYTES = 64 << 20  # of one answer: each object that is referred to has a line in it
HIGH = 0.9  # of a store that is almost full
MOST_HOLDERS = 5  # of one node, that are told

Document = dict[str, Any]


def stores() -> list[Document]:
    """One document for each node that answers; sizes in bytes, and totals since Ray was started there."""
    import ray

    with ExitStack() as stack:
        nodes = [_Node(each, stack) for each in ray.nodes() if each["Alive"]][:MOST_NODES]
        found = [(node, document) for node in nodes if (document := _store(node)) is not None]
        busy = [node for node, document in found if _is_news(document)]
        for node in busy:
            node.ask(with_objects=True)  # of all at once; what holds a store is asked of no other one
        return [{**document, "holders": _holders(node) if node in busy else []} for node, document in found]


class _Node:
    """A raylet that has been asked."""

    def __init__(self, row: Document, stack: ExitStack) -> None:
        from ray._private.grpc_utils import init_grpc_channel

        self.row = row
        address = f"{row['NodeManagerAddress']}:{row['NodeManagerPort']}"
        channel = init_grpc_channel(address, options=[("grpc.max_receive_message_length", MOST_BYTES)])
        stack.callback(channel.close)
        self._stub = _generated("node_manager_pb2_grpc").NodeManagerServiceStub(channel)
        self.ask(with_objects=False)

    def ask(self, *, with_objects: bool) -> None:
        request = _generated("node_manager_pb2").GetNodeStatsRequest(include_memory_info=with_objects)
        self._answer = self._stub.GetNodeStats.future(request, timeout=ASK_SECONDS)

    def answer(self) -> Any:
        """None: it is busy, or gone meanwhile, or has too much to tell."""
        try:
            return self._answer.result()
        except Exception:  # noqa: BLE001 - of gRPC's kinds: of that node nothing is known now
            return None


def _store(node: _Node) -> Document | None:
    reply = node.answer()
    if reply is None:
        return None
    stats = reply.store_stats
    return {
        "node_id": str(node.row["NodeID"]),
        "node_ip": str(node.row["NodeManagerAddress"]),
        "used": int(stats.object_store_bytes_used),
        "total": int(stats.object_store_bytes_avail),  # Ray's name for what there is altogether
        "beside": int(stats.object_store_bytes_fallback),  # on the disk, since nothing could be spilled
        "spilled": int(stats.spilled_bytes_total),
        "spilled_objects": int(stats.spilled_objects_total),
        "restored": int(stats.restored_bytes_total),
        "queued": int(stats.object_pulls_queued),  # asked for by tasks, and no room for them yet
    }


def _is_news(store: Document) -> bool:
    return bool(store["spilled"] or store["queued"] or store["beside"] or store["used"] >= HIGH * store["total"])


def _holders(node: _Node) -> list[Document]:
    """Who refers to most of what there is, in the store or spilled from it."""
    reply = node.answer()
    found = [
        {"worker_id": each.worker_id.hex(), "pid": int(each.pid), "bytes": _bytes(each.object_refs)}
        for each in (reply.core_workers_stats if reply is not None else ())
    ]
    return sorted((each for each in found if each["bytes"]), key=lambda each: -each["bytes"])[:MOST_HOLDERS]


def _bytes(references: Iterable[Any]) -> int:
    return sum(int(each.object_size) for each in references if each.object_size > 0 and each.local_ref_count > 0)


def _generated(name: str) -> Any:
    return importlib.import_module(f"ray.core.generated.{name}")
