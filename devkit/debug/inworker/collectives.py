"""The collectives of this process, from torch's own flight recorder: which are under way in which group, since when.

torch 2.13 records them for gloo as well as for NCCL, without being asked. Nothing of torch is imported here: what the
program has not loaded it does not use.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

Document = dict[str, Any]

KEPT = 8  # collectives of each group that are told, the newest ones, and as many transfers between two ranks
_DUMPS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")  # of gloo and others; of NCCL
_BATCH = "coalesced"
_TRANSFER = re.compile(r"(?P<op>send|recv) \d+(->|<-)(?P<peer>\d+)")  # numbers within the group
_TORCH = ("/torch/distributed/", "/torch/_ops.py")
# Arguments of a collective's call that must be equal on all ranks, or say who is waited for.
_TOLD = ("src", "dst", "group_src", "group_dst", "tag", "world_size", "rank", "init_method")
_MAKES = "new_group"  # named, on each rank by itself, by how many have been made before
_MEETS = "_create_c10d_store"  # in which ranks wait for each other; it knows what `env://` means


def groups() -> list[Document]:
    """Each process group that this rank is in, with its newest collectives; empty without torch.distributed.

    A group with two backends counts the collectives of each by itself, and is told as two. Of groups that a program
    makes of torch's parts, without `new_group`, torch knows no ranks: one is told while something is under way in it.
    """
    module = sys.modules.get("torch.distributed.distributed_c10d")
    torch = sys.modules.get("torch")
    core = getattr(getattr(torch, "_C", None), "_distributed_c10d", None)
    world = getattr(module, "_world", None)
    if core is None or world is None:
        return []
    entries, now = _recorded(core), time.time()
    found = [group for each in list(world.pg_map) for group in _listed(world, each, entries, now)]
    others = _unlisted((each for each in entries if not _group_name(each)), now)
    return found + [each for each in others if not all(one["done"] for one in each["entries"])]


def _listed(world: Any, group: Any, entries: Sequence[Document], now: float) -> Iterator[Document]:
    """A group that torch.distributed knows, once for each of its backends."""
    backend, store = world.pg_map[group]
    name = str(getattr(group, "group_name", ""))
    config = str(getattr(world, "pg_backend_config", {}).get(group) or backend)
    numbers = getattr(world, "pg_group_ranks", {}).get(group, {})  # in the group, by rank
    ordered = [int(rank) for rank in sorted(numbers, key=numbers.get)]
    own = [each for each in entries if _group_name(each) == name]
    backends = sorted({each.rpartition(":")[2] for each in config.split(",")})
    for each in backends:
        # A title without a backend's name is of the one that is not the host's.
        of = [one for one in own if _backend_of(one, backends) == each]
        yield {
            "name": name,
            "description": str(getattr(group, "group_desc", "") or ""),
            "backend": each,
            "world": _meeting_place(store),
            "ranks": sorted(ordered),
            "entries": told(of, ordered, now),
        }


def _backend_of(entry: Document, backends: Sequence[str]) -> str:
    named = _titled(entry)[0]
    return named if named in backends else next((each for each in backends if each != "gloo"), backends[0])


def _unlisted(entries: Iterable[Document], now: float) -> Iterator[Document]:
    """What no listed group did, by the group that did it."""
    others: dict[tuple[str, str], list[Document]] = {}
    for entry in entries:
        others.setdefault((_titled(entry)[0], str(entry.get("pg_id"))), []).append(entry)
    for (backend, number), own in others.items():
        known = {"name": f"{backend} {number}", "description": _group_name(own[0]), "backend": backend, "world": ""}
        yield {**known, "ranks": [], "entries": told(own, (), now)}


def _meeting_place(store: Any) -> str:
    """Where the ranks of a group have met: two groups of one name in one job are told apart by it."""
    for _ in range(8):
        inner = getattr(store, "underlying_store", None)
        if inner is None:
            break
        store = inner
    host, port = getattr(store, "host", None), getattr(store, "port", None)
    return f"{host}:{port}" if host else str(getattr(store, "path", "") or "")


def _recorded(core: Any) -> list[Document]:
    """What torch's flight recorders have, each one's oldest entry first."""
    found: list[Document] = []
    for name in _DUMPS:
        dump = getattr(core, name, None)
        if dump is None:
            continue
        try:
            found += json.loads(dump()).get("entries") or ()
        except Exception:  # noqa: BLE001 - a torch whose recorder is another: the stacks tell without it
            continue
    return found


def told(entries: Sequence[Document], ranks: Sequence[int], now: float) -> list[Document]:
    """The newest of one group's entries, for the hub; `ranks` are the group's, in its order."""
    ours = [_entry(each, ranks, now) for each in _ended(entries)]
    kept = {id(each) for p2p in (False, True) for each in [one for one in ours if one["p2p"] is p2p][-KEPT:]}
    return [each for each in ours if id(each) in kept]


def _ended(entries: Sequence[Document]) -> Iterator[Document]:
    """NCCL ends what was begun as a batch as one: of its entries only the last, `coalesced`, says when that was."""
    batches = {_number(each): each for each in entries if _titled(each)[1] == _BATCH}
    within = {_number(each) for each in entries if _titled(each)[1] != _BATCH}
    collectives = {number for number, _ in within}
    through = max((i for i, each in enumerate(entries) if each.get("state") == "completed"), default=-1)
    for place, entry in enumerate(entries):
        number, batch = _number(entry), batches.get(_number(entry))
        if batch is None:
            # What a CUDA graph has captured never ends in the recorder: what ran behind it has.
            if not (entry.get("is_p2p") and not _is_done(entry) and place < through):
                yield entry
        elif batch is not entry:
            yield {**entry, "state": batch.get("state"), "retired": batch.get("retired")}
        elif number not in within and not _is_done(entry):  # the recorder has forgotten what it ends
            yield {**entry, "is_p2p": number[0] in collectives}


def _number(entry: Document) -> tuple[int, int]:
    return int(entry.get("collective_seq_id") or 0), int(entry.get("p2p_seq_id") or 0)


def _is_done(entry: Document) -> bool:
    return bool(entry.get("retired")) or entry.get("state") == "completed"


def _group_name(entry: Document) -> str:
    return str((entry.get("process_group") or [""])[0])


def _titled(entry: Document) -> tuple[str, str]:
    """Backend and operation: "nccl:recv 1<-0" is NCCL's, and of rank 1 of the group from its rank 0."""
    backend, _, op = str(entry.get("profiling_name") or "").partition(":")
    return (backend, op) if op else ("", backend)


