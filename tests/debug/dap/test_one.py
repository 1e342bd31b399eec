"""`devkit dap --id`, from an editor's bytes to a thread that is really stopped, and back."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devkit.debug.dap import Options
from devkit.debug.dap_stdio import read_frames
from devkit.debug.inworker.gate import frame
from devkit.errors import DeadlineError, DevkitError, UnreachableError, UsageError
from tests.debug import debuggee
from tests.debug.dap.support import SECONDS, Running, Worker, connect, end, running, until
from tests.debug.debuggee import marked
from tests.debug.hubs import RunningHub, running_hub
from tests.pace import stretched


@pytest.fixture
def worker(hub: RunningHub) -> Iterator[Worker]:
    worker = Worker(2)
    worker.join(hub)
    yield worker
    worker.finish()


def stopped(worker: Worker, program: Any = debuggee.train) -> str:
    """Runs a program until it stops; the stop's id."""
    worker.start(program)
    return str(until(worker.stops.records)[0].id)


# ---- frames


def test_frames_are_read_however_they_are_cut(tmp_path: Path) -> None:
    messages = [{"seq": 1, "text": "ü" * 10}, {"seq": 2}, {"seq": 3, "big": "x" * 1_000_000}]
    data = b"".join(frame(message) for message in messages)

    class Dripping(io.RawIOBase):
        """Gives seven bytes at a time at first, so that headers and bodies are cut everywhere."""

        def __init__(self) -> None:
            self.at = 0

        def read(self, size: int = -1) -> bytes:
            length = 7 if self.at < 500 else 100_000
            piece, self.at = data[self.at : self.at + length], self.at + length
            return piece

    assert list(read_frames(Dripping())) == messages  # type: ignore[arg-type]


def test_what_is_no_message_is_refused() -> None:
    for data in (
        b"GET / HTTP/1.1\r\n\r\n",
        b"x" * 5000,
        b"Content-Length: 99999999999\r\n\r\n",
        b"Content-Length: 2\r\n\r\n[]",
    ):
        with pytest.raises(ValueError, match=r"header|not an object"):
            list(read_frames(io.BytesIO(data)))


# ---- one stop


def test_a_whole_session(hub: RunningHub, worker: Worker) -> None:
    stop_id = stopped(worker)
    with running(Options(id=stop_id), hub.client) as session:
        editor = session.client
        editor.attach(justMyCode=False)
        body = editor.event("stopped")
        assert body["reason"] == "breakpoint"
        frames = editor.ask("stackTrace", threadId=body["threadId"])["stackFrames"]
        assert (frames[0]["name"], frames[0]["line"]) == ("train", marked("pause"))
        assert frames[0]["source"]["path"] == debuggee.__file__
        [scope, _globals] = editor.ask("scopes", frameId=frames[0]["id"])["scopes"]
        variables = editor.ask("variables", variablesReference=scope["variablesReference"])["variables"]
        assert {each["name"]: each["value"] for each in variables}["step"] == "17"
        assert editor.ask("evaluate", expression="step + 1", frameId=frames[0]["id"])["result"] == "18"
        before = len(editor.events)
        editor.ask("next", threadId=body["threadId"])
        editor.event("stopped", before)
        [top, *_] = editor.ask("stackTrace", threadId=body["threadId"])["stackFrames"]
        assert top["line"] == marked("batch")
        editor.leave()
        assert session.code() == 0
        assert editor.numbers == list(range(1, len(editor.numbers) + 1))


def test_leaving_resumes_nothing(hub: RunningHub, worker: Worker) -> None:
    stop_id = stopped(worker)
    for leave in ("disconnect", "terminate", "died"):
        with running(Options(id=stop_id), hub.client) as session:
            session.client.attach()
            session.client.event("stopped")
            assert worker.stops.records()[0].attached == 1
            if leave == "died":
                session.client.close()
            else:
                session.client.ask(leave, terminateDebuggee=True)
            if leave == "terminate":
                session.client.event("terminated")
                session.client.leave()
            assert session.code() == 0
        until(lambda: worker.clients == 0)
        assert [(each.id, each.attached) for each in worker.stops.records()] == [(stop_id, 0)]
    assert worker.results == []


