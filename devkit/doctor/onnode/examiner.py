"""The actor that looks at one node of a cluster. Nothing that it meets may leave it as an exception.

Where post-mortem debugging pauses what fails, an exception would stop the actor in the debugger.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

from .facts import Pair
from .links import Listener, reach, stream
from .machine import raylet
from .probe import Question, at_once, gather
from .rank import Rank, environment

Document = dict[str, Any]


class Examiner:
    """Answers are JSON documents; one with `failure` says why there is no other."""

    def __init__(self, node_id: str, key: bytes, program: str) -> None:
        """`program` is the source of `collective.py`; empty: no all-reduce is wanted."""
        self._node_id = node_id
        self._key = key
        self._listener = Listener(key)
        self._rank = Rank(program, environment(raylet()[0])) if program else None

    def hello(self) -> Document:
        return {"port": self._listener.port, "pid": os.getpid()}

    def clock(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def probe(self, question: Document) -> Document:
        return _guarded(lambda: asdict(gather(Question(**question))))

    def reach(self, targets: list[tuple[str, str, int]]) -> Document:
        """Pairs from this node to all of these (node id, address, port), at once."""

        def look() -> Document:
            probes = {
                node: partial(reach, self._pair(node, address), port, self._key) for node, address, port in targets
            }
            found, failed = at_once(probes, time.monotonic() + 10.0)
            late = {
                node: Pair(self._node_id, node, address, failed[node]) for node, address, _ in targets if node in failed
            }
            return {node: asdict(pair) for node, pair in {**found, **late}.items()}

        return _guarded(look)

    def stream(self, node: str, address: str, port: int) -> Document:
        return _guarded(lambda: asdict(stream(self._pair(node, address), port, self._key)))

    def free_port(self) -> int:
        with socket.create_server(("", 0)) as server:
            return int(server.getsockname()[1])

    def ready(self, seconds: float) -> Document:
        """Whether torch is there: its first word."""
        rank = self._rank
        return _guarded(lambda: rank.answer(seconds) if rank else {"status": "skipped"})

    def all_reduce(self, job: Document) -> Document:
        rank = self._rank
        return _guarded(lambda: rank.run(job) if rank else {"status": "skipped"})

    def close(self) -> None:
        self._listener.close()
        if self._rank:
            self._rank.close()

    def _pair(self, node: str, address: str) -> Pair:
        return Pair(self._node_id, node, address)


def _guarded(look: Callable[[], Document]) -> Document:
    try:
        return look()
    except Exception as error:  # noqa: BLE001 - see above; it is told as an answer
        return {"failure": f"{type(error).__name__}: {error}"[:300]}
