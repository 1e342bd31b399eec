"""What is to be said of the nodes' object stores: a run that spills is slow, one with a full store waits. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from devkit.debug.naming import count, short_path, size

FULL = 0.95
SLOW = 1 << 20  # bytes a second: less is no news


@dataclass(frozen=True)
class Holder:
    """A process with objects in a store."""

    who: str
    pid: int
    bytes: int
    at: str = ""  # where it puts most of them


@dataclass(frozen=True)
class Store:
    """That of one node. Bytes; what was spilled and restored since Ray was started there."""

    node_id: str
    ip: str
    used: int
    total: int
    beside: int
    spilled: int
    restored: int
    queued: int
    holders: tuple[Holder, ...] = ()

    @property
    def is_full(self) -> bool:
        return self.total > 0 and self.used >= self.total * FULL


@dataclass(frozen=True)
class Stores:
    """Those of all nodes that answer, at a time in seconds."""

    time: float = 0.0
    nodes: tuple[Store, ...] = ()

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Stores:
        """Of the hub's answer."""
        return cls(float(answer["time"]), tuple(_store(each) for each in answer["stores"]))


def _store(document: Mapping[str, Any]) -> Store:
    holders = tuple(
        Holder(str(each.get("role") or "process"), int(each["pid"]), int(each["bytes"]), _site(each.get("puts") or []))
        for each in document.get("holders") or ()
    )
    names = ("used", "total", "beside", "spilled", "restored", "queued")
    numbers = {name: int(document.get(name) or 0) for name in names}
    return Store(str(document["node_id"]), str(document["node_ip"]), holders=holders, **numbers)


def _site(puts: Sequence[Mapping[str, Any]]) -> str:
    best = max(puts, key=lambda each: len(each["objects"]), default=None)
    return f"{short_path(str(best['file']))}:{best['line']} in {best['function']}" if best else ""


def lines(before: Stores, now: Stores) -> Iterator[str]:
    """A line for each node whose store is full, or that has spilled between both."""
    earlier = {each.node_id: each for each in before.nodes}
    seconds = now.time - before.time
    for each in now.nodes:
        if news := _news(earlier.get(each.node_id), each, seconds):
            yield f"object store of {each.ip}: {news}{_holders(each)}"


def is_spilling(before: Stores, now: Stores) -> bool:
    """Whether a node writes objects to its disk, or reads them back, all the time."""
    earlier = {each.node_id: each for each in before.nodes}
    return any(max(_rates(earlier.get(each.node_id), each, now.time - before.time)) >= SLOW for each in now.nodes)


def _news(before: Store | None, now: Store, seconds: float) -> str:
    out, back = _rates(before, now, seconds)
    parts = []
    if now.is_full or (now.queued and now.total):
        parts.append(f"{'full' if now.is_full else 'in use'}: {size(now.used)} of {size(now.total)}")
    if out >= SLOW:
        parts.append(f"spills {size(int(out))}/s to disk ({size(now.spilled)} so far)")
    elif now.spilled and parts:
        parts.append(f"{size(now.spilled)} spilled to disk so far")
    if back >= SLOW:
        parts.append(f"reads back {size(int(back))}/s")
    if now.beside:
        parts.append(f"{size(now.beside)} more on disk, since nothing in it could be spilled")
    if now.queued:
        parts.append(f"{count(now.queued, 'object')} wait for room")
    return ", ".join(parts)


def _rates(before: Store | None, now: Store, seconds: float) -> tuple[float, float]:
    """Bytes a second that are spilled and read back."""
    if before is None or seconds <= 0:
        return 0.0, 0.0
    return (now.spilled - before.spilled) / seconds, (now.restored - before.restored) / seconds


def _holders(store: Store) -> str:
    most = store.holders[0] if store.holders else None
    if most is None:
        return ""
    at = f", put at {most.at}" if most.at else ""
    return f"; most is held by {most.who} pid {most.pid}: {size(most.bytes)}{at}"
