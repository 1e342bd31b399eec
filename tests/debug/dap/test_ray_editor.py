"""`devkit dap` on a real Ray: breakpoints of a running job, and a program that the editor starts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import pytest

from devkit.debug.client import HubClient
from devkit.debug.dap import Options
from tests.debug.conftest import PROGRAMS, Cluster, mark, staged
from tests.debug.dap.support import SECONDS, Client, child, running
from tests.debug.dap.test_all import CHILDREN
from tests.debug.dap.test_launch import EDITOR, Terminal

pytestmark = pytest.mark.ray

Document = dict[str, Any]


def set_lines(editor: Client, program: str, *points: Document) -> list[Document]:
    source = {"path": str(PROGRAMS / program)}
    found: list[Document] = editor.ask("setBreakpoints", source=source, breakpoints=list(points))["breakpoints"]
    return found


def ids(hub: HubClient, program: str) -> set[str]:
    return {each["id"] for each in hub.call("ps")["breakpoints"] if program in each["spec"]}


def next_child(editor: Client) -> Document:
    request = editor.asked.get(timeout=SECONDS)
    editor.respond(request)
    configuration: Document = request["arguments"]["configuration"]
    return configuration


def test_breakpoints_of_a_running_job(cluster: Cluster) -> None:
    point: Document = {"line": mark("points.py", "step"), "condition": "@Ranked[1:] if step == 3"}
    with staged(cluster, "points.py") as stage, cluster.connect() as hub:
        stage.do("ranked = [Ranked.remote(rank) for rank in range(3)]; ray.get([r.steps.remote(1) for r in ranked])")
        own = cluster.json("break", f"{PROGRAMS / 'points.py'}:{point['line']} if step == 99", "--job", stage.job.id)
        before = ids(hub, "points.py")
        with running(Options(everything=True, job=stage.job.id), cluster.connect) as session, ExitStack() as stack:
            editor = session.client
            editor.ask("initialize", **CHILDREN)
            editor.ask("attach")
            log = {"line": mark("points.py", "step"), "condition": "@Ranked[0] if step == 1", "logMessage": "at {step}"}
            first, wrong, _ = set_lines(editor, "points.py", point, {"line": 1}, log)
            assert (first["verified"], first["message"], wrong["verified"]) == (True, "armed in 2 of 2", False)
            editor.ask("configurationDone")
            stage.do("r = [each.steps.remote(5) for each in ranked]")
            children = []
            for configuration in sorted((next_child(editor) for _ in range(2)), key=lambda each: str(each["name"])):
                rank = stack.enter_context(child(configuration))
                rank.attach(**configuration)
                children.append(rank)
                assert set_lines(rank, "points.py", point)[0]["verified"]
                assert rank.event("stopped")["hitBreakpointIds"] == [first["id"]]
            assert editor.ask("devkitEval", expression="self.rank, step")["odd"] == []
            since = [len(rank.events) for rank in children]
            assert len(editor.ask("devkitAll", command="next")["continued"]) == 2
            for rank, after in zip(children, since, strict=True):
                assert rank.event("stopped", after)["reason"] == "step"
            editor.ask("devkitAll", command="continue")
            assert stage.do("ray.get(r)") == [4, 5, 6]  # it has stopped once
            new = [
                each
                for each in hub.call("ps")["breakpoints"]
                if each["id"] not in before and "@Ranked[" in each["spec"]
            ]
            assert sorted(each["hits"] for each in new) == [1, 2]
            editor.leave()
            assert session.code() == 0
        left = ids(hub, "points.py")
        assert left.isdisjoint(each["id"] for each in new) and own["breakpoints"][0]["id"] in left
        hub.call("clear", id=own["breakpoints"][0]["id"])
        assert f"points.py:{log['line']} [Ranked rank 0] at 1" in stage.job.out
        assert stage.finish() == 0


@contextmanager
def launching(cluster: Cluster) -> Iterator[Client]:
    """`devkit dap --launch` as a process, as an editor has it; its editor."""
    process = subprocess.Popen(
        [sys.executable, "-m", "devkit", "dap", "--launch", "--address", cluster.gcs_address],
        env=cluster.environ,
        cwd=PROGRAMS,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    )
    client = Client(cast(BinaryIO, process.stdout), cast(BinaryIO, process.stdin))
    try:
        client.ask("initialize", **EDITOR)
        yield client
        client.leave()
        assert process.wait(SECONDS) == 0
    finally:
        process.kill()
        process.wait()
        client.wait_for_end()
        client.close()


def test_a_program_that_the_editor_starts(cluster: Cluster, tmp_path: Path) -> None:
    end = tmp_path / "end"
    with launching(cluster) as editor:
        launched = editor.send("launch", program="loop.py", args=[str(end), "2"])
        editor.event("initialized")
        line = {"line": mark("loop.py", "step"), "condition": "@Worker[1] if k == 3", "hitCondition": "1"}
        point, _ = set_lines(editor, "loop.py", line, {"line": 100_000})
        editor.ask("configurationDone")
        with Terminal(editor) as terminal:
            assert launched.get(timeout=SECONDS)["success"]
            configuration = next_child(editor)
            assert configuration["name"] == "rank 1 Worker"
            with child(configuration) as rank:
                rank.attach(**configuration)
                stopped = rank.event("stopped")
                assert stopped["hitBreakpointIds"] == [point["id"]]
                editor.event("breakpoint", where=lambda body: bool(body["breakpoint"]["verified"]))
                with cluster.connect() as hub:
                    [mine] = [each for each in hub.call("ps")["breakpoints"] if "loop.py" in each["spec"]]
                assert mine["armed"] >= 1 and mine["hits"] == 1  # others may get a role still
                assert editor.ask("devkitEval", expression="k")["groups"][0]["value"] == "3"
                rank.ask("continue", threadId=stopped["threadId"])
                end.touch()
                assert editor.event("exited") == {"exitCode": 0}
                editor.event("terminated")
            assert "result [" in terminal.said()
    with cluster.connect() as hub:
        assert ids(hub, "loop.py") == set()


def test_a_driver_that_waits_is_ended(cluster: Cluster) -> None:
    with launching(cluster) as editor:
        editor.send("launch", program="driver.py")
        editor.event("initialized")
        editor.ask("configurationDone")
        with Terminal(editor) as terminal:
            configuration = next_child(editor)
            assert configuration["name"].startswith("driver ")
            with child(configuration) as driver:
                driver.attach(**configuration)
                thread = driver.event("stopped")["threadId"]
                [top, *_] = driver.ask("stackTrace", threadId=thread)["stackFrames"]
                assert (top["source"]["name"], top["line"]) == ("driver.py", mark("driver.py", "here"))
                editor.ask("terminate")
                assert editor.event("exited")["exitCode"] != 0
            assert "went on" not in terminal.said()
