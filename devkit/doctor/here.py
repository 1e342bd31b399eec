"""This machine alone: the same probes, and an all-reduce between two processes of it."""

from __future__ import annotations

import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from devkit.doctor import travel
from devkit.doctor.onnode.driver import judged, not_ready
from devkit.doctor.onnode.facts import Collective, NodeFacts
from devkit.doctor.onnode.network import interfaces
from devkit.doctor.onnode.probe import Question, gather
from devkit.doctor.onnode.rank import Rank
from devkit.doctor.scene import Node

NODE = ""  # the id of a machine that is no node
RANKS = 2


def look(
    seconds: float, *, collective: bool, alone: bool, retrievers: tuple[tuple[str, int], ...] = ()
) -> tuple[Node, tuple[Collective, ...]]:
    """What there is to see within that time. `alone`: no cluster runs here, so Ray's ports should be free."""
    end = time.monotonic() + seconds
    addresses = own_addresses()
    question = Question(seconds=max(1.0, seconds - 1.0), addresses=addresses[:1], alone=alone, retrievers=retrievers)
    with ThreadPoolExecutor(1) as pool:
        probing = pool.submit(gather, question)
        collectives = _collectives(end) if collective else ()
        facts = probing.result()
    return _node(facts, addresses), collectives


def own_addresses() -> tuple[str, ...]:
    """Those by which others could reach this machine."""
    return tuple(a for each in interfaces() if each.up and not each.loopback for a in each.addresses if ":" not in a)


def _node(facts: NodeFacts, addresses: tuple[str, ...]) -> Node:
    gpus, cpus = float(len(facts.devices.gpus)), float(facts.limits.cpus)
    ip = addresses[0] if addresses else "127.0.0.1"
    return Node(
        NODE, ip, facts.network.hostname, facts, head=True, cpus=cpus, gpus=gpus, free_cpus=cpus, free_gpus=gpus
    )


def _collectives(end: float) -> tuple[Collective, ...]:
    """gloo, and NCCL where there are two GPUs."""
    environ = dict(os.environ)
    ranks = [Rank(travel.collective(), environ) for _ in range(RANKS)]
    try:
        with ThreadPoolExecutor(RANKS) as pool:
            words = list(pool.map(lambda rank: rank.answer(end - time.monotonic()), ranks))
            bad = next((word for word in words if word["status"] != "ready"), None)
            if bad is not None:
                return (not_ready({NODE: bad}, RANKS),)
            found = [_all_reduce("gloo", ranks, pool, end)]
            if all(word.get("gpus", 0) >= RANKS for word in words):
                found.append(_all_reduce("nccl", ranks, pool, end))
            return tuple(found)
    finally:
        for rank in ranks:
            rank.close()


def _all_reduce(backend: str, ranks: list[Rank], pool: ThreadPoolExecutor, end: float) -> Collective:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    job: dict[str, Any] = {"backend": backend, "world": RANKS, "host": "127.0.0.1", "port": port}
    seconds = max(1.0, end - time.monotonic())
    running = [
        pool.submit(rank.run, {**job, "rank": number, "gpu": number, "seconds": seconds})
        for number, rank in enumerate(ranks)
    ]
    answers = {f"{number}": future.result() for number, future in enumerate(running)}
    verdict = judged(backend, answers)
    errors = {f"{key.partition(' on ')[0]} on {NODE}": text for key, text in verdict.import_errors.items()}
    odd = (NODE,) if verdict.odd else ()
    return Collective(**{**vars(verdict), "odd": odd, "import_errors": errors})
