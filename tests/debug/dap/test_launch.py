"""`devkit dap --launch`, with `devkit run` as it is, and a job that only the test's hub knows."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devkit.debug import client as hub_client
from devkit.debug import dap_command
from devkit.debug.dap import Options
from devkit.debug.dap_exchange import FOLDER
from tests.debug import debuggee
from tests.debug.dap.support import SECONDS, Client, Running, Worker, child, connect, end, running, until
from tests.debug.dap.test_all import CHILDREN, marked
from tests.debug.dap.test_board import armed, set_lines
from tests.debug.dap.test_children import attach
from tests.debug.hubs import RunningHub, running_hub

Document = dict[str, Any]
EDITOR = {**CHILDREN, "supportsRunInTerminalRequest": True}
TOKEN = "a token that nobody may see"

# Plays `ray.init`: tells `devkit run` which job it is; then it waits until a file is there.
JOB = """
import json, os, sys, time
hub = {"hub_id": "h", "host": "127.0.0.1", "port": 1, "node_id": "n"}  # the test's own is another
job = {"gcs_address": "127.0.0.1:1", "dashboard_url": "", "job_id": "01", "auth": "disabled", "hub": hub}
path = os.environ["DEVKIT_ANNOUNCE"]
with open(path + ".new", "w") as file:
    json.dump(job, file)
os.replace(path + ".new", path)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
sys.exit(int(open(sys.argv[1]).read()))
"""
STUBBORN = """
import signal, sys, time
signal.signal(signal.SIGINT, lambda *_: print("not yet", flush=True))
print("begun", flush=True)
open("begun", "w").close()
while True:
    time.sleep(0.05)
