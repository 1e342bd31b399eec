"""Ray's own Distributed Debugger extension sees and handles our stops: a client that makes exactly its calls."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from devkit.debug.client import HubClient
from tests.pace import stretched

from .conftest import Cluster, eventually, staged
from .look import Look
from .stages import Debugger, Socket, Stage

pytestmark = pytest.mark.ray

Row = dict[str, Any]
PAUSED = (("num_paused_threads", "!=", "0"), ("is_alive", "=", "True"))


class Extension:
    """What it asks of the dashboard."""

    def __init__(self, cluster: Cluster) -> None:
        self._url = cluster.dashboard_url
        self._token = cluster.environ["RAY_AUTH_TOKEN"]

    def get(self, path: str, token: str | None = None) -> Any:
        header = {"Authorization": f"Bearer {self._token if token is None else token}"}
        with urllib.request.urlopen(
            urllib.request.Request(self._url + path, headers=header), timeout=stretched(30)
        ) as answer:
            return json.load(answer)

    def paused(self, job: Look) -> list[Row]:
        """The workers of this job with stopped threads; other tests use the same cluster."""
        query = [("detail", "1"), ("limit", "10000")]
        for key, predicate, value in PAUSED:
            query += [("filter_keys", key), ("filter_predicates", predicate), ("filter_values", value)]
        rows = self.get(f"/api/v0/workers?{urllib.parse.urlencode(query)}")["data"]["result"]["result"]
        mine = {stop["worker_id"] for stop in job.now()}
        return [row for row in rows if row["worker_id"] in mine]

    def attach(self, row: Row) -> Debugger:
        client = Debugger(Socket(row["ip"], row["debugger_port"]))
        client.attach(justMyCode=False, pathMappings=[{"localRoot": "/work", "remoteRoot": "/work"}])
        return client


@pytest.fixture(scope="module")
def scene(cluster: Cluster) -> Iterator[Stage]:
    with staged(cluster, "scenes.py", "--post-mortem", "pause") as stage:
        yield stage


@pytest.fixture
def look(hub: HubClient, scene: Stage) -> Iterator[Look]:
    look = Look(hub, scene.job.id, "scenes.py")
    yield look
    look.resume_all()


@pytest.fixture
def extension(cluster: Cluster) -> Extension:
    return Extension(cluster)


def one_paused(extension: Extension, look: Look, threads: int = 1) -> Row:
    rows = eventually(
        lambda: [row for row in extension.paused(look) if row["num_paused_threads"] == threads], "a paused worker"
    )
    assert len(rows) == 1
    found: Row = rows[0]
    return found


def test_the_dashboard_asks_for_the_token(extension: Extension) -> None:
    assert extension.get("/api/authentication_mode", token="")["authentication_mode"] == "token"
    with pytest.raises(urllib.error.HTTPError) as refused:
        extension.get("/api/v0/workers", token="")
    refused.value.close()
    assert refused.value.code in (401, 403)


def test_a_breakpoint_from_list_to_continue(scene: Stage, look: Look, extension: Extension) -> None:
    scene.do("p = Plain.remote(); r = p.stop.remote(21)")
    [stop] = look.stops("plain")
    row = one_paused(extension, look)
    assert (row["pid"], row["worker_id"], row["is_alive"]) == (stop["pid"], stop["worker_id"], True)
    client = extension.attach(row)
    event = client.event("stopped")
    assert event["reason"] == "breakpoint"
    frame = client.top(event["threadId"])
    assert (frame["source"]["path"], frame["line"], frame["name"]) == (stop["file"], stop["line"], stop["function"])
    assert client.evaluate("doubled", frame["id"]) == "42"
    look.attached(stop, 1)
    assert one_paused(extension, look) == row  # who attaches doesn't take it from the list
    client.set(frame["id"], "doubled", "1000")
    client.ask("continue", threadId=event["threadId"])
    assert scene.do("ray.get(r)") == 1000
    assert look.end_of(stop) == "continued"
    assert eventually(lambda: paused_of(extension, stop) == 0)
    client.ask("disconnect")
    client.wire.close()
    assert scene.do("ray.get(p.tracing.remote())") == [False, False, []]


def paused_of(extension: Extension, stop: Row) -> int:
    """How many threads of its worker Ray lists as paused."""
    query = urllib.parse.urlencode(
        {"detail": 1, "filter_keys": "worker_id", "filter_predicates": "=", "filter_values": stop["worker_id"]}
    )
    [row] = extension.get(f"/api/v0/workers?{query}")["data"]["result"]["result"]
    return int(row["num_paused_threads"])


def test_a_post_mortem_pause(scene: Stage, look: Look, extension: Extension) -> None:
    scene.do("p = Plain.remote(); r = p.fail.remote(1)")
    [stop] = look.stops("fail")
    client = extension.attach(one_paused(extension, look))
    event = client.event("stopped")
    assert (event["reason"], event["text"]) == ("exception", "KeyError: 'missing'")
    frame = client.top(event["threadId"])
    assert frame["line"] == stop["line"] and client.evaluate("number", frame["id"]) == "1"
    client.ask("continue", threadId=event["threadId"])
    assert "KeyError" in scene.do("try:\n  ray.get(r)\nexcept Exception as e:\n  said = repr(e)\nsaid")
    assert eventually(lambda: paused_of(extension, stop) == 0)
    client.wire.close()


def test_two_stops_of_one_worker(scene: Stage, look: Look, extension: Extension) -> None:
    scene.do("t = Threaded.remote(); r = [t.stop.remote(1), t.stop.remote(2)]")
    first, second = look.stops("plain", "plain")
    client = extension.attach(one_paused(extension, look, threads=2))
    threads = [client.event("stopped")["threadId"], client.event("stopped")["threadId"]]
    client.ask("continue", threadId=threads[0])
    [left] = look.stops("plain")
    assert left["id"] in (first["id"], second["id"])
    one_paused(extension, look, threads=1)
    client.ask("continue", threadId=threads[1])
    assert scene.do("ray.get(r)") == [2, 4]
    client.wire.close()


@pytest.mark.parametrize("words", [b"", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"Content-Length: x\r\n\r\n"])
def test_a_stranger_at_the_port_does_no_harm(scene: Stage, look: Look, extension: Extension, words: bytes) -> None:
    """`nc -z` and an HTTP request: what leaves debugpy's adapter deaf for ever."""
    scene.do("r = task.remote(1)")
    [stop] = look.stops("task")
    row = one_paused(extension, look)
    with socket.create_connection((row["ip"], row["debugger_port"]), timeout=stretched(30)) as stranger:
        stranger.sendall(words)
        if words:
            assert stranger.recv(100) == b""
    client = extension.attach(row)
    event = client.event("stopped")
    look.attached(stop, 1)
    client.wire.close()  # without a word: nothing is resumed
    look.attached(stop, 0)
    assert event["reason"] == "breakpoint" and look.stops("task") == [stop]
    look.resume(stop)
    assert scene.do("ray.get(r)") == 2


def test_a_breakpoint_that_the_client_sets_is_hit_by_every_call_of_a_threaded_actor(
    scene: Stage, look: Look, extension: Extension
) -> None:
    scene.do("t = Threaded.options(max_concurrency=10).remote(); r = t.stop.remote(1)")
    [stop] = look.stops("plain")
    client = extension.attach(one_paused(extension, look))
    thread = client.event("stopped")["threadId"]
    file, line = look.place("ping")
    [state] = client.ask("setBreakpoints", source={"path": file}, breakpoints=[{"line": line}])["breakpoints"]
    assert state["verified"]
    scene.do("calls = [t.ping.remote() for _ in range(9)]")
    threads = [client.event("stopped")["threadId"] for _ in range(9)]
    assert len(set(threads)) == 9
    for each in [thread, *threads]:
        client.ask("continue", threadId=each)
    assert scene.do("ray.get(calls)") == [stop["pid"]] * 9
    client.ask("disconnect")  # and its breakpoint goes with it
    assert scene.do("ray.get(t.ping.remote())") == stop["pid"]
    client.wire.close()
