"""Breakpoints of a session over all ranks: armed in the whole job, told as they change, and gone with the session."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import pytest

from devkit.debug import breaks
from devkit.debug.dap import Options
from devkit.debug.dap_paths import PathMapping
from devkit.debug.dap_wanted import Bounds, Wanted, make
from devkit.debug.inworker.records import Breakpoint
from devkit.errors import UsageError
from tests.debug import debuggee
from tests.debug.dap.support import SECONDS, Client, Running, Worker, child, connect, end, running, until
from tests.debug.dap.test_all import CHILDREN, marked, stop_all
from tests.debug.dap.test_children import configurations
from tests.debug.hubs import RunningHub, running_hub

Document = dict[str, Any]
FILE = {"path": debuggee.__file__}


@pytest.fixture
def workers(hub: RunningHub) -> Iterator[list[Worker]]:
    workers = [Worker(rank) for rank in range(3)]
    for worker in workers:
        worker.join(hub)
    yield workers
    for worker in workers:
        worker.finish()


def begin(session: Running, **arguments: Any) -> Client:
    """Up to where an editor sends its breakpoints."""
    session.client.ask("initialize", adapterID="devkit", **CHILDREN)
    session.client.ask("attach", **arguments)
    session.client.event("initialized")
    return session.client


def set_lines(client: Client, *points: Document) -> list[Document]:
    found: list[Document] = client.ask("setBreakpoints", source=FILE, breakpoints=list(points))["breakpoints"]
    return found


def armed(worker: Worker) -> list[Breakpoint]:
    return sorted(worker.arming.points.values(), key=lambda each: each.line)  # they are posted all at once


# ---- armed


def test_armed_in_all_of_the_job(hub: RunningHub, workers: list[Worker]) -> None:
    other = Worker(7, job_id="02")
    other.join(hub)
    with running(Options(everything=True, job="01"), hub.client) as session:
        client = begin(session)
        line = marked("batch")
        [point] = set_lines(client, {"line": line})
        assert point == {"id": 1, "verified": True, "line": line, "message": "armed in 3 of 3"}
        assert [[each.line for each in armed(worker)] for worker in workers] == [[line]] * 3
        assert armed(other) == []
        late = Worker(3)
        late.join(hub)
        until(lambda: armed(late))
        changed = client.event("breakpoint", where=lambda body: "4 of 4" in body["breakpoint"]["message"])
        assert changed == {"reason": "changed", "breakpoint": {**point, "message": "armed in 4 of 4"}}
    until(lambda: not any(armed(worker) for worker in [*workers, late]))
    for each in (late, other):
        each.finish()


def test_a_module_that_is_loaded_later(hub: RunningHub, workers: list[Worker]) -> None:
    for worker in workers:
        worker.arming.places = 0
    with running(Options(everything=True), hub.client) as session:
        client = begin(session)
        [point] = set_lines(client, {"line": marked("batch")})
        assert (point["verified"], point["message"]) == (False, "module not loaded yet")
        workers[1].arming.places = 1
        workers[1]._report()
        changed = client.event("breakpoint")["breakpoint"]
        assert changed == {**point, "verified": True, "message": "armed in 1 of 3"}


def test_a_target_a_condition_hits_and_a_message(hub: RunningHub, workers: list[Worker]) -> None:
    with running(Options(everything=True, ranks="0:2"), hub.client) as session:
        client = begin(session)
        found = set_lines(
            client,
            {"line": marked("batch"), "condition": "@Worker[1:] if step == 3", "hitCondition": ">= 2"},
            {"line": marked("call"), "condition": "@[1]", "logMessage": "step is {step}"},
            {"line": marked("after"), "condition": "step == 4", "logMessage": "here"},
        )
        assert all("armed in" in each["message"] for each in found)
        first, second, third = armed(workers[1])
        assert (first.role, first.ranks, first.condition, first.hits) == ("Worker", "1", "step == 3", ">=2")
        assert (second.role, second.ranks, second.condition, second.log) == ("", "1", "", "step is {step}")
        assert (third.ranks, third.condition, third.log) == ("0:2", "step == 4", "'here'")
        assert {each.source for each in armed(workers[1])} == {Path(debuggee.__file__).read_text()}


@pytest.mark.parametrize(
    ("point", "said"),
    [
        ({"line": 100_000}, "no line 100000"),
        ({"line": 2}, "no code"),
        ({"line": "batch", "condition": "step ="}, "the condition 'step =' does not parse"),
        ({"line": "batch", "condition": "@[1] step == 3"}, "not a valid breakpoint"),
        ({"line": "batch", "condition": "@Worker[0,2:4"}, "no target can be read from"),
        ({"line": "batch", "condition": "@Worker[x]"}, "'x' is not a rank"),
        ({"line": "batch", "condition": "@[5]"}, "the ranks 5 are not among this session's: 0:3"),
        ({"line": "batch", "hitCondition": "often"}, "'often' is not a hit count"),
        ({"line": "batch", "logMessage": "loss is {loss +}"}, "does not parse"),
    ],
)
def test_what_cannot_be_meant_is_said(hub: RunningHub, workers: list[Worker], point: Document, said: str) -> None:
    wrong = {**point, "line": marked("batch") if point["line"] == "batch" else point["line"]}
    with running(Options(everything=True, ranks="0:3"), hub.client) as session:
        first, second = set_lines(begin(session), wrong, {"line": marked("call")})
        assert not first["verified"] and said in first["message"]
        assert second["verified"]
        assert len(armed(workers[0])) == 1


def test_functions(hub: RunningHub, workers: list[Worker]) -> None:
    with running(Options(everything=True), hub.client) as session:
        names = ["tests.debug.debuggee.Model.forward", "tests.debug.debuggee:train", "train", "tests.debug.debuggee:no"]
        points = [{"name": name, "condition": "@[0]"} for name in names]
        found = begin(session).ask("setFunctionBreakpoints", breakpoints=points)["breakpoints"]
        assert [each["verified"] for each in found] == [True, True, False, False]
        assert "no module is found in 'train'" in found[2]["message"]
        assert "no" in found[3]["message"] and "line" not in found[0]
        assert {(each.module, each.qualname) for each in armed(workers[0])} == {
            ("tests.debug.debuggee", "Model.forward"),
            ("tests.debug.debuggee", "train"),
        }


# ---- changed, and taken away


def test_those_that_stay_are_not_touched(hub: RunningHub, workers: list[Worker]) -> None:
    removed: list[str] = []
    worker = workers[0]
    remove = worker.arming.remove
    worker.arming.remove = lambda name: (removed.append(name), remove(name))
    with running(Options(everything=True), hub.client) as session:
        client = begin(session)
        first, second = set_lines(client, {"line": marked("batch")}, {"line": marked("call")})
        before = {each.line: each.id for each in armed(worker)}
        again, third = set_lines(client, {"line": marked("call")}, {"line": marked("after")})
        assert (again["id"], third["id"]) == (second["id"], 3) and first["id"] == 1
        now = {each.line: each.id for each in armed(worker)}
        assert now[marked("call")] == before[marked("call")] and set(now) == {marked("call"), marked("after")}
        assert removed == [before[marked("batch")]]
        assert set_lines(client) == [] and armed(worker) == []


def test_a_text_that_has_changed_is_taken_anew(hub: RunningHub, workers: list[Worker], tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("first = 1\nsecond = 2\n")
    with running(Options(everything=True), hub.client) as session:
        client = begin(session)
        for text in ("first = 1\nsecond = 2\n", "first = 1\nsecond = 3\n"):
            program.write_text(text)
            client.ask("setBreakpoints", source={"path": str(program)}, breakpoints=[{"line": 2}])
            [point] = armed(workers[0])
            assert point.source == text


@pytest.mark.parametrize("leave", ["disconnect", "died"])
def test_the_session_takes_its_own_along(hub: RunningHub, workers: list[Worker], leave: str) -> None:
    own = breaks.make(f"{debuggee.__file__}:{marked('end')}")
    with hub.client() as client:
        client.call("break", breakpoint=own.to_json(), wait=5.0)
    with running(Options(everything=True), hub.client) as session:
        set_lines(begin(session), {"line": marked("batch")}, {"line": marked("call")})
        assert len(armed(workers[2])) == 3
        if leave == "died":
            session.client.close()
        else:
            session.client.leave()
            assert [[each.id for each in armed(worker)] for worker in workers] == [[own.id]] * 3  # before the answer
        assert session.code() == 0
    assert [[each.id for each in armed(worker)] for worker in workers] == [[own.id]] * 3


def test_an_editor_that_ends_its_adapter(hub: RunningHub, workers: list[Worker]) -> None:
    adapter = Path(__file__).with_name("adapter_main.py")
    options = {"DEVKIT_TEST_PORT": str(hub.port), "DEVKIT_TEST_OPTIONS": json.dumps({"everything": True})}
    process = subprocess.Popen(
        [sys.executable, str(adapter)],
        env={**os.environ, **options},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    )
    try:
        assert process.stdin is not None and process.stdout is not None
        client = Client(cast(BinaryIO, process.stdout), cast(BinaryIO, process.stdin))
        client.ask("initialize", adapterID="devkit", **CHILDREN)
        client.ask("attach")
        set_lines(client, {"line": marked("batch")})
        assert len(armed(workers[0])) == 1
        process.terminate()
        assert process.wait(SECONDS) == 0
        client.wait_for_end()
        client.close()
    finally:
        process.kill()
        process.wait()
    assert [armed(worker) for worker in workers] == [[]] * 3


def test_somebody_else_removes_one(hub: RunningHub, workers: list[Worker]) -> None:
    with running(Options(everything=True), hub.client) as session:
        client = begin(session)
        [point] = set_lines(client, {"line": marked("batch")})
        with hub.client() as other:
            other.call("clear", id=armed(workers[0])[0].id)
        # Before that the workers may be told to be armed no more, in an event of their own.
        removed = "it was removed elsewhere"
        changed = client.event("breakpoint", where=lambda body: removed in body["breakpoint"].get("message", ""))
        assert (changed["breakpoint"]["id"], changed["breakpoint"]["verified"]) == (point["id"], False)
        [again] = set_lines(client, {"line": marked("batch")})
        assert again["verified"] and again["id"] == point["id"]


def test_a_new_hub_hears_of_them(hub: RunningHub, workers: list[Worker], tmp_path: Path) -> None:
    hubs = [hub]
    with running(Options(everything=True), lambda: connect(hubs)) as session:
        client = begin(session)
        set_lines(client, {"line": marked("batch")})
        before = len(client.events)
        end(hub)
        client.output("was lost", before)
        with running_hub(tmp_path / "again") as again:
            hubs.append(again)
            for worker in workers:
                worker.join(again)
            with again.client() as other:
                until(lambda: [each["armed"] for each in other.call("ps")["breakpoints"]] == [3])
            client.leave()
            assert session.code() == 0


# ---- children


def test_children_arm_nothing(hub: RunningHub, workers: list[Worker]) -> None:
    """Both by the pipe and as processes of their own."""
    stop_all(workers[:2])
    with running(Options(everything=True), hub.client) as parent:
        client = begin(parent)
        [point] = set_lines(client, {"line": marked("batch")})
        client.ask("configurationDone")
        found = configurations(parent, 2)
        alone = Options(id=found[1]["id"])
        with child(found[0]) as piped, running(alone, hub.client) as process:
            for each, configuration in ((piped, found[0]), (process.client, found[1])):
                each.attach(**configuration)
                [same, other] = set_lines(each, {"line": marked("batch")}, {"line": marked("loop")})
                assert same == {**point, "id": same["id"]} and not other["verified"]
            assert [[each.line for each in armed(worker)] for worker in workers] == [[marked("batch")]] * 3
            before = [len(each.events) for each in (piped, process.client)]
            [_, late] = set_lines(client, {"line": marked("batch")}, {"line": marked("loop")})
            for each, since in zip((piped, process.client), before, strict=True):
                changed = each.event("breakpoint", since)["breakpoint"]
                assert changed["verified"] and changed["line"] == marked("loop")
            assert piped.event("breakpoint")["breakpoint"]["id"] == late["id"]
            piped.leave()
        assert len(armed(workers[0])) == 2


def test_a_hit_has_the_parents_number(hub: RunningHub, workers: list[Worker]) -> None:
    with running(Options(everything=True), hub.client) as parent:
        client = begin(parent)
        [_, point] = set_lines(client, {"line": marked("batch")}, {"line": marked("call")})
        client.ask("configurationDone")
        name = next(each.id for each in armed(workers[0]) if each.line == marked("call"))

        def program(worker: Worker) -> None:
            import sys

            worker.hit(name, sys._getframe())

        workers[0].start(program)
        [found] = configurations(parent, 1)
        with child(found) as editor:
            editor.attach(**found)
            assert editor.event("stopped")["hitBreakpointIds"] == [point["id"]]


# ---- made


def test_how_a_file_may_be_called(tmp_path: Path) -> None:
    program = tmp_path / "project" / "pkg" / "m.py"
    program.parent.mkdir(parents=True)
    program.write_text("x = 1\n")
    bounds = Bounds(str(tmp_path), mappings=(PathMapping(str(tmp_path), "/job"),))
    point = make(Wanted(str(program), 1), bounds)
    assert point.paths == ("/job/project/pkg/m.py", str(program), "project/pkg/m.py", "pkg/m.py", "m.py")


def test_a_file_that_only_the_workers_have() -> None:
    point = make(Wanted("/nowhere/m.py", 3, condition="@A[1] if k", hits="2"), Bounds("/w", job="01", ranks="1:"))
    assert (point.paths, point.line, point.source, point.job_id) == (("/nowhere/m.py",), 3, None, "01")
    assert (point.role, point.ranks, point.condition, point.hits) == ("A", "1", "k", "2")
    with pytest.raises(UsageError, match="no such file"):
        make(Wanted("m.py", 3), Bounds("/nowhere"))
