"""Requests that wait are searched together, where the index asks for it, and each gets its own answer."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping, Sequence

import pytest

from tests.pace import stretched
from tests.trainer.retrievers import corpus_of
from trainer.retrieval.waiting import Asked, Searches


class Counting:
    """An index that finds row 0 as often as it is asked for, with the query's length as the score."""

    def __init__(self, together: int) -> None:
        self.corpus, self.seconds, self.together = corpus_of(), 0.0, together
        self.searched: list[list[str]] = []
        self.began, self.goes_on = threading.Event(), threading.Event()

    def search(self, queries: Sequence[str], topk: int) -> list[list[tuple[int, float]]]:
        self.searched.append(list(queries))
        self.began.set()
        assert self.goes_on.wait(stretched(30))
        if "bad" in queries:
            raise ValueError("a bad query")
        return [[(0, float(len(query)))] * topk for query in queries]

    def said(self) -> Mapping[str, str]:
        return {}


async def ask(index: Counting, *requests: Asked) -> list[bytes | BaseException]:
    """The first is searched until all others wait."""
    searches = Searches(index)
    first = asyncio.create_task(searches.answer(requests[0]))
    await asyncio.to_thread(index.began.wait, stretched(30))
    others = [asyncio.create_task(searches.answer(each)) for each in requests[1:]]
    await asyncio.sleep(0)  # each has come to its wait
    index.goes_on.set()
    found = await asyncio.gather(first, *others, return_exceptions=True)
    searches.close()
    return found


def scores(body: bytes | BaseException) -> list[list[float]]:
    assert isinstance(body, bytes), body
    return [[hit["score"] for hit in found] for found in json.loads(body)["result"]]


def test_what_waits_is_searched_together_up_to_a_limit() -> None:
    index = Counting(together=4)
    requests = [
        *(Asked(["a"], 1, True), Asked(["bb"], 3, True), Asked([], 1, True), Asked(["ccc", "d"], 1, True)),
        *(Asked(["eeee", "f"], 2, True), Asked(["g"] * 9, 1, True)),
    ]
    found = asyncio.run(ask(index, *requests))
    assert index.searched == [["a"], ["bb", "ccc", "d"], ["eeee", "f"], ["g"] * 9]
    assert [scores(each) for each in found] == [
        *([[1.0]], [[2.0] * 3], [], [[3.0], [1.0]]),
        *([[4.0] * 2, [1.0] * 2], [[1.0]] * 9),
    ]


def test_one_after_the_other_where_nothing_is_gained() -> None:
    index = Counting(together=1)
    asyncio.run(ask(index, *(Asked([name], 1, False) for name in "abc")))
    assert index.searched == [["a"], ["b"], ["c"]]


def test_an_error_is_that_of_those_who_asked_and_of_nobody_behind() -> None:
    index = Counting(together=2)
    requests = [Asked([name], 1, True) for name in ("a", "bad", "b", "c")]
    fine, bad, beside, behind = asyncio.run(ask(index, *requests))
    assert scores(fine) == scores(behind) == [[1.0]]
    assert all(isinstance(each, ValueError) for each in (bad, beside))
    assert index.searched == [["a"], ["bad", "b"], ["c"]]


def test_who_has_gone_is_not_searched_for() -> None:
    async def leave(index: Counting) -> bytes:
        searches = Searches(index)
        first = asyncio.create_task(searches.answer(Asked(["a"], 1, True)))
        await asyncio.to_thread(index.began.wait, stretched(30))
        gone, stays = (asyncio.create_task(searches.answer(Asked([name], 1, True))) for name in "bc")
        await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        index.goes_on.set()
        await first
        return await stays

    index = Counting(together=1)
    assert scores(asyncio.run(leave(index))) == [[1.0]]
    assert index.searched == [["a"], ["c"]]
