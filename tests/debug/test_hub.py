"""The hub, over real connections: what clients are told of agents that come, stop, answer, stay silent and vanish."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from devkit.debug.inworker import wire
from devkit.errors import DevkitError, UnreachableError
from tests.debug.hubs import KEY, FakeAgent, RunningHub, identity, running_hub, stop

POINT = {"id": "b1", "spec": "job.py:7", "job_id": ""}


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[RunningHub]:
    with running_hub(tmp_path / "crashes") as running:
        yield running


def eventually(look: Callable[[], Any], seconds: float = 10.0) -> Any:
    """What `look` gives once it is true."""
    end = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)
    return found


def test_a_stop_is_listed_until_its_worker_reports_that_it_ended(hub: RunningHub) -> None:
    agent = FakeAgent(hub, identity("w1"))
    with hub.client() as client:
        agent.report(stop("w1"))
        eventually(lambda: client.call("ps")["stops"])
        agent.report(ended=({"id": "w1-1", "why": "timeout"},))
        gone = eventually(lambda: client.call("ps")["gone"])
    assert [(end["id"], end["reason"]) for end in gone] == [("w1-1", "timeout")]


def test_watching_gives_each_change(hub: RunningHub) -> None:
    agent = FakeAgent(hub, identity("w1"))
    with hub.client() as client:
        news = client.watch()
        assert next(news)["stops"] == []
        agent.report(stop("w1"))
        assert next(document for document in news if document["stops"])["stops"][0]["id"] == "w1-1"


def test_a_stop_outlives_a_broken_connection_and_the_agent_joins_again(hub: RunningHub) -> None:
    agent = FakeAgent(hub, identity("w1"))
    with hub.client() as client:
        agent.report(stop("w1"))
        eventually(lambda: client.call("ps")["stops"])
        agent.close()
        eventually(lambda: not client.call("ps")["workers"][0]["connected"])
        assert client.call("ps")["stops"], "the process may be alive: its stop stays"
        FakeAgent(hub, identity("w1")).report(stop("w1"))
        eventually(lambda: client.call("ps")["workers"][0]["connected"])
        assert [each["id"] for each in client.call("ps")["stops"]] == ["w1-1"]


def test_a_dead_worker_takes_its_stops_along_and_ps_says_why(hub: RunningHub) -> None:
    agent = FakeAgent(hub, identity("w1"))
    hub.surroundings.fates["w1"] = {"reason": "the process died: killed by signal 9"}
    with hub.client() as client:
        agent.report(stop("w1"))
        eventually(lambda: client.call("ps")["stops"])
        agent.close()
        gone = eventually(lambda: client.call("ps")["gone"])
        assert gone[0]["reason"] == "the process died: killed by signal 9"
        with pytest.raises(DevkitError, match="nothing is stopped as w1-1") as caught:
            client.call("continue", ids=["w1-1"])
    assert "killed by signal 9" in caught.value.hint


def test_a_breakpoint_is_posted_kept_and_given_to_who_joins_later(hub: RunningHub) -> None:
    report = {"identity": identity("w1"), "stops": [], "armed": {"b1": {"places": 1, "note": "", "hits": 0}}}
    FakeAgent(hub, identity("w1"), {"break": {"report": report}})
    with hub.client() as client:
        state = client.call("break", breakpoint=POINT, wait=5.0)
        assert (state["armed"], state["workers"]) == (1, 1)
        late = FakeAgent(hub, identity("w2", rank=1))
        assert late.breakpoints == [POINT]
        late.report(armed={"b1": {"places": 0, "note": "module not loaded yet", "hits": 0}})
        state = eventually(lambda: next((s for s in client.call("ps")["breakpoints"] if s["workers"] == 2), None))
        eventually(lambda: client.call("ps")["breakpoints"][0]["note"])
        assert client.call("ps")["breakpoints"][0]["note"] == "module not loaded yet"
        client.call("clear", id="b1")
        with pytest.raises(DevkitError, match="no breakpoint b1"):
            client.call("clear", id="b1")
    assert hub.surroundings.kept[0] == [POINT] and hub.surroundings.kept[-1] == []


def test_a_breakpoint_of_one_job_is_not_for_another(hub: RunningHub) -> None:
    other = FakeAgent(hub, identity("w1", job_id="02"))
    with hub.client() as client:
        state = client.call("break", breakpoint={**POINT, "job_id": "01"}, wait=1.0)
    assert (state["workers"], state["note"]) == (0, "no worker has joined yet")
    assert other.requests == []


def test_an_eval_asks_all_at_once_and_a_silent_rank_is_named(hub: RunningHub) -> None:
    first = FakeAgent(hub, identity("w1"), {"eval": {"value": "1"}})
    silent = FakeAgent(hub, identity("w2", rank=1), {})
    first.report(stop("w1"))
    silent.report(stop("w2", number=2, rank=1))
    with hub.client() as client:
        eventually(lambda: len(client.call("ps")["stops"]) == 2)
        results = client.call("eval", expression="x", ids=None, timeout=0.3)["results"]
    assert [(each["rank"], each["value"], each["error"]) for each in results] == [
        (0, "1", None),
        (1, None, "no answer within 0.3 s"),
    ]


def test_a_worker_that_goes_away_while_asked_is_an_answer(hub: RunningHub) -> None:
    agent = FakeAgent(hub, identity("w1"), {"eval": lambda _: agent.close()})
    agent.report(stop("w1"))
    with hub.client() as client:
        eventually(lambda: client.call("ps")["stops"])
        results = client.call("eval", expression="x", ids=None)["results"]
    assert results[0]["error"] == "the worker went away"


def test_a_channel_carries_messages_both_ways_and_ends_with_its_worker(hub: RunningHub) -> None:
    agent = FakeAgent(hub, identity("w1"))
    with hub.client() as client:
        channel = client.channel("w1", only="w1-1")
        channel.send({"seq": 1})
        assert channel.receive(5) == {"echo": {"seq": 1}}
        assert agent.channels[0]["only"] == "w1-1"
        agent.close()
        assert channel.receive(5) is None
        assert channel.receive(5) is None


def test_a_client_that_leaves_closes_its_channel(hub: RunningHub) -> None:
    agent = FakeAgent(hub, identity("w1"))
    with hub.client() as client:
        client.channel("w1")
    eventually(lambda: any(each.get("closed") for each in agent.channels))


def test_stacks_of_a_silent_worker_come_from_a_neighbour_on_its_node(hub: RunningHub) -> None:
    threads = [{"name": "MainThread", "frames": [], "stopped": False}]
    FakeAgent(hub, identity("w1"), {})
    spy = FakeAgent(hub, identity("w2", rank=1), {"stacks": {"threads": []}, "spy": {"threads": threads}})
    with hub.client() as client:
        ranks = client.call("stacks", timeout=5.0)["ranks"]
    assert {rank["rank"]: rank["threads"] for rank in ranks} == {0: threads, 1: []}
    assert spy.requests[-1]["pid"] == 100


def test_a_hub_that_dies_is_an_error_with_a_hint(hub: RunningHub) -> None:
    with hub.client() as client:
        news = client.watch()
        next(news)
        hub.stop()
        with pytest.raises(UnreachableError, match="the hub went away"):
            next(news)
        with pytest.raises(UnreachableError):
            client.call("ps")


def raw(hub: RunningHub) -> socket.socket:
    return socket.create_connection(("127.0.0.1", hub.port), timeout=10)


@pytest.mark.parametrize(
    "words",
    [b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 2000 + b"\n", b'{"nonce":"1"}\n', b'{"op":"ps"}\n', b"[]\n"],
    ids=["http", "zeros", "handshake", "request", "array"],
)
def test_a_stranger_is_told_nothing(hub: RunningHub, words: bytes) -> None:
    with raw(hub) as stranger:
        greeting = json.loads(stranger.makefile("rb").readline())
        stranger.sendall(words)
        assert stranger.recv(1000) == b""
    assert set(greeting) == {"devkit", "nonce"}
    with hub.client() as client:
        assert client.call("ps")["workers"] == []


def test_another_token_is_refused_with_a_word_about_it(hub: RunningHub) -> None:
    with pytest.raises(wire.WireError, match="another token"):
        wire.Connection(("127.0.0.1", hub.port), wire.derive_key("wrong", "hub 1"), "client")


def test_a_port_scan_does_no_harm(hub: RunningHub) -> None:
    for _ in range(50):
        raw(hub).close()
    with hub.client() as client:
        assert client.call("ps")["stops"] == []


def test_who_imitates_the_hub_without_the_key_is_found_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def imitate() -> None:
            there, _ = server.accept()
            with there:
                there.sendall(wire.encode({"devkit": 1, "nonce": "00"}))
                there.recv(1000)
                there.sendall(wire.encode({"mac": "00"}))

        imitator = threading.Thread(target=imitate, daemon=True)
        imitator.start()
        with pytest.raises(wire.WireError, match="does not know the cluster's token"):
            wire.Connection(server.getsockname()[:2], KEY, "client")
        imitator.join(10)