def test_large_answers_and_many_requests_at_once(hub: RunningHub, worker: Worker) -> None:
    stop_id = stopped(worker)
    with running(Options(id=stop_id), hub.client) as session:
        editor = session.client
        editor.attach()
        thread = editor.event("stopped")["threadId"]
        [top, *_] = editor.ask("stackTrace", threadId=thread)["stackFrames"]
        answers = [editor.send("evaluate", expression=f"step + {k}", frameId=top["id"]) for k in range(50)]
        assert [each.get(timeout=SECONDS)["body"]["result"] for each in answers] == [str(17 + k) for k in range(50)]
        text = "x" * 1_000_000
        editor.ask("evaluate", expression=f"big = {text!r}", frameId=top["id"], context="repl")
        assert editor.ask("evaluate", expression="len(big)", frameId=top["id"])["result"] == "1000000"
        copied = editor.ask("evaluate", expression="big", frameId=top["id"], context="clipboard")["result"]
        assert len(copied) >= 16_000  # as much as the worker gives


def test_an_unknown_request_is_answered_by_an_error(hub: RunningHub, worker: Worker) -> None:
    with running(Options(id=stopped(worker)), hub.client) as session:
        session.client.attach()
        response = session.client.request("reverseContinue", threadId=1)
        assert not response["success"]
        assert "not supported" in response["message"]


def test_the_beginning_of_an_id_is_enough(hub: RunningHub, worker: Worker) -> None:
    stop_id = stopped(worker)
    with running(Options(id=stop_id[:-1]), hub.client) as session:
        session.client.attach()
        session.client.event("stopped")


def test_the_session_follows_its_thread(hub: RunningHub, worker: Worker) -> None:
    stop_id = stopped(worker, debuggee.train_twice)
    with running(Options(id=stop_id), hub.client) as session:
        editor = session.client
        editor.attach()
        thread = editor.event("stopped")["threadId"]
        before = len(editor.events)
        editor.ask("continue", threadId=thread)
        assert editor.event("stopped", before)["threadId"] == thread
        assert worker.results == [0]


PROGRAM = """def run(worker):
    worker.pause()
    worker.results.append("end")
"""


def test_unpacked_code_is_shown_and_stopped_as_the_workspaces(hub: RunningHub, worker: Worker, tmp_path: Path) -> None:
    unpacked = tmp_path / "ray" / "working_dir_files" / "_ray_pkg_0f3a" / "pkg" / "program.py"
    local = tmp_path / "workspace" / "pkg" / "program.py"
    for path in (unpacked, local):
        path.parent.mkdir(parents=True)
        path.write_text(PROGRAM)
    names: dict[str, Any] = {}
    exec(compile(PROGRAM, str(unpacked), "exec"), names)
    stop_id = stopped(worker, names["run"])
    with running(Options(id=stop_id, workspace=str(tmp_path / "workspace")), hub.client) as session:
        editor = session.client
        editor.attach()
        thread = editor.event("stopped")["threadId"]
        [top, *_] = editor.ask("stackTrace", threadId=thread)["stackFrames"]
        assert top["source"]["path"] == str(local)
        editor.ask("setBreakpoints", source=top["source"], breakpoints=[{"line": 3}])
        [point] = worker.arming.points.values()
        assert str(unpacked) in point.paths
        assert editor.ask("source", source=top["source"])["content"] == PROGRAM


# ---- troubles


