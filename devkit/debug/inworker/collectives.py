"""The collectives of this process, from torch's own flight recorder: which are under way in which group, since when.

torch 2.13 records them for gloo as well as for NCCL, without being asked. Nothing of torch is imported here: what the
program has not loaded it does not use.
"""

from __future__ import annotations

import json
import sys
import time
from types import FrameType
from typing import Any

Document = dict[str, Any]

KEPT = 8  # entries of each group that are told, the newest ones
_DUMPS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")  # of gloo and others; of NCCL
_TORCH = ("/torch/distributed/", "/torch/_ops.py")
# Arguments of a collective's call that must be equal on all ranks, or say who is waited for.
_TOLD = ("src", "dst", "group_src", "group_dst", "tag", "world_size")


def groups() -> list[Document]:
    """Each process group that this rank is in, with its newest collectives; empty without torch.distributed."""
    module = sys.modules.get("torch.distributed.distributed_c10d")
    torch = sys.modules.get("torch")
    core = getattr(getattr(torch, "_C", None), "_distributed_c10d", None)
    world = getattr(module, "_world", None)
    if core is None or world is None:
        return []
    recorded = _recorded(core)
    found = []
    for group, (backend, store) in list(getattr(world, "pg_map", {}).items()):
        name = str(getattr(group, "group_name", ""))
        ranks = sorted(getattr(world, "pg_group_ranks", {}).get(group, {}))
        entries = recorded.get(name, [])
        found.append(
            {
                "name": name,
                "description": str(getattr(group, "group_desc", "") or ""),
                "backend": str(backend),
                "world": _meeting_place(store),
                "ranks": [int(rank) for rank in ranks],
                "entries": entries[-KEPT:],
                "recorded": bool(recorded),
            }
        )
    return found


def _meeting_place(store: Any) -> str:
    """Where the ranks of a group have met: two groups of one name in one job are told apart by it."""
    for _ in range(8):
        inner = getattr(store, "underlying_store", None)
        if inner is None:
            break
        store = inner
    host, port = getattr(store, "host", None), getattr(store, "port", None)
    return f"{host}:{port}" if host else str(getattr(store, "path", "") or "")


def _recorded(core: Any) -> dict[str, list[Document]]:
    """The flight recorder's entries by group, the oldest first."""
    now = time.time()
    found: dict[str, list[Document]] = {}
    for name in _DUMPS:
        dump = getattr(core, name, None)
        if dump is None:
            continue
        try:
            document = json.loads(dump())
        except Exception:  # noqa: BLE001 - a torch whose recorder is another: the stacks tell without it
            continue
        for entry in document.get("entries") or ():
            found.setdefault(str((entry.get("process_group") or [""])[0]), []).append(_entry(entry, now))
    return found


def _entry(entry: Document, now: float) -> Document:
    p2p = bool(entry.get("is_p2p"))
    return {
        "seq": int(entry.get("p2p_seq_id" if p2p else "collective_seq_id") or 0),
        "p2p": p2p,
        "op": str(entry.get("profiling_name") or "").partition(":")[2] or str(entry.get("profiling_name") or ""),
        "sizes": entry.get("input_sizes") or [],
        "dtypes": entry.get("input_dtypes") or [],
        "state": str(entry.get("state") or ""),
        "done": bool(entry.get("retired")) or entry.get("state") == "completed",
        "age": round(max(0.0, now - int(entry.get("time_created_ns") or 0) / 1e9), 3),
    }


def call_of(frame: FrameType) -> Document | None:
    """The collective that a frame of torch.distributed is a call of, with what it was given; None for another frame."""
    code = frame.f_code
    if _TORCH[0] not in code.co_filename or code.co_name.startswith("_") or code.co_name == "wrapper":
        return None
    values = frame.f_locals
    found: Document = {"op": code.co_name}
    for name in _TOLD:
        if isinstance(values.get(name), (int, str, bool)):
            found[name] = values[name]
    group = values.get("group")
    if group is not None and hasattr(group, "group_name"):
        found["group"] = str(group.group_name)
    shapes = [_shape(value) for name, value in list(values.items()) if "tensor" in name]
    if shapes := [shape for shape in shapes if shape is not None]:
        found["sizes"] = shapes
    return found


def _shape(value: Any) -> list[int] | None:
    kind: Any = getattr(sys.modules.get("torch"), "Tensor", None)
    return [int(size) for size in value.shape] if kind is not None and isinstance(value, kind) else None