"""


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEVKIT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningHub]:
    with running_hub(tmp_path / "crashes") as hub:
        monkeypatch.setattr(hub_client, "connect_to", lambda run: connect([hub]))
        yield hub


class Terminal:
    """The editor's terminal: runs what it is asked to."""

    def __init__(self, editor: Client) -> None:
        self.request = editor.asked.get(timeout=SECONDS)
        assert self.request["command"] == "runInTerminal"
        self.arguments = self.request["arguments"]
        hidden = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "DEVKIT_"))}
        self.process = subprocess.Popen(
            self.arguments["args"],
            cwd=self.arguments["cwd"],
            env={**hidden, **self.arguments["env"]},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        editor.respond(self.request, body={"shellProcessId": 1})

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def said(self) -> str:
        """All of it, once it has ended."""
        assert self.process.stdout is not None
        self.process.wait(SECONDS)
        return self.process.stdout.read().decode()


def begin(session: Running, capabilities: Document | None = None, **arguments: Any) -> Any:
    """Up to where an editor sends its breakpoints; the answer to `launch` comes later."""
    session.client.ask("initialize", adapterID="devkit", **(EDITOR if capabilities is None else capabilities))
    answer = session.client.send("launch", **arguments)
    session.client.event("initialized")
    return answer


def launching(tmp_path: Path) -> Options:
    return Options(launch=True, workspace=str(tmp_path))


def tell_end(path: Path, code: int) -> None:
    """To the program of JOB, at once: it must not read half of it."""
    new = path.with_suffix(".new")
    new.write_text(str(code))
    new.replace(path)


# ---- a whole session


def test_the_job_is_the_sessions(hub: RunningHub, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    done = tmp_path / "done"
    other = Worker(5, job_id="02")
    other.join(hub)
    other.start(debuggee.train)
    with running(launching(tmp_path), hub.client) as session:
        editor = session.client
        launched = begin(session, program="job.py", args=[str(done)], console="integratedTerminal")
        right, wrong = set_lines(editor, {"line": marked("batch"), "logMessage": "{step}"}, {"line": 2})
        assert not right["verified"] and right["message"] == "it will be armed once the job has started"
        assert not wrong["verified"] and "no code" in wrong["message"]
        editor.ask("configurationDone")
        request = editor.asked.get(timeout=SECONDS)
        assert TOKEN not in json.dumps(request)
        folder = Path(request["arguments"]["env"][FOLDER])
        [given] = json.loads((folder / "wish.json").read_text())["breakpoints"]
        assert (given["line"], given["log"], given["job_id"]) == (marked("batch"), "{step}", "")
        editor.asked.put(request)
        with Terminal(editor) as terminal:
            assert launched.get(timeout=SECONDS)["success"]
            until((folder / "job.json").exists)
            assert not any(TOKEN in each.read_text() for each in folder.iterdir())

            worker = Worker(0)  # it brings along what its job was started with
            worker.given = [{**given, "job_id": "01"}]
            worker.join(hub)
            # Between its coming and its arming it may be seen as "armed in 0 of 1".
            changed = editor.event("breakpoint", where=lambda body: bool(body["breakpoint"]["verified"]))["breakpoint"]
            assert changed == {**right, "verified": True, "message": "armed in 1 of 1"}
            again, more = set_lines(editor, {"line": marked("batch"), "logMessage": "{step}"}, {"line": marked("call")})
            assert again == changed and more["verified"]
            assert [(each.id == given["id"], each.job_id) for each in armed(worker)] == [(True, "01"), (False, "01")]

            worker.start(debuggee.train)
            asked = editor.asked.get(timeout=SECONDS)
            configuration = asked["arguments"]["configuration"]
            assert configuration["name"] == "rank 0 Worker" and "program" not in configuration
            with child(configuration) as rank:
                assert attach(rank, configuration)["line"] == marked("pause")
                assert editor.ask("devkitEval", expression="step")["groups"][0]["value"] == "17"
                assert len(editor.ask("devkitAll", command="next")["continued"]) == 1
            tell_end(done, 3)
            assert editor.event("exited") == {"exitCode": 3}
            editor.event("terminated")
            editor.leave()
            assert session.code() == 0
            assert "devkit: debugging job 01" in terminal.said()
        assert armed(worker) == [] and editor.asked.empty()
    for each in (worker, other):
        each.finish()
    assert not folder.exists()


def test_a_program_that_takes_its_cluster_along(hub: RunningHub, tmp_path: Path) -> None:
    """Nobody is told of lost connections: it has ended, and its ranks with it."""
    (tmp_path / "job.py").write_text(JOB)
    worker = Worker(0)
    worker.join(hub)
    worker.start(debuggee.train)
    with running(launching(tmp_path), hub.client) as session:
        editor = session.client
        begin(session, program="job.py", args=[str(tmp_path / "done")])
        editor.ask("configurationDone")
        with Terminal(editor):
            configuration = editor.asked.get(timeout=SECONDS)["arguments"]["configuration"]
            with child(configuration) as rank:
                attach(rank, configuration)
                end(hub)
                tell_end(tmp_path / "done", 3)
                for each in (editor, rank):
                    assert each.event("exited") == {"exitCode": 3}
                    each.event("terminated")
                    said = [event["body"]["output"] for event in each.events if event["event"] == "output"]
                    assert not any("lost" in text for text in said)
                assert "the program has ended\n" in said
        editor.leave()
        assert session.code() == 0
    worker.finish()


def test_what_changes_before_there_is_a_job(hub: RunningHub, tmp_path: Path) -> None:
    """One more is armed then, and one that was taken away is not."""
    (tmp_path / "job.py").write_text(JOB)
    worker = Worker(0)
    with running(launching(tmp_path), hub.client) as session:
        editor = session.client
        launched = begin(session, program="job.py", args=[str(tmp_path / "done")])
        set_lines(editor, {"line": marked("batch")})
        editor.ask("configurationDone")
        request = editor.asked.get(timeout=SECONDS)
        folder = Path(request["arguments"]["env"][FOLDER])
        [given] = json.loads((folder / "wish.json").read_text())["breakpoints"]
        set_lines(editor, {"line": marked("call")})
        worker.given = [{**given, "job_id": "01"}]
        worker.join(hub)
        assert [each.line for each in armed(worker)] == [marked("batch")]
        editor.asked.put(request)
        with Terminal(editor):
            assert launched.get(timeout=SECONDS)["success"]
            until(lambda: [each.line for each in armed(worker)] == [marked("call")])
            editor.ask("terminate")
            assert editor.event("exited")["exitCode"] != 0
            editor.leave()
            assert session.code() == 0
    worker.finish()


# ---- how it is started, and how it ends


def test_a_console_without_a_terminal(tmp_path: Path) -> None:
    program = "import os, sys; print(sorted(n for n in os.environ if 'EDITOR_OF' in n or n == 'DEVKIT_EDITOR'))"
    command = [sys.executable, "-c", f"{program}; print('later', file=sys.stderr); sys.exit(4)"]
    with running(launching(tmp_path), pytest.fail) as session:
        launched = begin(session, CHILDREN, command=command, env={"EDITOR_OF": "ours"})
        session.client.ask("configurationDone")
        assert launched.get(timeout=SECONDS)["success"]
        assert session.client.event("exited") == {"exitCode": 4}
        printed = [each["body"] for each in session.client.events if each["event"] == "output"]
        assert {"category": "stdout", "output": "['EDITOR_OF']\n"} in printed
        assert {"category": "stderr", "output": "later\n"} in printed
        session.client.event("terminated")
        session.client.leave()
        assert session.code() == 0


@pytest.mark.parametrize("console", ["integratedTerminal", "internalConsole"])
def test_terminate_asks_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, console: str) -> None:
    monkeypatch.setattr(dap_command, "TERMINATE_SECONDS", 0.5)
    begun = tmp_path / "begun"
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    with running(launching(tmp_path), pytest.fail) as session:
        editor = session.client
        begin(session, program="stubborn.py", console=console)
        editor.ask("configurationDone")
        if console == "internalConsole":
            editor.output("begun")
            editor.ask("terminate")
            editor.output("not yet")
        else:
            with Terminal(editor) as terminal:
                until(begun.exists)
                editor.ask("terminate")
                assert "not yet" in terminal.said()
        assert editor.event("exited")["exitCode"] in (143, 130)
        editor.leave()
        assert session.code() == 0


@pytest.mark.parametrize("leave", ["disconnect", "died"])
def test_a_child_does_not_outlive_its_session(tmp_path: Path, leave: str) -> None:
    program = "import os, time; print('pid', os.getpid(), flush=True); time.sleep(600)"
    with running(launching(tmp_path), pytest.fail) as session:
        begin(session, command=[sys.executable, "-c", program], console="internalConsole")
        session.client.ask("configurationDone")
        pid = int(session.client.output("pid ")["output"].split()[1])
        if leave == "died":
            session.client.close()
        else:
            session.client.leave()
        assert session.code() == 0
        until(lambda: not Path(f"/proc/{pid}").exists())


def test_a_program_in_a_terminal_outlives_its_editor(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("import sys, time\nopen(sys.argv[1], 'w').close()\ntime.sleep(600)\n")
    begun = tmp_path / "begun"
    with running(launching(tmp_path), pytest.fail) as session:
        begin(session, program="job.py", args=[str(begun)])
        session.client.ask("configurationDone")
        with Terminal(session.client) as terminal:
            until(begun.exists)
            session.client.close()
            assert session.code() == 0
            assert terminal.process.poll() is None


def test_a_run_that_is_killed(tmp_path: Path) -> None:
    with running(launching(tmp_path), pytest.fail) as session:
        begin(session, command=[sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(600)"])
        session.client.ask("configurationDone")
        with Terminal(session.client) as terminal:
            until(lambda: (Path(terminal.arguments["env"][FOLDER]) / "run.json").exists())
            os.killpg(terminal.process.pid, signal.SIGKILL)
            terminal.process.wait()
            session.client.output("devkit run was killed")
            assert session.client.event("exited") == {"exitCode": 1}


# ---- what cannot be


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "a launch takes either a program or a command"),
        ({"program": "a.py", "command": ["a"]}, "a launch takes either a program or a command"),
        ({"program": "nowhere.py"}, "no such program: "),
        ({"command": "python a.py"}, "command and args must be lists of strings"),
        ({"command": ["a"], "args": "b"}, "command and args must be lists of strings"),
        ({"command": ["a"], "cwd": "nowhere"}, "cwd is not a folder: "),
        ({"command": ["a"], "console": "none"}, "console is 'none'"),
        ({"command": ["a"], "env": {"A": 1}}, "env is not an object of strings"),
    ],
)
def test_a_wrong_request_is_refused(tmp_path: Path, arguments: Document, said: str) -> None:
    with running(launching(tmp_path), pytest.fail) as session:
        session.client.ask("initialize", **EDITOR)
        answer = session.client.request("launch", **arguments)
        assert (
            not answer["success"] and answer["message"].startswith(f"error: {said}") and "hint: " in answer["message"]
        )
        session.client.leave()
        assert session.code() == 0


def test_an_editor_without_children(tmp_path: Path) -> None:
    with running(launching(tmp_path), pytest.fail) as session:
        session.client.ask("initialize")
        assert "child session" in session.client.request("launch", command=["true"])["message"]


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    """`devkit run` itself says so; the terminal shows it, and the session ends."""
    with running(launching(tmp_path), pytest.fail) as session:
        begin(session, command=["no-such-command"])
        session.client.ask("configurationDone")
        with Terminal(session.client) as terminal:
            session.client.output("error: no such command: no-such-command")
            assert session.client.event("exited") == {"exitCode": 2}
            assert "error: no such command" in terminal.said()


@pytest.mark.parametrize("answer", ["refused", "silent"])
def test_a_terminal_that_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    monkeypatch.setattr(dap_command, "START_SECONDS", 0.3)
    with running(launching(tmp_path), pytest.fail) as session:
        launched = begin(session, command=["true"])
        session.client.ask("configurationDone")
        request = session.client.asked.get(timeout=SECONDS)
        if answer == "refused":
            session.client.respond(request, success=False, message="no shell")
        response = launched.get(timeout=SECONDS)
        assert not response["success"]
        assert ("no shell" if answer == "refused" else "has not started within 0.3 s") in response["message"]
        session.client.event("terminated")
