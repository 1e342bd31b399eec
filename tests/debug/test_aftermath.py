"""What is told of a job's breakpoints when it has ended, with a hub and without one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from devkit.debug.aftermath import Witness
from devkit.debug.inworker.records import Breakpoint
from devkit.errors import UnreachableError
from tests.debug.conftest import eventually

STOPPING = Breakpoint("a", "job.py:1")
LOGGING = Breakpoint("b", "job.py:2", log="x")


class FakeHub:
    """A hub that says what it is told to say, until it goes."""

    def __init__(self, said: Sequence[dict[str, int]]) -> None:
        self.news = [self._document(hits) for hits in said]
        self.lives = True
        self.heard = 0
        self.cleared: list[str] = []

    @staticmethod
    def _document(hits: dict[str, int]) -> dict[str, Any]:
        return {"breakpoints": [{"id": name, "hits": count} for name, count in hits.items()]}

    @contextlib.contextmanager
    def connect(self) -> Iterator[FakeHub]:
        if not self.lives:
            raise UnreachableError("gone", hint="-")
        yield self

    def watch(self) -> Iterator[dict[str, Any]]:
        for document in self.news:
            yield document
            self.heard += 1

    def call(self, op: str, **arguments: Any) -> dict[str, Any]:
        if op == "clear":
            self.cleared.append(arguments["id"])
        return self.news[-1]


def witness(hub: FakeHub) -> Witness:
    found = Witness((STOPPING, LOGGING), hub.connect)  # type: ignore[arg-type]
    eventually(lambda: hub.heard == len(hub.news), "the news")
    return found


@pytest.mark.parametrize(
    ("last", "missed"),
    [
        ({"a": 0, "b": 0}, ["job.py:1", "job.py:2"]),
        ({"a": 1, "b": 0}, ["job.py:2"]),
        ({"b": 1}, []),  # `a` was cleared by hand
    ],
)
def test_a_hub_that_is_there_has_the_last_word(last: dict[str, int], missed: list[str]) -> None:
    hub = FakeHub([{"a": 0, "b": 0}, last])
    assert witness(hub).never_hit() == missed and hub.cleared == list(last)


def test_what_is_cleared_at_the_end_is_still_told() -> None:
    hub = FakeHub([{"a": 0, "b": 0}])
    seen = witness(hub)
    tell = hub.call

    def call(op: str, **arguments: Any) -> dict[str, Any]:
        answer = tell(op, **arguments)
        if op == "clear":
            seen._look(hub._document({}))  # as the watch does, in its thread
        return answer

    hub.call = call  # type: ignore[method-assign]
    assert seen.never_hit() == ["job.py:1", "job.py:2"] and hub.cleared == ["a", "b"]


def test_one_that_went_with_the_job_has_told_of_each_stop() -> None:
    hub = FakeHub([{"a": 0, "b": 0}])
    seen = witness(hub)
    hub.lives = False
    assert seen.never_hit() == ["job.py:1"]  # what only logs may have been hit in the last moment


def test_nothing_is_known_where_no_hub_was_ever_seen() -> None:
    hub = FakeHub([])
    hub.lives = False
    assert Witness((STOPPING,), hub.connect).never_hit() == []  # type: ignore[arg-type]
