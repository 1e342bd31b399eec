"""`devkitEval` and `devkitAll`: what acts on several ranks at once, in each kind of session."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from devkit.debug import evaluate
from devkit.debug.dap import Options
from tests.debug import debuggee
from tests.debug.dap.support import SECONDS, Client, Worker, child, running, until
from tests.debug.dap.test_all import CHILDREN, marked, stop_all
from tests.debug.dap.test_children import attach, configurations
from tests.debug.hubs import RunningHub

Document = dict[str, Any]
KINDS = {"parent": CHILDREN, "ranks": {}}


@pytest.fixture
def workers(hub: RunningHub) -> Iterator[list[Worker]]:
    workers = [Worker(rank) for rank in range(3)]
    for worker in workers:
        worker.join(hub)
    yield workers
    for worker in workers:
        worker.finish()


def until_stopped(hub: RunningHub, count: int) -> None:
    """Until the hub knows of so many stops."""
    with hub.client() as client:
        until(lambda: len(client.call("ps")["stops"]) == count)


# ---- devkitEval


@pytest.mark.parametrize("kind", KINDS)
def test_the_document_of_devkit_eval(
    hub: RunningHub, workers: list[Worker], kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    stop_all(workers)
    until_stopped(hub, 3)
    with running(Options(everything=True), hub.client) as session:
        session.client.attach(capabilities=KINDS[kind])
        document = session.client.ask("devkitEval", expression="model.loss")
        with hub.client() as client:
            assert evaluate.run(client, "model.loss", json=True) == 0
        assert document == json.loads(capsys.readouterr().out)
        assert document["odd"] == [2]
        assert [(each["value"], each["ranks"]) for each in document["groups"]] == [("0.5", [0, 1]), ("nan", [2])]
        some = session.client.ask("devkitEval", expression="model.rank", target="1:")
        assert sorted(each["value"] for each in some["results"]) == ["1", "2"]
        failed = session.client.ask("devkitEval", expression="1 / model.rank", target="Worker[0]")
        assert "ZeroDivisionError" in failed["results"][0]["error"]


@pytest.mark.parametrize("kind", KINDS)
def test_only_of_the_choice(hub: RunningHub, workers: list[Worker], kind: str) -> None:
    stop_all(workers)
    until_stopped(hub, 3)
    with running(Options(everything=True, ranks="0:2"), hub.client) as session:
        client = session.client
        client.attach(capabilities=KINDS[kind])
        assert len(client.ask("devkitEval", expression="step")["results"]) == 2
        for arguments, said in (
            ({"expression": "step", "target": "2"}, "no stopped rank matches '2'"),
            ({"expression": "step ="}, "not an expression: step ="),
            ({}, "not an expression"),
        ):
            answer = client.request("devkitEval", **arguments)
            assert not answer["success"] and said in answer["message"]


def test_nothing_is_stopped(hub: RunningHub, workers: list[Worker]) -> None:
    with running(Options(everything=True), hub.client) as session:
        session.client.attach(capabilities=CHILDREN)
        assert "nothing is stopped" in session.client.request("devkitEval", expression="1")["message"]
        assert session.client.ask("devkitAll", command="next") == {"continued": [], "failed": {}}


def test_one_stop_is_asked_alone(hub: RunningHub, workers: list[Worker]) -> None:
    stop_all(workers, debuggee.train_twice)
    until_stopped(hub, 3)
    with running(Options(id=workers[1].stops.records()[0].id), hub.client) as session:
        client = session.client
        client.attach()
        client.event("stopped")
        for step in ("0", "1"):  # also at the thread's next stop
            [result] = client.ask("devkitEval", expression="step")["results"]
            assert (result["rank"], result["value"]) == (1, step)
            before = len(client.events)
            assert len(client.ask("devkitAll", command="continue")["continued"]) == 1
            if step == "0":
                client.event("stopped", before)
                until(lambda: workers[1].stops.records())
                until_stopped(hub, 3)
        assert [len(worker.results) for worker in workers][0::2] == [0, 0]


# ---- devkitAll


def test_all_ranks_step_and_their_children_see_it(hub: RunningHub, workers: list[Worker]) -> None:
    stop_all(workers)
    until_stopped(hub, 3)
    with running(Options(everything=True, ranks="0:2"), hub.client) as parent, ExitStack() as stack:
        parent.client.attach(capabilities=CHILDREN)
        found = configurations(parent, 2)
        editors = [stack.enter_context(child(each)) for each in found]
        for editor, each in zip(editors, found, strict=True):
            attach(editor, each)

        def all_do(command: str) -> None:
            until_stopped(hub, 3)  # an editor hears of a stop before the hub does
            before = [len(editor.events) for editor in editors]
            answer = parent.client.ask("devkitAll", command=command)
            assert len(answer["continued"]) == 2 and answer["failed"] == {}
            for editor, since in zip(editors, before, strict=True):
                number = editor.event("continued", since)["threadId"]
                assert editor.event("stopped", since)["threadId"] == number

        for command, line in (("next", "batch"), ("next", "call"), ("stepIn", "forward"), ("stepOut", "after")):
            all_do(command)
            assert [line_of(editor) for editor in editors] == [marked(line)] * 2
        assert workers[2].stops.records()[0].line == marked("pause")
        before = [len(editor.events) for editor in editors]
        parent.client.ask("devkitAll", command="continue")
        for editor, since in zip(editors, before, strict=True):
            editor.event("continued", since)
        for worker in workers[:2]:
            assert worker.thread is not None
            worker.thread.join(SECONDS)
            assert worker.results[-1] == "end"
        assert parent.client.asked.empty()


def line_of(editor: Client) -> int:
    thread = editor.event("stopped")["threadId"]
    return int(editor.ask("stackTrace", threadId=thread)["stackFrames"][0]["line"])


def test_ranks_without_a_child_step_too(hub: RunningHub, workers: list[Worker]) -> None:
    stop_all(workers)
    until_stopped(hub, 3)
    with running(Options(everything=True), hub.client) as parent:
        parent.client.attach(capabilities=CHILDREN)
        assert len(parent.client.ask("devkitAll", command="next")["continued"]) == 3
        until(lambda: {each.line for worker in workers for each in worker.stops.records()} == {marked("batch")})


def test_a_command_that_is_none(hub: RunningHub, workers: list[Worker]) -> None:
    with running(Options(everything=True), hub.client) as parent:
        parent.client.attach(capabilities=CHILDREN)
        answer = parent.client.request("devkitAll", command="fly")
        assert "devkitAll has no command 'fly' (one of continue, next, stepIn, stepOut)" in answer["message"]
