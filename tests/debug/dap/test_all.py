"""`devkit dap --all`: ranks as child sessions, and ranks as threads of one session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devkit.debug.dap import Options
from devkit.errors import UsageError
from tests.debug import debuggee
from tests.debug.dap.support import SECONDS, Client, Worker, end, running, until
from tests.debug.debuggee import marked
from tests.debug.hubs import RunningHub, running_hub

Document = dict[str, Any]
CHILDREN = {"supportsStartDebuggingRequest": True}


@pytest.fixture
def workers(hub: RunningHub) -> Iterator[list[Worker]]:
    workers = [Worker(rank) for rank in range(3)]
    for worker in workers:
        worker.join(hub)
    yield workers
    for worker in workers:
        worker.finish()


def stop_all(workers: list[Worker], program: Any = debuggee.train) -> None:
    for worker in workers:
        worker.start(program)
    for worker in workers:
        until(worker.stops.records)


def threads(client: Client) -> dict[str, int]:
    return {each["name"]: each["id"] for each in client.ask("threads")["threads"]}


def all_stopped(client: Client, names: set[str]) -> dict[str, int]:
    """Every rank by name, once each of them has told of its stop."""
    until(lambda: set(threads(client)) == names, f"not {names}")
    found = threads(client)
    for number in found.values():
        client.event("stopped", where=lambda body, number=number: body["threadId"] == number)  # type: ignore[misc]
    return found


RANKS = {"Worker[0]", "Worker[1]", "Worker[2]"}

# ---- one session


def test_every_rank_is_a_thread(hub: RunningHub, workers: list[Worker]) -> None:
    stop_all(workers)
    with running(Options(everything=True), hub.client) as session:
        client = session.client
        client.attach()
        found = all_stopped(client, RANKS)
        seen = []
        for rank in range(3):
            [top, *_] = client.ask("stackTrace", threadId=found[f"Worker[{rank}]"])["stackFrames"]
            seen.append(top["id"])
            assert top["line"] == marked("pause")
            assert client.ask("evaluate", expression="model.rank", frameId=top["id"])["result"] == str(rank)
            [scope, *_] = client.ask("scopes", frameId=top["id"])["scopes"]
            listed = client.ask("variables", variablesReference=scope["variablesReference"])["variables"]
            model = next(each for each in listed if each["name"] == "model")
            inner = client.ask("variables", variablesReference=model["variablesReference"])["variables"]
            assert next(each["value"] for each in inner if each["name"] == "rank") == str(rank)
        assert len(set(seen)) == 3
        assert not any(event["body"].get("allThreadsStopped") for event in client.events)
        client.leave()
        assert session.code() == 0
    assert [worker.results for worker in workers] == [[], [], []]


def test_a_step_moves_one_rank(hub: RunningHub, workers: list[Worker]) -> None:
    stop_all(workers)
    with running(Options(everything=True), hub.client) as session:
        client = session.client
        client.attach()
        found = all_stopped(client, RANKS)
        before = len(client.events)
        client.ask("next", threadId=found["Worker[1]"])
        assert client.event("stopped", before)["threadId"] == found["Worker[1]"]
        assert [worker.stops.records()[0].line for worker in workers] == [
            marked("pause"), marked("batch"), marked("pause")
        ]  # fmt: skip


@pytest.mark.parametrize("way", ["devkitAll", "singleThread"])
def test_all_ranks_move_together(hub: RunningHub, workers: list[Worker], way: str) -> None:
    stop_all(workers)
    with running(Options(everything=True), hub.client) as session:
        client = session.client
        client.attach()
        found = all_stopped(client, RANKS)
        before = len(client.events)
        if way == "devkitAll":
            body = client.ask("devkitAll", command="next")
        else:
            body = client.ask("next", threadId=found["Worker[0]"], singleThread=False)
        assert {each["threadId"]: each["error"] for each in body["results"]} == dict.fromkeys(found.values(), "")
        for number in found.values():
            client.event("stopped", before, lambda body, number=number: body["threadId"] == number)  # type: ignore[misc]
        assert {worker.stops.records()[0].line for worker in workers} == {marked("batch")}
        assert client.ask("devkitAll", command="continue")["allThreadsContinued"]
        for worker in workers:
            assert worker.thread is not None
            worker.thread.join(SECONDS)
            assert worker.results[-1] == "end"
        assert not client.request("devkitAll", command="evaluate")["success"]


def test_breakpoints_go_to_all_and_to_who_comes_later(hub: RunningHub, workers: list[Worker]) -> None:
    early, late = workers[:2], workers[2]
    stop_all(early)
    with running(Options(everything=True), hub.client) as session:
        client = session.client
        client.ask("initialize")
        client.ask("attach")
        client.event("initialized")
        wanted = {"source": {"path": debuggee.__file__}, "breakpoints": [{"line": marked("batch")}]}
        [point] = client.ask("setBreakpoints", **wanted)["breakpoints"]
        assert point["verified"] and point["id"]
        client.ask("configurationDone")
        assert [len(worker.arming.points) for worker in workers] == [1, 1, 0]
        before = len(client.events)
        late.start(debuggee.train)
        client.event("stopped", before, lambda body: "Worker[2]" in body["description"])
        assert [each.line for each in late.arming.points.values()] == [marked("batch")]
        assert set(threads(client)) == RANKS


def test_ranks_and_jobs_are_chosen(hub: RunningHub, workers: list[Worker]) -> None:
    stop_all(workers)
    with running(Options(everything=True, ranks="0,2:4", job="01"), hub.client) as session:
        session.client.attach()
        all_stopped(session.client, {"Worker[0]", "Worker[2]"})
    with running(Options(everything=True, job="07"), hub.client) as session:
        session.client.attach()
        assert threads(session.client) == {}
        response = session.client.request("evaluate", expression="1")
        assert "nothing is stopped" in response["message"]
    with running(Options(everything=True, ranks="x"), hub.client) as session:
        assert "is not a rank" in session.client.request("initialize")["message"]
        session.client.close()
        assert isinstance(session.code(), UsageError)


def test_a_rank_that_dies_leaves_the_others(hub: RunningHub, workers: list[Worker]) -> None:
    stop_all(workers)
    with running(Options(everything=True), hub.client) as session:
        client = session.client
        client.attach()
        found = all_stopped(client, RANKS)
        hub.surroundings.fates[workers[1].identity.worker_id] = {"reason": "killed by SIGKILL", "crashed": False}
        workers[1].close()
        assert client.output("Worker[1] is gone")["output"] == "Worker[1] is gone: killed by SIGKILL\n"
        gone = client.event("thread", where=lambda body: body["reason"] == "exited")
        assert gone["threadId"] == found["Worker[1]"]
        assert set(threads(client)) == RANKS - {"Worker[1]"}
        assert not client.request("stackTrace", threadId=found["Worker[1]"])["success"]
        assert client.ask("stackTrace", threadId=found["Worker[2]"])["stackFrames"]


def test_an_unknown_number_is_refused(hub: RunningHub, workers: list[Worker]) -> None:
    stop_all(workers)
    with running(Options(everything=True), hub.client) as session:
        session.client.attach()
        assert "no frame 99" in session.client.request("scopes", frameId=99)["message"]


def test_a_new_hub_is_found(hub: RunningHub, workers: list[Worker], tmp_path: Path) -> None:
    from tests.debug.dap.support import connect

    stop_all(workers)
    hubs = [hub]
    with running(Options(everything=True), lambda: connect(hubs)) as session:
        client = session.client
        client.attach()
        found = all_stopped(client, RANKS)
        before = len(client.events)
        end(hub)
        client.output("paused ranks stay paused", before)
        with running_hub(tmp_path / "again") as again:
            hubs.append(again)
            for worker in workers:
                worker.join(again)
            for number in found.values():
                client.event("stopped", before, lambda body, number=number: body["threadId"] == number)  # type: ignore[misc]
            assert threads(client) == found
            client.leave()
            assert session.code() == 0


# ---- child sessions


def test_each_stopped_rank_is_a_child(hub: RunningHub, workers: list[Worker]) -> None:
    stop_all(workers[:2])
    with running(Options(everything=True), hub.client) as session:
        client = session.client
        client.attach(capabilities=CHILDREN, type="devkit", request="attach", all=True, justMyCode=False)
        asked = [client.asked.get(timeout=SECONDS) for _ in range(2)]
        assert {each["command"] for each in asked} == {"startDebugging"}
        wanted = {each["arguments"]["configuration"]["name"]: each["arguments"] for each in asked}
        assert set(wanted) == {"rank 0 Worker", "rank 1 Worker"}
        stop_id = workers[1].stops.records()[0].id
        assert wanted["rank 1 Worker"] == {
            "request": "attach",
            "configuration": {
                "type": "devkit", "request": "attach", "name": "rank 1 Worker", "id": stop_id, "justMyCode": False,
                "pipe": wanted["rank 0 Worker"]["configuration"]["pipe"], "underParent": True,
                "thread": f"{workers[1].identity.worker_id}/{workers[1].stops.records()[0].thread}"
            },
        }  # fmt: skip
        for each in asked:
            client.respond(each)
        assert client.ask("threads") == {"threads": []}
        workers[2].start(debuggee.train)
        late = client.asked.get(timeout=SECONDS)
        assert late["arguments"]["configuration"]["name"] == "rank 2 Worker"


def test_a_child_that_follows_its_rank_is_the_only_one(hub: RunningHub, workers: list[Worker]) -> None:
    stop_all(workers[:1], debuggee.train_twice)
    with running(Options(everything=True), hub.client) as parent:
        parent.client.attach(capabilities=CHILDREN)
        first = parent.client.asked.get(timeout=SECONDS)["arguments"]["configuration"]["id"]
        with running(Options(id=first), hub.client) as child:
            child.client.attach()
            thread = child.client.event("stopped")["threadId"]
            before = len(child.client.events)
            child.client.ask("continue", threadId=thread)
            child.client.event("stopped", before)
            until(lambda: workers[0].stops.records()[0].attached)
            # Anything that the parent learns later comes after this stop.
            workers[2].start(debuggee.train)
            name = parent.client.asked.get(timeout=SECONDS)["arguments"]["configuration"]["name"]
            assert name == "rank 2 Worker"


def test_all_can_continue_from_the_parent(hub: RunningHub, workers: list[Worker]) -> None:
    stop_all(workers)
    with running(Options(everything=True, ranks="0:2"), hub.client) as session:
        session.client.attach(capabilities=CHILDREN)
        for _ in range(2):
            session.client.asked.get(timeout=SECONDS)
        assert len(session.client.ask("devkitAll", command="continue")["continued"]) == 2
        until(lambda: [bool(worker.stops.records()) for worker in workers] == [False, False, True])
        assert not session.client.request("next", threadId=1)["success"]
        session.client.leave()
        assert session.code() == 0
