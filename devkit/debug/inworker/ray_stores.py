"""The object stores of the nodes, as their raylets have them at this moment: full, spilling, and by whom."""

from __future__ import annotations

import importlib
from typing import Any

ASK_SECONDS = 2.0
MOST_NODES = 256
MOST_HOLDERS = 5  # of one node, that are told

Document = dict[str, Any]


def stores() -> list[Document]:
    """One document for each node that answers; sizes in bytes, and totals since Ray was started there."""
    import ray
    from ray._private.grpc_utils import init_grpc_channel

    messages = importlib.import_module("ray.core.generated.node_manager_pb2")
    services = importlib.import_module("ray.core.generated.node_manager_pb2_grpc")
    asked, channels = [], []
    try:
        for node in [each for each in ray.nodes() if each["Alive"]][:MOST_NODES]:
            channel = init_grpc_channel(f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}")
            channels.append(channel)
            request = messages.GetNodeStatsRequest(include_memory_info=False)
            stub = services.NodeManagerServiceStub(channel)
            asked.append((node, stub.GetNodeStats.future(request, timeout=ASK_SECONDS)))
        return [each for node, answer in asked if (each := _store(node, answer)) is not None]
    finally:
        for channel in channels:
            channel.close()


def _store(node: Document, answer: Any) -> Document | None:
    try:
        reply = answer.result()
    except Exception:  # noqa: BLE001 - a node that is busy, or gone meanwhile: of that nothing is known now
        return None
    stats = reply.store_stats
    workers = sorted(reply.core_workers_stats, key=lambda each: -each.used_object_store_memory)
    return {
        "node_id": str(node["NodeID"]),
        "node_ip": str(node["NodeManagerAddress"]),
        "used": int(stats.object_store_bytes_used),
        "total": int(stats.object_store_bytes_avail),  # Ray's name for what there is altogether
        "beside": int(stats.object_store_bytes_fallback),  # on the disk, since nothing could be spilled
        "spilled": int(stats.spilled_bytes_total),
        "spilled_objects": int(stats.spilled_objects_total),
        "restored": int(stats.restored_bytes_total),
        "queued": int(stats.object_pulls_queued),  # asked for by tasks, and no room for them yet
        "holders": [
            {"worker_id": each.worker_id.hex(), "pid": int(each.pid), "bytes": int(each.used_object_store_memory)}
            for each in workers[:MOST_HOLDERS]
            if each.used_object_store_memory
        ],
    }
