"""A task that was cancelled: where `ray.cancel` was called for it, in this process or another."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray import TaskID
from ray.exceptions import RayTaskError, TaskCancelledError

from devkit.debug.crash_page import clues_of
from devkit.debug.inworker import cancels, clues, cut_off, hooks
from devkit.debug.inworker.lineage import link
from devkit.debug.inworker.words import plain
from devkit.logs.collect import of_crash
from devkit.logs.order import first_error
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

    FakeAgent(
        hub, {**identity("w1", job_id="02"), "role": "Rollouter", "pid": 7, "rank": None}, {"cancelled": cancelled}
    )
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


def passed_on(task: str = TASK) -> BaseException:
    """As who asks for a task's result is given it, when Ray has interrupted that."""
    cause = TaskCancelledError(task_id=TaskID.from_hex(task))
    head = 'Traceback (most recent call last):\n  File "/job/c08.py", line 10, in slow\n    time.sleep(30)\n'
    text = f"{head}ray.exceptions.TaskCancelledError: {cause}"
    return RayTaskError("slow", text, cause, "ray::slow", 7, "10.0.0.5").as_instanceof_cause()


def test_a_task_that_ray_has_interrupted_was_cancelled_though_its_error_came_through_others(ray: Any) -> None:
    ray.cancel(Ref(TASK))
    error = passed_on()
    assert type(error).__name__ == "RayTaskError(TaskCancelledError)"
    assert "ray.cancel was called for it" in clues.found(clues.Failure(error, "driver"))["cancelled"][0]
    assert clues.found(clues.Failure(passed_on(OTHER), "actor"))["cancels"] == [OTHER]


def test_of_an_interrupt_in_a_task_others_are_asked(monkeypatch: pytest.MonkeyPatch, ray: Any) -> None:
    monkeypatch.setattr(hooks, "task_facts", lambda: {"task_id": TASK, "attempt": 0})
    assert clues.found(clues.Failure(KeyboardInterrupt(), "task"))["cancels"] == [TASK]
    assert "cancels" not in clues.found(clues.Failure(KeyboardInterrupt(), "driver")), "Ctrl-C"
    monkeypatch.setattr(hooks, "task_facts", lambda: {"task_id": "f" * 48, "attempt": 0})
    assert "cancels" not in clues.found(clues.Failure(KeyboardInterrupt(), "task"))


def test_who_was_told_that_a_task_was_cancelled_follows_its_interrupt() -> None:
    said = {"type": "RayTaskError(TaskCancelledError)", "message": plain(str(passed_on()))}
    crashes = link(
        [
            record("waiter", 4.9, said, kind="actor", pid=8),
            record("slow", 5.0, {"type": "KeyboardInterrupt", "message": ""}, kind="task", task_id=TASK),
            record("other", 5.1, {**said, "message": plain(str(passed_on(OTHER)))}, kind="actor", pid=9),
        ]
    )
    assert {each.id: each.root for each in crashes} == {"waiter": "slow", "slow": None, "other": None}
    found = first_error(of_crash(each.to_json()) for each in crashes[:2])
    assert found.cause is not None and found.cause.best.id == "slow"
    assert [(each.said.partition(":")[0], each.why) for each in found.followed] == [
        ("TaskCancelledError", "a call that was cancelled")
    ]
