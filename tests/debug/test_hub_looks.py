"""`stacks` and `hang` on a machine with too little time: late answers count, and the end of the time is kept."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devkit.debug.inworker import hub_looks
from devkit.debug.inworker.hub_actor import RaySurroundings
from devkit.debug.stack_groups import merge
from devkit.debug.stacks import page
from tests.debug.hubs import FakeAgent, RunningHub, identity, running_hub
from tests.pace import stretched

THREADS = [{"name": "MainThread", "frames": [], "stopped": False}]
FACTS = {"time": 1.0, "threads": THREADS, "rank": 0}
LONG = 60.0  # nothing that is tested here takes so long
SHORT = 2.0


class Standing:
    """Somebody who is sent to a node and never gets there."""

    def __init__(self) -> None:
        self.sent = threading.Event()

    async def __call__(self, node_id: str, op: str, timeout: float, arguments: dict[str, Any]) -> dict[str, Any]:
        self.sent.set()
        await asyncio.Event().wait()
        raise AssertionError


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[RunningHub]:
    with running_hub(tmp_path / "crashes") as running:
        yield running


@pytest.fixture
def standing(hub: RunningHub, monkeypatch: pytest.MonkeyPatch) -> Standing:
    onlook = Standing()
    monkeypatch.setattr(hub.surroundings, "onlook", onlook)
    return onlook


@pytest.mark.parametrize("op", ["stacks", "hang"])
def test_a_late_process_answers_for_itself_while_somebody_is_still_sent_to_it(
    hub: RunningHub, standing: Standing, op: str
) -> None:
    def late(_request: Any) -> dict[str, Any]:
        assert standing.sent.wait(stretched(20))
        return {"threads": THREADS, "facts": FACTS}

    FakeAgent(hub, identity("w1"), {"stacks": late, "progress": late, "children": {"count": 0}})
    with hub.client() as client:
        [rank] = client.call(op, timeout=LONG)["ranks"]
    assert not rank["error"]
    assert (rank if op == "stacks" else rank["facts"])["threads"] == THREADS


def test_neighbours_that_do_not_answer_are_not_waited_for_either(hub: RunningHub, standing: Standing) -> None:
    asked = threading.Event()

    def late(_request: Any) -> dict[str, Any]:
        assert asked.wait(stretched(20))
        return {"threads": THREADS}

    FakeAgent(hub, identity("w1"), {"stacks": late, "children": {"count": 0}})
    FakeAgent(
        hub, identity("w2", 1), {"stacks": {"threads": []}, "children": {"count": 0}, "spy": lambda _: asked.set()}
    )
    with hub.client() as client:
        ranks = client.call("stacks", timeout=LONG)["ranks"]
    assert [rank["error"] for rank in ranks] == [None, None]
    assert not standing.sent.is_set()


@pytest.mark.parametrize("native", [False, True])
def test_at_the_end_of_the_time_there_is_what_has_come_and_what_is_missing(
    hub: RunningHub, standing: Standing, native: bool
) -> None:
    FakeAgent(hub, identity("w1"))
    own = {"threads": THREADS}  # nobody else is on its node
    FakeAgent(hub, identity("w2", 1, node_id="node2"), {"stacks": own, "spy": own, "children": {"count": 0}})
    with hub.client() as client:
        ranks = client.call("stacks", timeout=SHORT, native=native)["ranks"]
    assert "no answer within 2 s" in ranks[0]["error"] or "nothing on its node responds" in ranks[0]["error"], ranks
    assert (ranks[1]["error"], ranks[1]["threads"]) == (None, THREADS)
    assert "Worker[0] pid 100: no stack: " in page(merge(ranks)).plain


def test_a_sample_ends_in_time_too(hub: RunningHub, standing: Standing) -> None:
    FakeAgent(hub, identity("w1"))
    FakeAgent(hub, identity("w2", 1), {"progress": {"facts": FACTS}, "children": {"count": 0}})
    with hub.client() as client:
        silent, fine = client.call("hang", timeout=SHORT)["ranks"]
    assert not silent["facts"] and silent["error"]
    assert fine["facts"] == FACTS


def test_what_the_kernel_tells_is_told_though_nobody_sees_the_stack(
    hub: RunningHub, standing: Standing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_looks, "PROGRESS_SECONDS", 0.1)
    process = {"state": "S", "cpu": 1.0}
    FakeAgent(hub, identity("w1"))
    FakeAgent(
        hub, identity("w2", 1), {"progress": {"facts": FACTS}, "look": {"process": process}, "children": {"count": 0}}
    )
    with hub.client() as client:
        silent, _ = client.call("hang", timeout=stretched(3.0))["ranks"]
    assert (silent["process"], silent["threads"]) == (process, [])


def test_children_that_do_not_tell_in_time_are_counted(hub: RunningHub) -> None:
    def children(request: Any) -> dict[str, Any] | None:
        return {"count": 3} if request.get("count") else None

    FakeAgent(hub, identity("w1"), {"stacks": {"threads": THREADS}, "children": children})
    with hub.client() as client:
        ranks = client.call("stacks", timeout=SHORT)["ranks"]
    assert [rank["untold"] for rank in ranks] == [3]
    assert "Worker[0] pid 100: no answer in time from its 3 child processes" in page(merge(ranks)).plain


def test_the_hub_looks_before_neighbours_that_may_stand_too(hub: RunningHub, monkeypatch: pytest.MonkeyPatch) -> None:
    async def onlook(node_id: str, op: str, timeout: float, arguments: dict[str, Any]) -> dict[str, Any]:
        return {"threads": THREADS}

    monkeypatch.setattr(hub.surroundings, "is_here", lambda node_id: node_id == "node1")
    monkeypatch.setattr(hub.surroundings, "onlook", onlook)
    frozen = [FakeAgent(hub, identity(f"w{rank}", rank)) for rank in range(3)]
    with hub.client() as client:
        ranks = client.call("stacks", timeout=LONG)["ranks"]
    assert [rank["threads"] for rank in ranks] == 3 * [THREADS]
    assert not any(request["op"] == "spy" for each in frozen for request in each.requests)


def test_the_hub_itself_looks_at_who_is_on_its_node() -> None:
    surroundings = RaySurroundings()
    surroundings.place = {"node_id": "node1"}
    seen = asyncio.run(surroundings.onlook("node1", "look", stretched(20), {"pid": os.getpid()}))
    assert seen["process"]["state"] in "RSD"
    assert "error" in asyncio.run(surroundings.onlook("node1", "nothing", stretched(20), {}))
