"""What is told of a job's breakpoints when it has ended, with a hub and without one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from devkit.debug.aftermath import Witness, armed_before
from devkit.debug.inworker import table
from devkit.debug.inworker.records import Breakpoint, Identity
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


def test_what_was_armed_before_is_said_at_a_run_s_beginning() -> None:
    states = [
        {"id": "own", "spec": "job.py:1", "job_id": ""},
        {"id": "old", "spec": "job.py:9 @Worker", "job_id": ""},
        {"id": "bound", "spec": "job.py:8", "job_id": "07000000"},
        {"id": "mine", "spec": "job.py:7", "job_id": "03000000"},
    ]
    said = armed_before(states, {"own"}, "03000000")
    assert said == [
        "devkit: set before this run, and armed in it: job.py:9 @Worker (devkit break --clear old removes it)",
        "devkit: set before this run, and armed in it: job.py:7 (devkit break --clear mine removes it)",
    ]


def test_a_job_is_over_when_its_command_has_ended_and_its_driver_is_gone() -> None:
    def worker(name: str, role: str, job: str) -> dict[str, Any]:
        return Identity(job, name, "n", "10.0.0.1", "h", 1, role).to_json()

    known = table.Table()
    for each in (worker("a", "Worker", "01"), worker("b", "driver", "02"), worker("c", "Worker", "03")):
        known = table.joined(known, each)
    for job in ("01", "02"):
        known = table.ended(known, job, table.End(0))
    assert table.over(known) == {"01"}, "of 02 the driver goes on, and 03 has not ended"
    assert table.over(table.disconnected(known, "b")) == {"01", "02"}
