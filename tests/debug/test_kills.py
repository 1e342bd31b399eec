"""Who killed an actor by `ray.kill`: noted where it is called, and put into the words of those who were told of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from devkit.debug.briefly import brief
from devkit.debug.clue_lines import clues_of
from devkit.debug.inworker import hub_after, kills, table, told
from devkit.debug.inworker.hub import Hub
from devkit.logs.collect import of_crash
from devkit.logs.order import first_error
from tests.debug.hubs import FakeAgent, RunningHub, Surroundings, identity, running_hub
from tests.debug.test_briefly import DEAD
from tests.debug.test_hub import eventually
from tests.debug.test_killed import record

ACTOR = "cd24c14aa31f46c8f310101101000000"
NOTE = {"actor": ACTOR, "file": "/job/13_killed.py", "line": 23, "function": "Watchdog.watch"}
SAID = {"type": "ActorDiedError", "message": f"{DEAD}it was killed by `ray.kill`."}
SENTENCE = (
    "Trainer trainer_1 (pid 15587) was killed by ray.kill, which Watchdog pid 77 called "
    "at /job/13_killed.py:23 in Watchdog.watch"
)


class Handle:
    def __init__(self, name: str) -> None:
        self._ray_actor_id = SimpleNamespace(hex=lambda: name)


def test_where_ray_kill_is_called_is_told_before_it_kills(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[Any] = []
    module: Any = ModuleType("worker")
    module.kill = lambda actor, *, no_restart=True: order.append(("killed", no_restart))
    monkeypatch.setattr(kills, "_noted", kills.deque(maxlen=2))
    monkeypatch.setitem(kills.sys.modules, "ray", ModuleType("ray"))
    kills.watch(module, lambda: order.append("told"))
    kills.watch(module, lambda: order.append("told twice"))

    for name in ("a1", "a2", "a3"):
        module.kill(Handle(name), no_restart=False)
    module.kill("no handle", no_restart=True)  # as Ray refuses it, there is nothing to tell
    assert order == ["told", ("killed", False)] * 3 + [("killed", True)]
    assert [each["actor"] for each in kills.noted()] == ["a2", "a3"], "the last ones"
    here = kills.noted()[-1]
    line = Path(__file__).read_text().splitlines()[here["line"] - 1]
    assert here["file"] == __file__ and "module.kill(Handle(name)" in line
    assert told.problem({"type": "doing", "time": 1.0, "frames": [], "kills": kills.noted()}) is None
    assert told.problem({"type": "doing", "time": 1.0, "frames": [], "kills": [{"actor": "a", "file": 3}]})


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[RunningHub]:
    with running_hub(tmp_path) as running:
        yield running


def test_who_was_told_of_the_death_hears_who_did_it(hub: RunningHub) -> None:
    watchdog = FakeAgent(hub, {**identity("w1", job_id="02"), "role": "Watchdog", "pid": 77, "rank": None})
    driver = FakeAgent(hub, {**identity("w2", job_id="02"), "role": "driver"})
    crash = record("c1", 5.0, SAID, worker_id="w2", waited=("1" * 16 + ACTOR,)).to_json()
    document = {**crash, "frames": [], "chain": [{**SAID, "relation": "raised", "frames": []}]}
    with hub.client() as client:
        eventually(lambda: len(client.call("ps")["workers"]) == 2)
        driver.connection.send({"type": "crash", "document": document})  # given the error is quicker than the note
        watchdog.connection.send({"type": "doing", "time": 3.0, "frames": [], "kills": [{**NOTE, "actor": "x"}, NOTE]})
        eventually(lambda: "which Watchdog" in str(client.call("crashes")["crashes"]))
        kept = client.call("crash", id="c1")
    assert kept["exception"] == {"type": "ActorDiedError", "message": SENTENCE}
    assert kept["chain"][0]["message"] == SAID["message"]
    assert brief(**{"kind": SAID["type"], "message": SENTENCE}).message == SENTENCE
    found = first_error([of_crash(kept)])
    assert found.sure and found.cause is not None and found.cause.best.raised.message == SENTENCE
    assert not first_error([of_crash(document)]).sure


@pytest.mark.parametrize(("why", "noted"), [("killed by `ray.kill`.", ACTOR), ("its process died.", "another")])
def test_an_owner_that_was_killed_is_said_to_be(hub: RunningHub, why: str, noted: str) -> None:
    """Where its actor fails somebody later, who does not know of that."""
    owner = {"class": "job.AgentLoop", "pid": 656, "why": f"The actor is dead because it was {why}", "actor": ACTOR}
    hub.surroundings.orphans = [{"class": "job.Bucket", "pid": 785, "ended": 3.2, "owner": owner}]
    driver = FakeAgent(hub, {**identity("w2", job_id="02"), "role": "driver"})
    worker = FakeAgent(hub, {**identity("w1", job_id="02"), "role": "AgentLoop", "pid": 77})
    said = {"type": "ActorDiedError", "message": f"{DEAD}its owner has died. Owner Id: 0ab1 Owner Ip address: 10.0.0.1"}
    crash = record("c1", 5.0, said, worker_id="w1").to_json() | {"job_id": "02"}
    document = {**crash, "frames": [], "chain": [{**said, "relation": "raised", "frames": []}]}
    with hub.client() as client:
        eventually(lambda: len(client.call("ps")["workers"]) == 2)
        driver.connection.send({"type": "doing", "time": 3.0, "frames": [], "kills": [{**NOTE, "actor": noted}]})
        worker.connection.send({"type": "crash", "document": document})
        eventually(lambda: client.call("crash", id="c1").get("orphans") if client.call("crashes")["crashes"] else None)
        [line] = clues_of(client.call("crash", id="c1"))
    by = ", which the driver killed by ray.kill at 13_killed.py:23 in Watchdog.watch" if noted == ACTOR else ""
    assert line == f"Bucket pid 785 ended 1.8 s before with its owner, AgentLoop pid 656{by}"


def test_a_driver_does_not_wait_for_what_is_told_already(tmp_path: Path) -> None:
    hub = Hub(b"key", tmp_path, Surroundings())
    hub.update(table.crashed(hub.table, record("c1", 5.0, SAID).to_json()))
    assert hub_after.unexplained(hub, "02")
    known = {**SAID, "message": SENTENCE}
    hub.update(table.corrected(hub.table, record("c1", 5.0, known).to_json()))
    assert not hub_after.unexplained(hub, "02")


def test_of_a_death_of_another_kind_no_killer_is_looked_for() -> None:
    other = {"type": "ActorDiedError", "message": f"{DEAD}its worker process has died."}
    assert kills.victim({"exception": other}) == {}
    assert kills.victim({"exception": SAID})["actor_id"] == ACTOR
