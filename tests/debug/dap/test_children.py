"""Children of a session over all ranks, on the pipe of their parent's process."""

from __future__ import annotations

import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from devkit.debug.dap import Options
from devkit.debug.dap_chorus import BACK, LOST
from devkit.debug.dap_pipe import MOST_BYTES, open_pipe
from tests.debug import debuggee
from tests.debug.dap.support import SECONDS, Client, Running, Worker, child, connect, end, running, until
from tests.debug.dap.test_all import CHILDREN, marked, stop_all
from tests.debug.hubs import RunningHub, running_hub

RANKS = 64
MANY_SECONDS = 5.0  # for all of them, from the first request to the last frame

Document = dict[str, Any]


@pytest.fixture
def workers(hub: RunningHub) -> Iterator[list[Worker]]:
    workers = [Worker(rank) for rank in range(2)]
    for worker in workers:
        worker.join(hub)
    yield workers
    for worker in workers:
        worker.finish()


def configurations(parent: Running, count: int) -> list[Document]:
    """Those of so many children, by rank."""
    asked = [parent.client.asked.get(timeout=SECONDS) for _ in range(count)]
    for each in asked:
        parent.client.respond(each)
    found: list[Document] = [each["arguments"]["configuration"] for each in asked]
    return sorted(found, key=lambda each: int(each["name"].split()[1]))


def attach(editor: Client, configuration: Document) -> Document:
    """Up to the frames, as an editor does; the frame at the top."""
    editor.attach(**configuration)
    thread = editor.event("stopped")["threadId"]
    frame: Document = editor.ask("stackTrace", threadId=thread)["stackFrames"][0]
    return {**frame, "threadId": thread}


def test_a_child_is_a_whole_session(hub: RunningHub, workers: list[Worker]) -> None:
    stop_all(workers)
    with running(Options(everything=True), hub.client) as parent:
        parent.client.attach(capabilities=CHILDREN)
        found = configurations(parent, 2)
        with child(found[0]) as first, child(found[1]) as second:
            for rank, editor in enumerate((first, second)):
                top = attach(editor, found[rank])
                assert top["line"] == marked("pause")
                assert editor.ask("evaluate", expression="model.rank", frameId=top["id"])["result"] == str(rank)
                assert top["source"]["path"] == debuggee.__file__
            before = len(first.events)
            first.ask("next", threadId=1)
            first.event("stopped", before)
            assert [worker.stops.records()[0].line for worker in workers] == [marked("batch"), marked("pause")]
            first.leave()
            until(lambda: workers[0].stops.records()[0].attached == 0)
            assert workers[1].stops.records()[0].attached == 1
            parent.client.leave()
            second.wait_for_end()
        assert parent.code() == 0
    assert [worker.results for worker in workers] == [[], []]


def is_of(name: str, configuration: Document) -> bool:
    return bool(configuration["name"].startswith(name))


def test_an_editor_that_starts_the_children_itself_is_told_of_them(hub: RunningHub, workers: list[Worker]) -> None:
    stop_all(workers)
    with running(Options(everything=True), hub.client) as parent:
        parent.client.attach(capabilities=CHILDREN, childEvents=True)
        for name in ("rank 0 ", "rank 1 "):
            configuration = parent.client.event("devkitChild", where=partial(is_of, name))
            assert "childEvents" not in configuration
            with child(configuration) as editor:
                assert attach(editor, configuration)["line"] == marked("pause")
                editor.leave()
        assert parent.client.asked.empty()
        parent.client.leave()
        assert parent.code() == 0


def test_only_this_user_can_enter_and_nothing_stays(hub: RunningHub, workers: list[Worker]) -> None:
    stop_all(workers[:1])
    for leave in ("disconnect", "died"):
        with running(Options(everything=True), hub.client) as parent:
            parent.client.attach(capabilities=CHILDREN)
            [found] = configurations(parent, 1)
            folder = Path(found["pipe"]).parent
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            assert len(os.fsencode(found["pipe"])) <= MOST_BYTES
            with child(found) as editor:
                attach(editor, found)
                if leave == "died":
                    parent.client.close()
                else:
                    parent.client.leave()
                assert parent.code() == 0
                editor.wait_for_end()
            assert not folder.exists()
        until(lambda: [each.attached for each in workers[0].stops.records()] == [0])


def test_a_long_folder_for_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 90)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    server = open_pipe(lambda loop, editor: pytest.fail("nobody connects"))
    assert server is not None and len(os.fsencode(server.path)) <= MOST_BYTES
    server.close()
    assert list(long.iterdir()) == [] and not Path(server.path).parent.exists()


