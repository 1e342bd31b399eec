"""A call that fails and that Ray tries again: its crash says what stays done."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from devkit.debug.clue_lines import clues_of
from devkit.debug.inworker import again, calls_made, clues, hooks, hub_after
from tests.debug.hubs import Document, FakeAgent, RunningHub, identity, running_hub
from tests.debug.test_cut_off import Reference
from tests.debug.test_hub import eventually
from tests.debug.test_killed import ACTOR, NIL, record

FAILED = {"type": "ConnectionError", "message": "sandbox answered 503"}
TASK = "1" * 16 + NIL


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningHub]:
    monkeypatch.setattr(again, "LOOKS", (0.05,) * 40)
    with running_hub(tmp_path) as running:
        yield running


def crash(hub: RunningHub, name: str, attempt: int) -> None:
    worker = FakeAgent(hub, identity(f"w{name}", job_id="02"))
    document = record(name, 5.0, FAILED, kind="task", worker_id=f"w{name}", task_id=TASK).to_json()
    document |= {"attempt": attempt, "outside": {"Buffer.add": 3}, "frames": [], "chain": []}
    worker.connection.send({"type": "crash", "document": document})


def test_the_crash_of_a_try_that_another_one_follows_says_what_stays_done(hub: RunningHub) -> None:
    hub.surroundings.tries = {TASK: 1}
    crash(hub, "c1", 0)
    crash(hub, "c2", 1)
    with hub.client() as client:
        eventually(lambda: len(client.call("crashes")["crashes"]) == 2)
        eventually(lambda: client.call("crash", id="c1").get("again"))
        assert list(clues_of(client.call("crash", id="c1"))) == [
            "Ray tries this call again from its beginning: what this try had done outside of it stays done, and may be "
            "done twice, such as its calls Buffer.add (3 times)"
        ]
        assert not client.call("crash", id="c2").get("again"), "the last try"


def test_a_hub_that_has_seen_many_crashes_asks_of_the_next_one_too(
    hub: RunningHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(again, "MOST_ASKED", 1)
    hub.surroundings.tries = {TASK: 1}
    with hub.client() as client:
        for name in ("c1", "c2"):
            crash(hub, name, 0)
            eventually(lambda name=name: name in {each["id"] for each in client.call("crashes")["crashes"]})  # type: ignore[misc]
            eventually(lambda name=name: client.call("crash", id=name).get("again"))  # type: ignore[misc]
            eventually(lambda: not hub.hub.tried)


def test_what_is_found_out_meanwhile_is_kept_beside_it(hub: RunningHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_after, "WHERE_SECONDS", 60.0)
    gate = threading.Event()

    def where(_request: Document) -> Document:
        assert gate.wait(60)
        return {"places": ["pool.py:9 in Pool.get"]}

    FakeAgent(hub, {**identity("w2", job_id="02"), "role": "Pool", "pid": 7}, {"where": where})
    gone = FakeAgent(hub, identity("w3", job_id="02"), {"where": lambda _request: {}})
    hub.surroundings.tries = {TASK: 1}
    late = {"type": "GetTimeoutError", "message": "Get timed out"}
    document = record("c1", 5.0, late, kind="task", worker_id="w1", task_id=TASK).to_json() | {"job_id": "02"}
    FakeAgent(hub, identity("w1", job_id="02")).connection.send(
        {"type": "crash", "document": {**document, "awaits": [ACTOR], "frames": [], "chain": []}}
    )
    with hub.client() as client:
        eventually(lambda: client.call("crash", id="c1").get("again") if client.call("crashes")["crashes"] else None)
        gone.connection.send({"type": "bye", "reason": "its end"})
        eventually(lambda: "w3" not in hub.hub.table.workers)
        gate.set()
        eventually(lambda: client.call("crash", id="c1").get("waiting"))
        kept = client.call("crash", id="c1")
    assert kept["again"] and kept["waiting"] == [
        "Pool pid 7, which did not answer in time, was then at pool.py:9 in Pool.get"
    ]


def test_of_very_many_calls_the_last_are_known() -> None:
    assert again.sentence({"Buffer.add": calls_made.MOST}).endswith(f"Buffer.add (at least {calls_made.MOST} times)")


def test_only_calls_are_asked_for() -> None:
    assert again.is_wanted(record("c", 1.0, FAILED, kind="actor", task_id="2" * 16 + ACTOR).to_json())
    assert not again.is_wanted(record("c", 1.0, FAILED, kind="task", task_id="f" * 48).to_json())
    assert not again.is_wanted(record("c", 1.0, FAILED, kind="driver", task_id=TASK).to_json())


def test_the_calls_of_the_failed_try_alone_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls_made, "_made", {})
    monkeypatch.setattr(calls_made, "_rays", "/nowhere/")
    tries = [(0, "Buffer.add"), (1, "Buffer.add"), (1, "Sandbox.execute"), (1, "Buffer.add")]

    def call(number: int, attempt: int, name: str) -> None:
        calls_made._note(Reference(number), name, None, lambda: (bytes.fromhex(TASK), attempt))

    for number, (attempt, name) in enumerate(tries):
        call(number, attempt, name)
    monkeypatch.setattr(hooks, "task_facts", lambda: {"task_id": TASK, "attempt": 1})
    found = clues.found(clues.Failure(ConnectionError("sandbox answered 503"), "task"))
    assert found["outside"] == {"Buffer.add": 2, "Sandbox.execute": 1}
    assert "outside" not in clues.found(clues.Failure(ConnectionError("503"), "driver"))
