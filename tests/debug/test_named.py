"""An actor that was looked up by its name in vain: the crash says what became of the one that had it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from devkit.debug.crash_page import clues_of
from tests.debug.hubs import FakeAgent, RunningHub, identity, running_hub
from tests.debug.test_hub import eventually
from tests.debug.test_killed import record

FAILED = {
    "type": "ValueError",
    "message": "Failed to look up actor with name 'store'. This could because 1. You are trying to",
}
GONE = {
    "name": "store",
    "class": "job.WeightStore",
    "namespace": "a1",
    "state": "DEAD",
    "pid": 12,
    "why": "The actor is dead because all references to the actor were removed.",
    "ended": 2.0,
}


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[RunningHub]:
    with running_hub(tmp_path) as running:
        yield running


def test_one_that_was_collected_is_named_with_why(hub: RunningHub) -> None:
    hub.surroundings.actors = [GONE, {**GONE, "name": "another", "state": "ALIVE"}]
    worker = FakeAgent(hub, {**identity("w1", job_id="02"), "role": "Rollout"})
    crash = record("c1", 5.0, FAILED, worker_id="w1").to_json()
    document = {**crash, "frames": [], "chain": [{**FAILED, "relation": "raised", "frames": []}]}
    with hub.client() as client:
        worker.connection.send({"type": "crash", "document": document})
        eventually(lambda: client.call("crash", id="c1").get("named") if client.call("crashes")["crashes"] else None)
        kept = client.call("crash", id="c1")
    said = "WeightStore pid 12 had the name 'store', and ended 3.0 s before: no handle was left that keeps it"
    assert list(clues_of(kept)) == [f"{said}, as those of get_actor and get_if_exists do not; it is not detached"]