def test_a_worker_that_dies_ends_the_session_with_the_reason(hub: RunningHub, worker: Worker) -> None:
    stop_id = stopped(worker)
    with running(Options(id=stop_id), hub.client) as session:
        editor = session.client
        editor.attach()
        editor.event("stopped")
        hub.surroundings.fates[worker.identity.worker_id] = {"reason": "killed by SIGKILL", "crashed": False}
        worker.close()
        assert "killed by SIGKILL" in editor.output("Worker[2] was lost while it was paused")["output"]
        assert editor.event("exited") == {"exitCode": 1}
        editor.event("terminated")
        assert not editor.request("threads")["success"]
        editor.leave()
        assert session.code() == 1


def test_a_process_that_ends_by_itself_is_no_failure(hub: RunningHub, worker: Worker) -> None:
    stop_id = stopped(worker)
    with running(Options(id=stop_id), hub.client) as session:
        editor = session.client
        editor.attach()
        editor.ask("continue", threadId=editor.event("stopped")["threadId"])
        assert worker.thread is not None
        worker.thread.join(SECONDS)
        hub.surroundings.fates[worker.identity.worker_id] = {"reason": "it exited", "crashed": False}
        worker.close()
        editor.output("the process of Worker[2] has ended")
        assert editor.event("exited") == {"exitCode": 0}
        editor.leave()
        assert session.code() == 0


def test_a_worker_that_comes_back_is_found_again(hub: RunningHub, worker: Worker) -> None:
    stop_id = stopped(worker)
    with running(Options(id=stop_id), hub.client) as session:
        editor = session.client
        editor.attach()
        editor.event("stopped")
        editor.ask("setBreakpoints", source={"path": debuggee.__file__}, breakpoints=[{"line": marked("batch")}])
        assert len(worker.arming.points) == 1
        before = len(editor.events)
        worker.close()
        lost = editor.output("was lost", before)
        assert lost["category"] == "important"
        until(lambda: not worker.arming.points, "the lost client's breakpoints stayed")
        worker.join(hub)
        editor.output("is connected again", before)
        thread = editor.event("stopped", before)["threadId"]
        assert editor.ask("stackTrace", threadId=thread)["stackFrames"][0]["line"] == marked("pause")
        assert len(worker.arming.points) == 1
        assert [each["event"] for each in editor.events].count("initialized") == 1


def test_a_new_hub_is_found(hub: RunningHub, worker: Worker, tmp_path: Path) -> None:
    stop_id = stopped(worker)
    hubs = [hub]
    with running(Options(id=stop_id), lambda: connect(hubs)) as session:
        editor = session.client
        editor.attach()
        editor.event("stopped")
        before = len(editor.events)
        end(hub)
        assert editor.output("paused ranks stay paused", before)["category"] == "important"
        late = editor.send("threads")  # waits until there is a connection
        with running_hub(tmp_path / "again") as again:
            hubs.append(again)
            worker.join(again)
            editor.event("stopped", before)
            assert late.get(timeout=SECONDS)["success"]
            assert [each.id for each in worker.stops.records()] == [stop_id]
            editor.leave()
            assert session.code() == 0


def test_a_hub_that_stays_away_ends_the_session(hub: RunningHub, worker: Worker) -> None:
    stop_id = stopped(worker)
    with running(Options(id=stop_id, seconds=0.5), lambda: connect([hub])) as session:
        editor = session.client
        editor.attach()
        editor.event("stopped")
        end(hub)
        editor.output("the rank stays paused: devkit ps")
        editor.event("terminated")
        editor.leave()
        assert session.code() == 3
    assert [each.id for each in worker.stops.records()] == [stop_id]


# ---- errors before the session


def refuse() -> Any:
    raise UnreachableError("no cluster at 10.0.0.9", hint="ray start --head starts one")


