"""An actor that Ray has started anew: what is gone with its end, and what the new instance misses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from devkit.debug.clue_lines import clues_of
from devkit.debug.inworker import anew, called_methods, fates
from devkit.debug.inworker.lineage import link
from tests.debug.hubs import Document, FakeAgent, RunningHub, identity, running_hub
from tests.debug.test_hub import eventually
from tests.debug.test_killed import ACTOR, KILLED, record

MISSES = {"type": "AttributeError", "message": "'NoneType' object has no attribute 'reset'"}
OTHER = {"type": "AttributeError", "message": "module 'numpy' has no such name"}
FIRST, LATER = "1" * 16 + ACTOR, "2" * 16 + ACTOR


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningHub]:
    monkeypatch.setattr(anew, "LOOKS", (0.05,) * 4000)
    with running_hub(tmp_path) as running:
        yield running


def death(hub: RunningHub, instances: list[Document]) -> FakeAgent:
    hub.surroundings.instances = instances
    worker = FakeAgent(hub, {**identity("w1", job_id="02"), "role": "Engine", "actor": ACTOR})
    worker.connection.send(
        {"type": "doing", "time": 1.0, "frames": [], "methods": ["setup", "load_weights", "generate"]}
    )
    crash = record("c1", 5.0, KILLED, worker_id="w1", task_id=FIRST).to_json()
    frames = [{"file": "/job/a.py", "line": 3, "function": name} for name in ("Engine._take", "Engine.generate")]
    document = {**crash, "actor": ACTOR, "frames": frames}
    worker.connection.send({"type": "crash", "document": {**document, "chain": []}})
    return worker


def test_the_end_of_one_that_lives_again_names_what_had_been_called_in_it(hub: RunningHub) -> None:
    before = {"actor": ACTOR, "state": "ALIVE", "pid": 7, "worker_id": "w1", "restarts": True}
    death(hub, [before])
    with hub.client() as client:
        eventually(lambda: client.call("crashes")["crashes"])
        assert hub.hub.explaining == {"c1 anew"}
        assert not client.call("crash", id="c1").get("anew"), "Ray does not know of its end yet"
        hub.surroundings.instances = [{**before, "pid": 9, "worker_id": "w2"}]
        eventually(lambda: client.call("crash", id="c1").get("anew"))
        kept = client.call("crash", id="c1")
    assert list(clues_of(kept)) == [
        "Ray has started this actor anew, pid 9, by its constructor: whatever calls such as setup, load_weights had "
        "set in it before is gone, for later calls and those that are tried again"
    ]


def test_nothing_is_said_of_one_that_stays_dead(hub: RunningHub) -> None:
    death(hub, [{"actor": ACTOR, "state": "DEAD", "pid": 7, "worker_id": "w1", "restarts": False}])
    with hub.client() as client:
        eventually(lambda: client.call("crashes")["crashes"])
        eventually(lambda: not hub.hub.explaining)
        assert not client.call("crash", id="c1").get("anew")


def test_of_the_many_ends_of_a_lost_node_a_few_are_looked_into(
    hub: RunningHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(anew, "MOST_AT_ONCE", 2)
    hub.surroundings.instances = [{"actor": ACTOR, "state": "ALIVE", "pid": 7, "worker_id": "w1", "restarts": True}]
    worker = FakeAgent(hub, {**identity("w1", job_id="02"), "role": "Engine", "actor": ACTOR})
    for number in range(4):
        crash = record(f"c{number}", 5.0, KILLED, worker_id="w1", task_id=FIRST).to_json()
        worker.connection.send({"type": "crash", "document": {**crash, "actor": ACTOR, "frames": [], "chain": []}})
    with hub.client() as client:
        eventually(lambda: len(client.call("crashes")["crashes"]) == 4)
    assert hub.hub.explaining == {"c0 anew", "c1 anew"}


def test_an_actor_is_not_another_one_that_may_be_called_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def row(actor: str, name: str, start: int) -> SimpleNamespace:
        address = SimpleNamespace(worker_id=bytes([start]))
        ids = {"actor_id": bytes.fromhex(actor), "job_id": b"\2", "address": address}
        return SimpleNamespace(**ids, name=name, state=1, pid=start, max_restarts=-1, start_time=start)

    state = SimpleNamespace(Name=lambda number: ["DEAD", "ALIVE"][number])
    table = SimpleNamespace(ActorTableData=SimpleNamespace(ActorState=state))
    monkeypatch.setattr(fates, "_generated", lambda _: table)
    rows = [row(ACTOR, "c7", 1), row("c7" * 16, "engine", 2), row("d8" * 16, "twice", 3), row("e9" * 16, "twice", 4)]
    monkeypatch.setattr(fates, "_actors", lambda: rows)
    pids = {
        name: (fates.instance(name, "02") or {}).get("pid") for name in ("c7", "engine", ACTOR, ACTOR[:12], "twice")
    }
    assert pids == {"c7": 1, "engine": 2, ACTOR: 1, ACTOR[:12]: 1, "twice": None}
    assert fates.instance("engine", "03") is None


def test_what_a_new_instance_misses_follows_from_the_end_of_the_one_before() -> None:
    end = record("end", 10.0, KILLED, task_id=FIRST, worker_id="w1")

    def root(**facts: object) -> tuple[str | None, bool]:
        facts = {"kind": "actor", "task_id": LATER, "worker_id": "w2", **facts}
        time, exception = facts.pop("time", 12.0), facts.pop("exception", MISSES)
        (found,) = (each for each in link([end, record("new", time, exception, **facts)]) if each.id == "new")  # type: ignore[arg-type]
        return found.root, found.supposed

    assert root() == ("end", True)
    assert root(task_id=FIRST) == ("end", False), "the same call, tried again"
    assert root(exception=OTHER) == root(worker_id="w1") == root(time=9.0) == (None, False)
    assert root(task_id="2" * 16 + "d" * 24 + "02000000") == (None, False), "another actor"


def test_each_method_is_noted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(called_methods, "_called", [])
    news: list[int] = []
    setup, work = (called_methods.noting(lambda self, by: self + by, name, lambda: news.append(1)) for name in "ab")
    assert (setup(1, by=2), work(3, by=1), setup(1, by=1)) == (3, 4, 2)
    assert called_methods.called() == ["a", "b"] and len(news) == 2
