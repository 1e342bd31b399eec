"""Requests that wait for one another: one search at a time, in a thread of its own.

numpy holds the interpreter while it scores, and a model is one thread's. Where an index is quicker with many queries at
once (`Index.together`), what has come in meanwhile is searched together.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from trainer.retrieval.index import Index


@dataclass(frozen=True)
class Asked:
    """A request."""

    queries: list[str]
    topk: int
    scores: bool  # whether they are wanted


class Searches:
    """Answers, as the API has them."""

    def __init__(self, index: Index) -> None:
        self._index, self._thread = index, ThreadPoolExecutor(1, "search")
        self._waiting = deque[tuple[Asked, Future[bytes]]]()

    async def answer(self, asked: Asked) -> bytes:
        """The body of its answer. Raises what the index does."""
        mine = Future[bytes]()
        self._waiting.append((asked, mine))
        self._thread.submit(self._search)
        return await asyncio.wrap_future(mine)

    def close(self) -> None:
        """Searches that wait are not begun."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _search(self) -> None:
        """In the thread, once for each request; an earlier one's search may have taken it along."""
        batch = [(asked, mine) for asked, mine in self._taken() if mine.set_running_or_notify_cancel()]
        if not batch:
            return
        try:
            bodies = answers(self._index, [asked for asked, _ in batch])
        except Exception as error:  # noqa: BLE001 - whatever it is, it is raised where its requests are waited for
            for _, mine in batch:
                mine.set_exception(error)
            return
        for (_, mine), body in zip(batch, bodies, strict=True):
            mine.set_result(body)

    def _taken(self) -> Iterator[tuple[Asked, Future[bytes]]]:
        """The first that waits, if any does, and as many behind it as are searched together."""
        queries = 0
        while self._waiting and (not queries or queries + len(self._waiting[0][0].queries) <= self._index.together):
            asked, mine = self._waiting.popleft()
            queries += max(1, len(asked.queries))
            yield asked, mine


def answers(index: Index, requests: Sequence[Asked]) -> list[bytes]:
    """Bodies of the answers to requests that are searched together."""
    queries = [query for asked in requests for query in asked.queries]
    found = iter(index.search(queries, max(asked.topk for asked in requests)))
    document = index.corpus.document
    bodies = []
    for asked in requests:
        mine = [next(found)[: asked.topk] for _ in asked.queries]
        result = [
            [
                {"document": document(row), "score": round(score, 4)} if asked.scores else document(row)
                for row, score in hit
            ]
            for hit in mine
        ]
        bodies.append(json.dumps({"result": result}).encode())
    return bodies