def test_an_error_before_the_session_is_the_first_answer() -> None:
    with running(Options(id="x-1"), refuse) as session:
        response = session.client.request("initialize", adapterID="devkit")
        assert not response["success"]
        assert response["message"] == "error: no cluster at 10.0.0.9 (hint: ray start --head starts one)"
        assert response["body"]["error"]["format"] == response["message"]
        assert response["body"]["error"]["showUser"]
        session.client.leave()
        error = session.code()
        assert isinstance(error, UnreachableError)
        assert error.exit_code == 3


def test_an_editor_that_never_asks_does_not_hold_it() -> None:
    with running(Options(id="x-1"), refuse) as session:
        session.client.close()
        assert isinstance(session.code(), UnreachableError)


def test_an_unknown_id_names_the_nearest(hub: RunningHub, worker: Worker) -> None:
    stop_id = stopped(worker)
    with running(Options(id="2w9rke-7"), hub.client) as session:
        response = session.client.request("initialize")
        assert "no stop has the id '2w9rke-7'" in response["message"]
        assert stop_id in response["message"]
        session.client.leave()
        assert isinstance(session.code(), UsageError)


def test_a_stop_that_has_ended_says_why(hub: RunningHub, worker: Worker) -> None:
    stop_id = stopped(worker)
    worker.stops.resume(stop_id)
    with hub.client() as client:
        until(lambda: client.call("ps")["gone"])
    with running(Options(id=stop_id), hub.client) as session:
        assert "has ended: continued" in session.client.request("initialize")["message"]
        session.client.close()
        assert isinstance(session.code(), UsageError)


@pytest.mark.parametrize(
    "options", [Options(), Options(id="a", crash="b"), Options(id="a", everything=True), Options(id="a", ranks="0")]
)
def test_contradictory_options_are_a_usage_error(options: Options) -> None:
    with running(options, refuse) as session:
        assert not session.client.request("initialize")["success"]
        session.client.close()
        error = session.code()
        assert isinstance(error, UsageError)
        assert error.hint


def test_a_hub_that_does_not_answer_is_a_deadline() -> None:
    class Silent:
        closed = False

        def call(self, op: str, **_: Any) -> Any:
            raise DeadlineError(f"the hub did not answer `{op}`", hint="devkit ps")

        def close(self) -> None:
            self.closed = True

    silent = Silent()
    with running(Options(id="a"), lambda: silent) as session:
        assert "did not answer" in session.client.request("initialize")["message"]
        session.client.close()
        assert isinstance(session.code(), DevkitError)
    assert silent.closed


# ---- as a process


def test_nothing_but_messages_reaches_stdout() -> None:
    """Also what a library prints, to `sys.stdout` or to the file below it; and the process ends when stdin does."""
    code = """
import os, sys
from devkit.debug import client, dap
from devkit.errors import UnreachableError
def noisy(address, **_):
    print("noise", flush=True)
    os.write(1, b"deeper noise")
    raise UnreachableError("no cluster", hint="none")
client.connect = noisy
try:
    dap.main(id="x")
except UnreachableError as error:
    print("printed after", flush=True)
    sys.exit(error.exit_code)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    request = frame({"seq": 1, "type": "request", "command": "initialize", "arguments": {}})
    out, err = process.communicate(request, timeout=stretched(60))
    assert process.returncode == 3
    assert out.endswith(b"printed after\n")
    [message] = read_frames(io.BytesIO(out.removesuffix(b"printed after\n")))
    assert message["command"] == "initialize"
    assert b"noise" in err and b"deeper noise" in err


def test_no_thread_is_left(hub: RunningHub, worker: Worker) -> None:
    stop_id = stopped(worker)
    before = {thread.ident for thread in threading.enumerate()}
    session = Running(Options(id=stop_id), hub.client)
    session.client.attach()
    session.client.event("stopped")
    session.client.leave()
    assert session.code() == 0
    session.client.close()
    session.close()

    def extra() -> list[str]:
        return [each.name for each in threading.enumerate() if each.ident not in before and "devkit" in each.name]

    until(lambda: not extra(), f"still there: {extra()}")
