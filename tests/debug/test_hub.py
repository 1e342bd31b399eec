"""The hub, over real connections: what clients are told of agents that come, stop, answer, stay silent and vanish."""

from __future__ import annotations

import asyncio
import itertools
import json
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from devkit import patience
from devkit.debug.client import HubClient
from devkit.debug.crashes import all_crashes
from devkit.debug.inworker import agent, hub_links, wire
from devkit.debug.inworker import hub as hub_module
from devkit.errors import DeadlineError, DevkitError, UnreachableError
from tests.debug.hubs import KEY, FakeAgent, RunningHub, identity, running_hub, stop
from tests.pace import stretched

POINT = {"id": "b1", "spec": "job.py:7", "job_id": ""}


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[RunningHub]:
    with running_hub(tmp_path / "crashes") as running:
        yield running


def eventually(look: Callable[[], Any], seconds: float = stretched(10.0)) -> Any:
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
        with pytest.raises(DevkitError, match="nothing is stopped as 'w1-1'") as caught:
            client.call("continue", ids=["w1-1"])
    assert "killed by signal 9" in caught.value.hint


@pytest.mark.parametrize(
    ("fate", "said"),
    [
        ({"reason": "its job has ended", "crashed": False}, "it is gone: its job has ended"),
        (None, "this worker is not connected"),
    ],
)
def test_who_continues_a_worker_that_has_just_gone_is_told_why(
    hub: RunningHub, fate: dict[str, Any] | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the hub has found that out by itself."""
    monkeypatch.setattr(hub_module, "REJOIN_SECONDS", 3600.0)
    agent = FakeAgent(hub, identity("w1"))
    with hub.client() as client:
        agent.report(stop("w1"))
        eventually(lambda: client.call("ps")["stops"])
        agent.close()
        eventually(lambda: not client.call("ps")["workers"][0]["connected"])
        if fate:
            hub.surroundings.fates["w1"] = fate
        assert client.call("continue", ids=["w1-1"]) == {"continued": [], "failed": {"w1-1": said}}


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
        assert client.call("ps")["breakpoints"][0]["missing"] == [{"role": "Worker", "rank": 1}]
        client.call("clear", id="b1")
        with pytest.raises(DevkitError, match="no breakpoint 'b1'"):
            client.call("clear", id="b1")
    assert hub.surroundings.kept[0] == [POINT] and hub.surroundings.kept[-1] == []


def test_a_stop_that_is_reported_right_behind_the_answer_to_a_breakpoint_is_not_lost(hub: RunningHub) -> None:
    """Both come in one piece where the hub gets little time."""
    agent = FakeAgent(hub, identity("w1"), {"break": lambda _: None})
    with hub.client() as client, ThreadPoolExecutor() as pool:
        setting = pool.submit(client.call, "break", breakpoint=POINT, wait=5.0)
        request = eventually(lambda: agent.requests)[0]
        before = {"identity": agent.who, "stops": [], "armed": {}, "ended": []}
        answer = wire.encode({"type": "reply", "id": request["id"], "report": before})
        agent.connection._socket.sendall(answer + wire.encode(agent.report_of(stop("w1"))))
        setting.result()
        assert [each["id"] for each in client.call("ps")["stops"]] == ["w1-1"]


def test_a_stop_that_begins_and_ends_between_two_reports_is_among_those_that_ended(hub: RunningHub) -> None:
    """As one with a time-out of a second does where the process gets little time."""
    agent, over = FakeAgent(hub, identity("w1")), {"id": "w1-2", "why": "timeout", "stop": stop("w1", number=2)}
    agent.report()
    agent.report(ended=(over,))
    with hub.client() as client:
        [gone] = eventually(lambda: client.call("ps")["gone"])
        assert (gone["id"], gone["reason"]) == ("w1-2", "timeout")
        agent.report(stop("w1"), ended=(over,))  # it is said again, and is not another one
        eventually(lambda: client.call("ps")["stops"])
        assert len(client.call("ps")["gone"]) == 1


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


@pytest.mark.parametrize(("op", "more"), [("continue", {}), ("step", {"how": "next"})])
def test_a_silent_rank_is_waited_for_as_long_as_the_user_says(hub: RunningHub, op: str, more: dict[str, str]) -> None:
    FakeAgent(hub, identity("w1"), {}).report(stop("w1"))
    with hub.client() as client:
        eventually(lambda: client.call("ps")["stops"])
        answer = client.call(op, ids=None, timeout=0.3, **more)
        assert answer == {"continued": [], "failed": {"w1-1": "no answer within 0.3 s"}}
        patience.give(0.5)
        assert client.call(op, ids=None, **more)["failed"] == {"w1-1": "no answer within 0.4 s"}
    patience.forget()


def test_a_worker_that_goes_away_while_asked_is_an_answer(hub: RunningHub) -> None:
    agent = FakeAgent(hub, identity("w1"), {"eval": lambda _: agent.close()})
    agent.report(stop("w1"))
    with hub.client() as client:
        eventually(lambda: client.call("ps")["stops"])
        results = client.call("eval", expression="x", ids=None)["results"]
    assert results[0]["error"] == "the worker went away"


def test_a_client_of_little_patience_gives_the_hub_no_more_time(hub: RunningHub) -> None:
    FakeAgent(hub, identity("w1")).report(stop("w1"))
    with HubClient(wire.Connection(("127.0.0.1", hub.port), KEY, "client"), 0.3) as client:
        eventually(lambda: client.call("ps")["stops"])
        [result] = client.call("eval", expression="x", ids=None)["results"]
    assert result["error"] == "no answer within 0.3 s"


def test_who_waits_for_a_hub_that_does_not_answer_waits_as_long_as_the_user_says(tmp_path: Path) -> None:
    with (
        running_hub(tmp_path, after_another=True) as busy,  # it waits for its agents
        HubClient(wire.Connection(("127.0.0.1", busy.port), KEY, "client"), 0.2) as client,
        pytest.raises(DeadlineError, match=r"did not answer `ps` within 1\.2 s"),
    ):
        client.call("ps")


def test_a_hub_that_is_given_time_to_settle_is_waited_for(hub: RunningHub) -> None:
    """Whoever asks for it waits longer than it is patient."""
    agent = FakeAgent(hub, identity("w1"))
    with HubClient(wire.Connection(("127.0.0.1", hub.port), KEY, "client"), 0.1) as client:
        eventually(lambda: client.call("ps")["workers"])
        agent.close()
        eventually(lambda: not client.call("ps")["workers"][0]["connected"])  # its fate is never known
        assert all_crashes(client, settle=1.5) == []


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


def test_children_without_an_agent_are_told_by_their_parents(hub: RunningHub) -> None:
    main = {"state": "S", "wait": {"call": "read", "target": "a pipe"}}
    frames = [{"file": "/p/job.py", "line": 3, "function": "f"}]
    forked = {"threads": [{"name": "MainThread", "frames": frames, "stopped": False}], "main": main}
    other = {"threads": [], "process": {"state": "S"}, "main": main}
    told = [
        {"pid": 7, "command": "", "facts": forked},
        {"pid": 8, "command": "sort", "facts": other},
        {"pid": 101, "command": "", "facts": forked},  # one with an agent: it tells of itself
        {"pid": 9, "command": "broken"},
    ]
    answers = {"stacks": {"threads": []}, "progress": {"facts": {}}, "children": {"count": 4, "children": told}}
    FakeAgent(hub, identity("0a"), answers)
    FakeAgent(hub, identity("0b", rank=1), {**answers, "children": {"count": 0}})
    with hub.client() as client:
        ranks = client.call("stacks", timeout=5.0)["ranks"]
        seen = client.call("hang", timeout=5.0)["ranks"]
    assert [(each["pid"], each["parent"], each["worker_id"]) for each in ranks] == [
        (100, 0, "0a"), (101, 0, "0b"), (7, 100, "0a-7"), (8, 100, "0a-8")
    ]  # fmt: skip
    assert ranks[2]["threads"] == forked["threads"] and ranks[2]["error"] is None
    assert ranks[3]["error"] == "sort (state S, in read on a pipe)"
    assert [each["identity"]["pid"] for each in seen] == [100, 101, 7, 8]
    assert seen[3]["command"] == "sort" and seen[3]["identity"]["role"] == "Worker"


def test_stacks_of_a_silent_worker_come_from_a_neighbour_on_its_node(hub: RunningHub) -> None:
    threads = [{"name": "MainThread", "frames": [], "stopped": False}]
    FakeAgent(hub, identity("w1"), {})
    spy = FakeAgent(hub, identity("w2", rank=1), {"stacks": {"threads": []}, "spy": {"threads": threads}})
    with hub.client() as client:
        ranks = client.call("stacks", timeout=5.0)["ranks"]
    assert {rank["rank"]: rank["threads"] for rank in ranks} == {0: threads, 1: []}
    assert spy.requests[-1]["pid"] == 100


def test_who_is_late_itself_is_heard_though_nobody_else_answers(
    hub: RunningHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a machine so busy that nobody who is sent there ever starts; a process that answers late is enough."""
    sent = {"spy": threading.Event(), "look": threading.Event()}

    async def onlook(_node: str, op: str, _timeout: float, _arguments: dict[str, Any]) -> dict[str, Any]:
        sent[op].set()
        await asyncio.Event().wait()
        raise AssertionError

    def late(op: str, answer: dict[str, Any]) -> Callable[[Any], dict[str, Any]]:
        return lambda _request: answer if sent[op].wait(stretched(60)) else {"error": "nobody was sent"}

    monkeypatch.setattr(hub.surroundings, "onlook", onlook)
    threads = [{"name": "MainThread", "frames": [], "stopped": False}]
    answers = {"stacks": late("spy", {"threads": threads}), "progress": late("look", {"facts": {"threads": threads}})}
    FakeAgent(hub, identity("w1"), {**answers, "children": {"count": 0}})
    with hub.client() as client:
        [rank] = client.call("stacks", timeout=stretched(60))["ranks"]
        [seen] = client.call("hang", timeout=stretched(60))["ranks"]
    assert (rank["threads"], rank["error"]) == (threads, None)
    assert (seen["facts"], seen["error"]) == ({"threads": threads}, None)


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
    return socket.create_connection(("127.0.0.1", hub.port), timeout=stretched(10))


STRANGERS = {
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "zeros": b"\x00" * 2000 + b"\n",
    "handshake": b'{"nonce":"1"}\n',
    "request": b'{"op":"ps"}\n',
    "array": b"[]\n",
    "another alphabet": '{"nonce":"1","mac":"ä"}\n'.encode(),
    "half a character": b'{"nonce":"\\ud800","mac":"\\ud800"}\n',
    "no text": b"\xff\xfe\n",
    "deep": b"[" * 1020 + b"\n",
    "deep objects": b'{"a":' * 200 + b"\n",
    "a long number": b'{"nonce":1e999,"mac":' + b"9" * 900 + b"}\n",
    "no end of a line": b"x" * 1100,
    "much more": b"x" * 8_000_000,
}


@pytest.fixture
def silent(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Nothing is said of it anywhere."""
    yield
    assert caplog.get_records("call") == [] and capfd.readouterr().err == ""


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("words", STRANGERS.values(), ids=STRANGERS)
def test_a_stranger_is_told_nothing_and_closed_at_once(
    hub: RunningHub, words: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "HANDSHAKE_SECONDS", 60.0)  # it is not that which ends them
    with raw(hub) as stranger:
        greeting = json.loads(stranger.makefile("rb").readline())
        with suppress(ConnectionError):  # closed while it still spoke
            stranger.sendall(words)
            assert stranger.recv(1000) == b""
    assert set(greeting) == {"devkit", "nonce"}
    with hub.client() as client:
        assert client.call("ps")["workers"] == []


@pytest.mark.usefixtures("silent")
def test_strangers_who_say_nothing_are_gone_after_a_while(hub: RunningHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "HANDSHAKE_SECONDS", 0.2)
    with raw(hub) as stranger:
        assert stranger.makefile("rb").read().count(b"\n") == 1


@pytest.mark.usefixtures("silent")
def test_of_too_many_strangers_those_go_that_have_waited_longest(
    hub: RunningHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "HANDSHAKE_SECONDS", 60.0)
    monkeypatch.setattr(hub_links, "MOST_STRANGERS", 8)
    with ExitStack() as stack:
        waiting = []
        for _ in range(20):
            waiting.append(stack.enter_context(raw(hub)))
            waiting[-1].recv(1000)  # it was let in
        for first in waiting[:12]:
            with suppress(ConnectionError):
                assert first.recv(1000) == b""
        with hub.client() as client:
            assert client.call("ps")["workers"] == []
        still = [each for each in waiting[13:] if not select.select([each], [], [], 0)[0]]
        assert len(still) == 7, "but for the one whose place the client had"


@pytest.mark.usefixtures("silent")
def test_there_are_never_more_connections_than_the_process_may_have(
    hub: RunningHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_links, "MOST_CONNECTIONS", 2)
    with hub.client() as first:
        with hub.client() as second:
            for _ in range(3):
                with raw(hub) as late, suppress(ConnectionError):
                    assert late.recv(1000) == b""
            assert first.call("ps") == second.call("ps")

        def joined() -> bool:
            with suppress(OSError), hub.client() as third:
                return bool(third.call("ps"))
            return False

        assert eventually(joined), "there is room again"


def test_what_is_said_to_somebody_who_reads_nothing_has_an_end(
    hub: RunningHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_links, "MOST_UNSENT", 100_000)
    deaf = wire.Connection(("127.0.0.1", hub.port), KEY, "client")
    deaf.send({"id": 1, "op": "watch", "arguments": {}})
    agent = FakeAgent(hub, identity("w1"))
    with hub.client() as client:
        eventually(lambda: hub.hub.watchers)
        for number in itertools.count(1):
            agent.report(*(stop("w1", 1000 * number + each) for each in range(500)))
            client.call("ps")
            if not hub.hub.watchers:
                break
        assert client.call("ps")["stops"]
    deaf.close()


@pytest.mark.parametrize("kind", ["agent", "client"])
@pytest.mark.parametrize("words", [b"[]\n", b'{"type":"channel"}\n', b"\xff\n", b"[" * 9000 + b"\n"])
def test_nonsense_of_one_who_knows_the_key_ends_its_connection_alone(
    hub: RunningHub, kind: str, words: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    odd = wire.Connection(("127.0.0.1", hub.port), KEY, kind)
    odd._socket.sendall(words)
    assert list(odd) == []
    odd.close()
    with hub.client() as client:
        assert client.call("ps")["workers"] == []
    [said] = capfd.readouterr().err.splitlines()
    assert said.startswith("devkit: the hub closed a connection")


def test_a_request_that_cannot_be_answered_is_told_to_who_asked(hub: RunningHub) -> None:
    with hub.client() as client, pytest.raises(DevkitError, match="the hub can't answer"):
        client.call("eval", expression="1", ids=7)


def test_a_hub_that_was_started_again_answers_when_its_agents_have_had_time_to_join(tmp_path: Path) -> None:
    assert max(agent.RETRY_SECONDS) < hub_module.GATHER_SECONDS
    with running_hub(tmp_path, after_another=True) as again, again.client() as client:
        found: list[Any] = []
        asking = threading.Thread(target=lambda: found.append(client.call("ps")))
        asking.start()
        FakeAgent(again, identity("w1")).report(stop("w1"))
        asking.join(stretched(20))
        assert [each["id"] for each in found[0]["stops"]] == ["w1-1"]


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
        imitator.join(stretched(10))
