"""A task that was cancelled: where `ray.cancel` was called for it, in this process or another."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import TaskCancelledError

from devkit.debug.crash_page import clues_of
from devkit.debug.inworker import cancels, clues, cut_off
from tests.debug.hubs import FakeAgent, RunningHub, identity, running_hub
from tests.debug.test_hub import eventually
from tests.debug.test_killed import record

TASK, OTHER = "9000f6dd5de99d6b8345463bd1a8daef9fa657f701000000", "71663860a3c2bcfd8345463bd1a8daef9fa657f701000000"
SAID = f"The task {TASK} is canceled from an actor 8345463bd1a8daef9fa657f701000000 before it executes."
SITE = {"file": "/job/job.py", "line": 64, "function": "Rollouter.sync"}


class Ref:
    def __init__(self, task: str) -> None:
        self.task = task

    def binary(self) -> bytes:
        return bytes.fromhex(self.task) + b"\x01\x00\x00\x00"


def failed(task: str = TASK) -> BaseException:
    error = TaskCancelledError(error_message=SAID.replace(TASK, task))
    try:
        try:
            raise error
        except asyncio.CancelledError:  # @handler
            pass
    except TaskCancelledError:
        return error
    raise AssertionError


def caught_widely() -> BaseException:
    try:
        raise TaskCancelledError(error_message=SAID)
    except (asyncio.CancelledError, Exception) as error:  # noqa: BLE001 - it is what the test looks at
        return error


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(cut_off, "_cancelled", {})
    found = SimpleNamespace(cancel=lambda _reference: None)
    cut_off._watch(found)
    return found


def test_where_this_process_has_cancelled_it_is_told(ray: Any) -> None:
    ray.cancel(Ref(TASK))  # @cancel
    lines = Path(__file__).read_text().splitlines()
    at, handler = (
        next(n for n, line in enumerate(lines, 1) if line.endswith(f"# @{mark}")) for mark in ("cancel", "handler")
    )
    found = clues.found(clues.Failure(failed(), "actor"))
    assert found["cancelled"] == [
        f"ray.cancel was called for it at test_cancels.py:{at} in test_where_this_process_has_cancelled_it_is_told",
        f"the `except` of a CancelledError at test_cancels.py:{handler} does not catch it: Ray's TaskCancelledError is "
        "none",
    ]
    assert "cancels" not in found
    assert list(clues_of({"cancelled": found["cancelled"]})) == found["cancelled"]
    assert clues.found(clues.Failure(failed(OTHER), "actor"))["cancels"] == [OTHER], "another process may know"
    assert len(clues.found(clues.Failure(caught_widely(), "actor"))["cancelled"]) == 1
    assert "cancelled" not in clues.found(clues.Failure(ValueError(SAID), "actor"))


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[RunningHub]:
    with running_hub(tmp_path) as running:
        yield running


def test_another_process_that_has_cancelled_it_is_named(hub: RunningHub) -> None:
    def cancelled(request: dict[str, Any]) -> dict[str, Any]:
        return {"site": SITE if TASK in request["tasks"] else None}

    FakeAgent(hub, {**identity("w1", job_id="02"), "role": "Rollouter", "pid": 7}, {"cancelled": cancelled})
    odd = {"cancelled": lambda _request: {"site": {**SITE, "line": "x"}}}
    FakeAgent(hub, {**identity("w0", job_id="02"), "role": "Odd", "pid": 6}, odd)
    driver = FakeAgent(hub, {**identity("w3", job_id="02"), "role": "driver", "pid": 9})
    error = {"type": "TaskCancelledError", "message": SAID}
    crash = record("c1", 5.0, error, worker_id="w3").to_json() | {"job_id": "02"}
    document = {**crash, "frames": [], "chain": [{**error, "relation": "raised", "frames": []}], "cancels": [TASK]}
    with hub.client() as client:
        driver.connection.send({"type": "crash", "document": document})
        eventually(
            lambda: client.call("crash", id="c1").get("cancelled") if client.call("crashes")["crashes"] else None
        )
        [line] = clues_of(client.call("crash", id="c1"))
    assert line == "ray.cancel was called for it by Rollouter pid 7, at job.py:64 in Rollouter.sync"
    assert cancels.sentence(SITE) == "ray.cancel was called for it at job.py:64 in Rollouter.sync"
