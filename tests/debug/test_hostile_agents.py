"""Whatever one who has the key says as an agent: it is passed over, and the others are listed and told as before."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from rich.console import Console

from devkit.console import Plain
from devkit.debug.inworker import wire
from devkit.debug.ps_view import page
from tests.debug.conftest import eventually
from tests.debug.hubs import KEY, FakeAgent, RunningHub, identity, running_hub, stop
from tests.debug.test_hostile_crashes import places

NUMBERS = count(1)
POINT = {"id": "b2", "spec": "a.py:1", "paths": ["a.py"], "line": 1, "job_id": "01"}
RAISED = {"type": "ValueError", "message": "no"}
SOUND: dict[str, dict[str, Any]] = {
    "hello": {"type": "hello", "identity": identity("w2"), "breakpoints": [POINT]},
    "report": {
        "type": "report",
        "identity": identity("w2"),
        "stops": [{**stop("w2"), "exception": RAISED, "breakpoints": ["b1"]}],
        "armed": {"b1": {"places": 1, "note": "", "hits": 2, "error": ""}},
        "ended": [{"id": "w2-0", "why": "timeout"}, {"id": "w2-5", "why": "timeout", "stop": stop("w2", number=5)}],
    },
    "reply": {"type": "reply", "id": 7, "report": {"identity": identity("w2"), "stops": [], "armed": {}, "ended": []}},
    "doing": {"type": "doing", "time": 1.0, "frames": [{"file": "a.py", "line": 1, "function": "f"}]},
    "bye": {"type": "bye", "reason": "it ended"},
}
PLACES = [(kind, place) for kind, message in SOUND.items() for place in places(message) if place and place != ("type",)]
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None), max_size=5)
JSON = st.recursive(
    PLAIN | st.sampled_from([10**400, "w1", "w1-1", "b1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["id", "b1", "identity"]), inner),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    with running_hub(tmp_path_factory.mktemp("hub")) as hub:
        FakeAgent(hub, identity("w1")).report(stop("w1"))
        with hub.client() as client:
            client.call("break", breakpoint={**POINT, "id": "b1"}, wait=0.0)
            eventually(lambda: client.call("ps")["stops"])
        yield hub


def changed(kind: str, place: tuple[Any, ...], to: Any) -> dict[str, Any]:
    message: Any = json.loads(json.dumps(SOUND[kind]))
    at = message
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = to
    return message  # type: ignore[no-any-return]


@given(st.sampled_from(PLACES), JSON)
@example(("hello", ("identity",)), None)
@example(("hello", ("identity", "pid")), "x")
@example(("hello", ("identity", "job_id")), [])
@example(("hello", ("identity", "rank")), "0")
@example(("hello", ("breakpoints",)), 1)
@example(("report", ("stops", 0, "since")), "now")
@example(("report", ("stops", 0, "since")), float("nan"))
@example(("report", ("stops", 0, "since")), 10**400)
@example(("report", ("stops", 0, "file")), "\ud800")
@example(("report", ("stops",)), {"id": "x"})
@example(("report", ("stops",)), [{"id": "x"}])
@example(("report", ("identity", "role")), 7)
@example(("report", ("armed", "b1")), {})
@example(("report", ("armed", "b1", "note")), [[]])
@example(("reply", ("report", "stops")), [1])
@example(("bye", ("reason",)), {})
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_message_is_passed_over_or_shown(hub: RunningHub, where: tuple[str, tuple[Any, ...]], to: Any) -> None:
    last = f"last-{next(NUMBERS)}"
    with closing(wire.Connection(("127.0.0.1", hub.port), KEY, "agent")) as agent, hub.client() as client:
        if where[0] != "hello":
            agent.send(SOUND["hello"])
            agent.send(SOUND["report"])
        agent.send(changed(*where, to))
        agent.send({"type": "hello", "identity": identity(last)})  # it is heard after what came before, and as it was
        told = eventually(lambda: ps_with(client, last))
        assert "w1-1" in [each["id"] for each in told["stops"]]
        assert client.call("hang", job_id="99", timeout=1.0)["ranks"] is not None
        agent.send({"type": "bye", "reason": "over"})
        eventually(lambda: not ps_with(client, last))
    json.dumps(told, allow_nan=False)
    with io.TextIOWrapper(io.BytesIO(), "utf-8") as file:
        Console(file=file).print(Plain(page(told, 2000.0, width=None)))  # as the command line does


def ps_with(client: Any, worker_id: str) -> dict[str, Any]:
    """The document of `devkit ps`, once this worker is in it."""
    document: dict[str, Any] = client.call("ps")
    return document if worker_id in [each["worker_id"] for each in document["workers"]] else {}


def test_who_has_said_goodbye_is_asked_no_more(hub: RunningHub) -> None:
    with closing(wire.Connection(("127.0.0.1", hub.port), KEY, "agent")) as agent, hub.client() as client:
        agent.send({"type": "hello", "identity": identity("w3")})
        eventually(lambda: ps_with(client, "w3"))
        agent.send({"type": "bye", "reason": "it ended"})
        eventually(lambda: not ps_with(client, "w3"))
        assert client.call("hang", job_id="99", timeout=1.0)["ranks"] == []
