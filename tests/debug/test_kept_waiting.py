"""A call that was not answered in time, or for which there was no room: the crash says where that actor was."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from devkit.debug.crash_page import clues_of
from devkit.debug.inworker import clues, core, kept_waiting
from tests.debug.hubs import FakeAgent, RunningHub, identity, running_hub
from tests.debug.test_hub import eventually
from tests.debug.test_killed import record

POOL, OTHER = "3375d36a50cd3f90f6e1c76501000000", "4475d36a50cd3f90f6e1c76501000000"
LATE = {"type": "GetTimeoutError", "message": "Get timed out: some object(s) not ready."}
FULL = {
    "type": "PendingCallsLimitExceeded",
    "message": f"The task log could not be submitted to Actor(Pool, {POOL}) because more than 40 tasks are queued",
}


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[RunningHub]:
    with running_hub(tmp_path) as running:
        yield running


def lives_in(actor: str, *places: str) -> dict[str, Any]:
    return {"where": lambda request: {"places": list(places)} if actor in request["actors"] else {}}


@pytest.mark.parametrize(
    ("error", "more", "how"),
    [(LATE, {"awaits": [POOL]}, "which did not answer in time"), (FULL, {}, "whose queue is full")],
    ids=["late", "full"],
)
def test_it_says_where_the_actor_is(hub: RunningHub, error: dict[str, str], more: dict[str, Any], how: str) -> None:
    at = "pool.py:9 in Pool.get: self.full.wait()"
    FakeAgent(hub, {**identity("w1", job_id="02"), "role": "Pool", "pid": 7}, lives_in(POOL, at))
    FakeAgent(hub, {**identity("w2", job_id="02"), "role": "Pool", "pid": 8}, lives_in(OTHER, "pool.py:1 in Pool.rest"))
    driver = FakeAgent(hub, {**identity("w3", job_id="02"), "role": "driver", "pid": 9})
    crash = record("c1", 5.0, error, worker_id="w3").to_json() | {"job_id": "02"}
    document = {**crash, "frames": [], "chain": [{**error, "relation": "raised", "frames": []}], **more}
    with hub.client() as client:
        driver.connection.send({"type": "crash", "document": document})
        eventually(lambda: client.call("crash", id="c1").get("waiting") if client.call("crashes")["crashes"] else None)
        assert list(clues_of(client.call("crash", id="c1"))) == [f"Pool pid 7, {how}, was then at {at}"]


class Ref:
    def __init__(self, task: int, actor: str) -> None:
        self.task, self.is_there = f"{task}" * 16 + actor, False

    def task_id(self) -> bytes:
        return bytes.fromhex(self.task)


def test_an_actor_that_has_answered_beside_one_that_has_not_is_not_called_late(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(refs: list[Ref], *, num_returns: int, timeout: float, fetch_local: bool) -> tuple[list[Ref], list[Ref]]:
        assert num_returns == len(refs) and timeout == 0 and not fetch_local, "nothing is waited for"
        return [each for each in refs if each.is_there], [each for each in refs if not each.is_there]

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(wait=wait))
    monkeypatch.setattr(core._core, "is_open", True)
    get = "class GetTimeoutError(Exception): ...\ndef get(object_refs): raise GetTimeoutError"
    ray: dict[str, Any] = {}
    exec(compile(get, "/v/site-packages/ray/_private/worker.py", "exec"), ray)
    came, late = Ref(1, OTHER), Ref(2, POOL)
    came.is_there = True
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of a type that was just made
        ray["get"]([came, late, late, "no reference"])
    failure = clues.Failure(caught.value, "driver")
    assert clues.found(failure)["awaits"] == [POOL]
    late.is_there = True
    assert "awaits" not in clues.found(failure), "it has answered just now"


def test_another_error_that_names_an_actor_asks_nobody() -> None:
    assert kept_waiting.actors_of({"exception": {**FULL, "type": "ValueError"}}) == []
    assert kept_waiting.actors_of({"exception": {**FULL, "message": "too many"}}) == []


def test_many_places_are_counted() -> None:
    answer = {"places": [f"pool.py:{line} in Pool.get" for line in range(5)]}
    [line] = kept_waiting.said({"exception": LATE}, [({"role": "Pool", "pid": 7}, answer)])
    assert line.endswith("at pool.py:0 in Pool.get; pool.py:1 in Pool.get; pool.py:2 in Pool.get and 2 more")