def _entry(entry: Document, ranks: Sequence[int], now: float) -> Document:
    p2p = bool(entry.get("is_p2p"))
    op = _titled(entry)[1]
    between = _TRANSFER.fullmatch(op)
    peer = int(between["peer"]) if between else None
    return {
        "seq": int(entry.get("p2p_seq_id" if p2p else "collective_seq_id") or 0),
        "p2p": p2p,
        "op": between["op"] if between else op,
        "peer": ranks[peer] if peer is not None and peer < len(ranks) else None,
        "sizes": entry.get("input_sizes") or [],
        "dtypes": entry.get("input_dtypes") or [],
        "state": str(entry.get("state") or ""),
        "done": _is_done(entry),
        "age": round(max(0.0, now - int(entry.get("time_created_ns") or 0) / 1e9), 3),
    }


def call_of(frame: FrameType) -> Document | None:
    """The collective that a frame of torch.distributed is a call of, with what it was given; None for another frame."""
    code = frame.f_code
    if _TORCH[0] not in code.co_filename or code.co_name.startswith("_") or code.co_name == "wrapper":
        return None
    if not code.co_flags & inspect.CO_OPTIMIZED:  # of a module or a class, while it is imported
        return None
    values = frame.f_locals
    found: Document = {"op": code.co_name}
    for name in _TOLD:
        if isinstance(values.get(name), (int, str, bool)):
            found[name] = values[name]
    if code.co_name == _MAKES:
        found |= _being_made(values)
    if place := _meeting_place(values.get("store")):
        found["place"] = place
    group = values.get("group")
    if group is not None and hasattr(group, "group_name"):
        found["group"] = str(group.group_name)
    shapes = [_shape(value) for name, value in list(values.items()) if "tensor" in name]
    if shapes := [shape for shape in shapes if shape is not None]:
        found["sizes"] = shapes
    return found


def _being_made(values: Mapping[str, Any]) -> Document:
    """{"ranks": of the group that is being made, "made": how many this rank has made before}.

    Empty where that does not name the group, or where another torch counts otherwise.
    """
    world, ranks = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None), values.get("ranks")
    count = getattr(world, "group_count", None)
    if world is None or not isinstance(count, int) or values.get("use_local_synchronization"):
        return {}
    try:
        every = sorted(map(int, next(iter(world.pg_group_ranks.values())) if ranks is None else ranks))
    except (AttributeError, StopIteration, TypeError, ValueError):
        return {}
    return {"ranks": every, "made": count - 1}  # it has counted itself


def meeting_of(frame: FrameType) -> Document | None:
    """What ranks that wait for each other were told, by the environment or by an address; None for another frame.

    `init_process_group` has -1 for what it was not given, until all of them have come.
    """
    code, values = frame.f_code, frame.f_locals
    if _TORCH[0] not in code.co_filename or code.co_name != _MEETS:
        return None
    found = {name: values[name] for name in ("rank", "world_size") if isinstance(values.get(name), int)}
    return {**found, "place": f"{values.get('hostname')}:{values.get('port')}"}


def _shape(value: Any) -> list[int] | None:
    kind: Any = getattr(sys.modules.get("torch"), "Tensor", None)
    return [int(size) for size in value.shape] if kind is not None and isinstance(value, kind) else None
