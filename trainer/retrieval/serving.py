"""A retriever that a run starts: the server in a Ray actor's process, one on each node that plays episodes.

Ray is imported by the driver alone; this module is what its actors run.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from concurrent.futures import Future
from dataclasses import dataclass

from trainer.retrieval.index import Source, made

HOST = "127.0.0.1"  # a server is its own node's


@dataclass(frozen=True)
class Served:
    """What a server says once it listens."""

    url: str
    pid: int
    passages: int
    digest: str
    seconds: float  # that its index took


class RetrieverServer:
    """The actor. It ends with the run, and the server with it."""

    def __init__(self, source: Source, topk: int) -> None:
        self._source, self._topk = source, topk

    def start(self) -> Served:
        """Reads the corpus, indexes it, and serves it in a thread.

        Raises DataError, ConfigError, ModelError, RetrieverError.
        """
        self._source.require()
        from trainer.retrieval.server import Server, bind, url_of

        if self._source.encoder is not None:
            _take_cores()
        index = made(self._source, _tell)
        listener, listens = bind(HOST, 0), Future[None]()
        server = Server(index, self._topk)

        def serve() -> None:
            async def run() -> None:
                await server.run(listener, lambda: listens.set_result(None), asyncio.Event())  # which nobody sets

            try:
                asyncio.run(run())
            except Exception as error:  # noqa: BLE001 - whatever it is, it is raised below, where somebody waits
                listens.set_exception(error)

        threading.Thread(target=serve, name="retriever", daemon=True).start()
        listens.result()
        held = index.corpus
        return Served(url_of(listener, HOST), os.getpid(), len(held), held.digest, index.seconds)


def _take_cores() -> None:
    """Ray gives an actor without processors one thread; what an encoder computes is worth half of the node's."""
    import faiss
    import torch

    threads = max(1, (os.cpu_count() or 1) // 2)
    torch.set_num_threads(threads)
    faiss.omp_set_num_threads(threads)


def _tell(line: str) -> None:
    """Into the actor's log, which Ray shows at the driver."""
    sys.stderr.write(f"note: {line}\n")
    sys.stderr.flush()