def test_many_children_attach_in_no_time(hub: RunningHub, capsys: pytest.CaptureFixture[str]) -> None:
    ranks = [Worker(rank) for rank in range(RANKS)]
    try:
        for worker in ranks:
            worker.join(hub)
        stop_all(ranks)
        with running(Options(everything=True), hub.client) as parent, ExitStack() as stack:
            parent.client.attach(capabilities=CHILDREN)
            found = configurations(parent, RANKS)
            began = time.monotonic()
            editors = [stack.enter_context(child(each)) for each in found]
            for editor in editors:
                editor.ask("initialize", adapterID="devkit")
            attached = [editor.send("attach", **each) for editor, each in zip(editors, found, strict=True)]
            for editor in editors:
                editor.event("initialized")
                editor.ask("setBreakpoints", source={"path": debuggee.__file__}, breakpoints=[{"line": 1}])
                editor.send("configurationDone")
            assert all(answer.get(timeout=SECONDS)["success"] for answer in attached)
            for editor in editors:
                thread = editor.event("stopped")["threadId"]
                [top, *_] = editor.ask("stackTrace", threadId=thread)["stackFrames"]
                assert top["line"] == marked("pause")
            took = time.monotonic() - began
            with capsys.disabled():
                print(f"\n{RANKS} children attached in {took:.2f} s")
            assert took < MANY_SECONDS
            assert [worker.stops.records()[0].attached for worker in ranks] == [1] * RANKS
    finally:
        for worker in ranks:
            worker.finish()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [({}, "no paused rank was given"), ({"id": "2w9rke-7"}, "no stop has the id '2w9rke-7'")],
)
def test_a_stop_that_is_not_there(hub: RunningHub, workers: list[Worker], arguments: Document, said: str) -> None:
    stop_all(workers[:1])
    with running(Options(everything=True), hub.client) as parent:
        parent.client.attach(capabilities=CHILDREN)
        [found] = configurations(parent, 1)
        with child(found) as editor:
            assert not editor.request("threads")["success"]
            editor.ask("initialize")
            answer = editor.request("attach", **arguments)
            assert not answer["success"] and said in answer["message"]
            assert attach(editor, {"id": found["id"][:-1]})["line"] == marked("pause")  # a beginning is enough


def test_a_new_hub_is_found_by_all(hub: RunningHub, workers: list[Worker], tmp_path: Path) -> None:
    stop_all(workers)
    hubs = [hub]
    with running(Options(everything=True), lambda: connect(hubs)) as parent:
        parent.client.attach(capabilities=CHILDREN)
        found = configurations(parent, 2)
        with child(found[0]) as first, child(found[1]) as second:
            editors = (first, second)
            for editor, each in zip(editors, found, strict=True):
                attach(editor, each)
            before = [len(editor.events) for editor in editors]
            since_parent = len(parent.client.events)
            end(hub)
            parent.client.output("paused ranks stay paused", since_parent)
            with running_hub(tmp_path / "again") as again:
                hubs.append(again)
                for worker in workers:
                    worker.join(again)
                for editor, since in zip(editors, before, strict=True):
                    thread = editor.event("stopped", since)["threadId"]
                    assert editor.ask("stackTrace", threadId=thread)["stackFrames"][0]["line"] == marked("pause")
                parent.client.output(BACK, since_parent)
                assert [said(editor, since) for editor, since in zip(editors, before, strict=True)] == [[], []]
                assert said(parent.client, since_parent) == [LOST, BACK]
                parent.client.leave()
                assert parent.code() == 0


def said(editor: Client, since: int) -> list[str]:
    """What the session has said of itself; the editor shows each as a line, or as a notification."""
    outputs = [each["body"] for each in editor.events[since:] if each["event"] == "output"]
    return [str(each["output"]).strip() for each in outputs if each.get("category") in ("important", "console")]


def test_ranks_that_are_lost_together_are_named_in_one_line(hub: RunningHub, workers: list[Worker]) -> None:
    stop_all(workers)
    with running(Options(everything=True), hub.client) as parent:
        parent.client.attach(capabilities=CHILDREN)
        found = configurations(parent, 2)
        with child(found[0]) as first, child(found[1]) as second:
            for editor, each in zip((first, second), found, strict=True):
                attach(editor, each)
            since = len(parent.client.events)
            for worker in workers:
                worker.close()
            parent.client.output("was lost", since)
            for worker in workers:
                worker.join(hub)
            parent.client.output("connected again", since)
            assert said(parent.client, since) == [
                "the connection to ranks 0,1 was lost; reconnecting",
                "ranks 0,1 are connected again",
            ]
            parent.client.leave()
            assert parent.code() == 0


def test_an_editor_with_a_message_of_its_own_is_told_by_an_event(hub: RunningHub, workers: list[Worker]) -> None:
    stop_all(workers[:1])
    with running(Options(everything=True), lambda: connect([hub])) as parent:
        parent.client.attach(capabilities=CHILDREN, childEvents=True)
        parent.client.event("devkitChild")
        end(hub)
        assert parent.client.event("devkitLost") == {"message": LOST}
        assert parent.client.output(LOST)["category"] == "console"  # no second notification
        parent.client.leave()
        assert parent.code() == 0


def test_children_come_by_rank_whoever_stopped_first(hub: RunningHub, workers: list[Worker]) -> None:
    for worker in reversed(workers):
        stop_all([worker])
    with running(Options(everything=True), hub.client) as parent:
        parent.client.attach(capabilities=CHILDREN)
        asked = [parent.client.asked.get(timeout=SECONDS) for _ in range(2)]
        names = [each["arguments"]["configuration"]["name"] for each in asked]
        assert names == ["rank 0 Worker", "rank 1 Worker"]
        parent.client.leave()
        assert parent.code() == 0
