"""Whatever one who knows the key asks of the hub: it is answered, and the others are served as before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from devkit.debug.inworker import wire
from devkit.debug.inworker.hub_requests import OPERATIONS
from tests.debug.hubs import KEY, FakeAgent, RunningHub, identity, running_hub, stop

KEYS = (
    *("breakpoint", "id", "ids", "expression", "how", "job_id", "code", "timeout", "wait", "settle", "file"),
    *("worker_id", "only", "native", "spec", "role", "ranks", "line", "condition", "hits", "log"),
)
PLAIN = st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.floats() | st.text(st.characters(codec=None))
KNOWN = st.sampled_from(["w1", "w1-1", "b1", "01", "", "0", "1,2", "::0", "a.py:1", "a.py:1 @X[0] if y"])
VALUES = st.recursive(
    PLAIN | KNOWN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | st.text(), inner, max_size=6),
    max_leaves=8,
)
# What the hub asks of an agent, which refuses it here.
ASKED = (
    "break",
    "clear",
    "eval",
    "continue",
    "step",
    "stacks",
    "spy",
    "progress",
    "look",
    "source",
    "kept",
    "last_words",
    "children",
)
REQUESTS = st.fixed_dictionaries(
    {
        "op": st.sampled_from(sorted(OPERATIONS)) | st.text(max_size=3),
        "arguments": st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6),
    }
)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    with running_hub(tmp_path_factory.mktemp("hub")) as hub:
        FakeAgent(hub, identity("w1"), answers={op: {"error": "no"} for op in ASKED}).report(stop("w1"))
        yield hub


def breakpoint_(**changed: Any) -> dict[str, Any]:
    return {"op": "break", "arguments": {"breakpoint": {"id": "b1", "spec": "a.py:1", **changed}}}


def connect(hub: RunningHub) -> wire.Connection:
    return wire.Connection(("127.0.0.1", hub.port), KEY, "client")


@given(REQUESTS)
@example({"op": "break", "arguments": {"breakpoint": {"id": "b9"}}})
@example(breakpoint_(ranks=7))
@example(breakpoint_(role=[]))
@example(breakpoint_(ranks="1:2:3:4"))
@example(breakpoint_(id=["b"]))
@example({"op": "eval", "arguments": {"expression": "1", "timeout": float("nan")}})
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_request_is_answered_and_harms_nobody_else(hub: RunningHub, request_: dict[str, Any]) -> None:
    with closing(connect(hub)) as client:
        client.send({"id": 1, **request_})
        assert client.receive(10)["id"] == 1
    with hub.client() as other:
        assert [each["id"] for each in other.call("ps")["stops"]] == ["w1-1"]


def test_who_watches_is_still_told(hub: RunningHub) -> None:
    """After all that: the hub tells those who watch from a task of its own, which has to live on."""
    with closing(connect(hub)) as client:
        client.send({"id": 1, "op": "watch", "arguments": {}})
        assert client.receive(10)["id"] == 1
        FakeAgent(hub, identity("w2")).report(stop("w2"))
        while len(client.receive(10).get("event", {}).get("stops", ())) < 2:
            pass
