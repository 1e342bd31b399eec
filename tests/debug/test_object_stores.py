"""What is said of the nodes' object stores: nothing where there is room, else how full, how fast, and by whom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from devkit.debug.object_stores import Stores, is_spilling, lines
from tests.debug.conftest import eventually
from tests.debug.hubs import FakeAgent, identity, running_hub

MIB = 1 << 20


def stores(time: float, **facts: Any) -> Stores:
    base = {"node_id": "n", "node_ip": "10.0.0.5", "used": 10 * MIB, "total": 100 * MIB}
    return Stores.of({"time": time, "stores": [{**base, **facts}]})


def test_a_store_with_room_is_no_news() -> None:
    assert not list(lines(stores(0), stores(2, used=90 * MIB, spilled=0)))
    # What was spilled before is over.
    before, now = stores(0, spilled=500 * MIB), stores(2, spilled=500 * MIB)
    assert not list(lines(before, now)) and not is_spilling(before, now)


def test_one_that_spills_says_how_fast_and_who_holds_most() -> None:
    sites = [
        {"file": "/w/a.py", "line": 3, "function": "f", "objects": ["1"]},
        {"file": "/w/a.py", "line": 9, "function": "Loader.load", "objects": ["2", "3"]},
    ]
    holders = [{"role": "Loader", "pid": 7, "bytes": 95 * MIB, "puts": sites}, {"pid": 8, "bytes": 1}]
    before = stores(0.0, spilled=100 * MIB)
    now = stores(4.0, used=98 * MIB, spilled=300 * MIB, restored=40 * MIB, queued=2, holders=holders)
    assert list(lines(before, now)) == [
        "object store of 10.0.0.5: full: 98 MiB of 100 MiB, spills 50 MiB/s to disk (300 MiB so far), "
        "reads back 10 MiB/s, 2 objects wait for room; "
        "most is held by Loader pid 7: 95 MiB, put at /w/a.py:9 in Loader.load"
    ]
    assert is_spilling(before, now)


def test_the_hub_names_those_who_hold_most(tmp_path: Path) -> None:
    with running_hub(tmp_path) as hub, hub.client() as client:
        agent = FakeAgent(hub, {**identity("w1"), "role": "Loader"})
        puts = [{"file": "/w/a.py", "line": 9, "function": "Loader.load", "objects": ["2"]}]
        agent.connection.send({"type": "doing", "time": 3.0, "frames": [], "puts": puts})
        agent.report()
        holders = [{"worker_id": "w1", "pid": 7, "bytes": 5}, {"worker_id": "w2", "pid": 8, "bytes": 4}]
        hub.surroundings.full = [{"node_id": "n", "node_ip": "10.0.0.5", "used": 1, "total": 1, "holders": holders}]

        def holders_told() -> list[tuple[str, str]]:
            [node] = Stores.of(client.call("stores")).nodes
            return [(each.who, each.at) for each in node.holders]

        expected = [("Loader", "/w/a.py:9 in Loader.load"), ("process", "")]
        eventually(lambda: holders_told() == expected, holders_told)
