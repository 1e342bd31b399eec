"""Tasks that hold what others ask for, and wait themselves: the cause is at the end of their wait."""

from __future__ import annotations

from typing import Any

import pytest

from devkit.hang.facts import Call, Holder, NodeFacts, Pending
from devkit.hang.records import Verdict
from tests.hang.jobs import RAY, TRAIN, Document, driver, facts, process, verdict

NODE = [NodeFacts("n", "10.0.0.1", {"CPU": 2.0}, {"CPU": 0.0})]
ASKED = [Pending("task", "rollout", "p0", ({"CPU": 1.0},))]
IN_USE = (
    "the task rollout waits for resources that are in use: it requests 1 CPU, and 0 of 2 CPU are free; "
    "2 tasks rollout of job 01 hold 1 CPU each"
)


def task(number: int, line: int = 16, **changes: Any) -> Document:
    target = changes.pop("target", "TCP 127.0.0.1:5 to 127.0.0.1:80")
    call = changes.pop("call_in", "recvfrom")
    found = process(facts(None, line, "request", call_in=call, target=target, **changes), number, "task rollout")
    found["identity"]["rank"] = None
    return found


def router() -> Document:
    at = {"file": TRAIN, "line": 72, "function": "Router._acquire"}
    what = "the predicate of a threading.Condition to hold"
    wait = {"thread": "MainThread", "call": "Router._acquire", "at": at, "what": what, "count": 4, "free": False}
    known = facts(None, 72, "Router._acquire", primitives=[wait], connected={"sockets": ["127.0.0.1:80"]})
    found = process({**known, "keeps": {"dead": "{'a', 'b'}"}}, 5, "Router")
    found["identity"]["rank"] = None
    return found


def held(*numbers: int, kind: str = "task") -> list[Holder]:
    return [Holder("rollout", "01", False, {"CPU": 1.0}, kind, f"task rollout-{number}") for number in numbers]


def told(*processes: Document, holders: list[Holder], **tables: Any) -> Verdict:
    return verdict([driver(), *processes], patience=1.0, pending=ASKED, nodes=NODE, holders=holders, **tables)


def test_their_wait_is_followed_to_its_end_and_the_queue_comes_of_it() -> None:
    found = told(task(1), task(2), router(), holders=held(1, 2))
    assert found.sentence == (
        "no progress: task rollout pid 1001 waits for data from TCP 127.0.0.1:5 to 127.0.0.1:80 at "
        f"{TRAIN}:16 in request (1 more at the same line); 127.0.0.1:80 is Router pid 1005's, which waits for the "
        f"predicate of a threading.Condition to hold at {TRAIN}:72 in Router._acquire; what these tasks hold, others "
        f"wait for: {IN_USE}"
    )
    assert (found.kind, found.decided) == ("stuck", True)
    assert found.culprit is not None and (found.culprit.role, found.culprit.line) == ("Router", 72)
    assert any(line == "Router pid 1005 has dead = {'a', 'b'}" for line in found.evidence), found.evidence


def test_a_call_that_runs_is_followed_too() -> None:
    wanted = "c" * 16 + "f" * 24 + "01000000"
    at = {"file": TRAIN, "line": 16, "function": "request"}
    wait = {"thread": "MainThread", "call": "request", "at": at, "tasks": [wanted], "needed": 1, "ends": False}
    asks = task(1, call_in="futex", target="", inner=[(RAY, 7, "get")], waits=[{**wait, "side": False}])
    call = Call(wanted, "Router.pick", "RUNNING", "Router-5")
    found = told(asks, router(), holders=held(1), calls={wanted: call})
    assert found.sentence.startswith(
        f"no progress: task rollout pid 1001 waits at {TRAIN}:16 in request for Router.pick, which runs in Router pid "
        "1005; Router pid 1005 waits for the predicate"
    ), found.sentence


def test_where_it_cannot_be_followed_the_wait_itself_is_told() -> None:
    found = told(task(1), task(2, line=19), holders=held(1, 2))
    assert found.kind == "resource" and found.sentence == (
        f"{IN_USE}; of these tasks, task rollout pid 1001 waits for data from TCP 127.0.0.1:5 to 127.0.0.1:80 at "
        f"{TRAIN}:16 in request, 1 more at other lines"
    )


@pytest.mark.parametrize(
    ("processes", "holders"),
    [
        pytest.param([task(1), router()], held(1, 2), id="one of them is not known"),
        pytest.param([task(1), task(2, call_in="clock_nanosleep", target=""), router()], held(1, 2), id="one sleeps"),
        pytest.param([task(1), task(2), router()], held(1, 2, kind="actor"), id="actors hold it for their life"),
    ],
)
def test_of_others_it_is_not_said(processes: list[Document], holders: list[Holder]) -> None:
    found = told(*processes, holders=holders)
    assert found.kind == "resource" and found.sentence == IN_USE.replace("tasks", f"{holders[0].kind}s"), found.sentence
