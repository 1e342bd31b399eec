"""What the verbs print under `--json` is what the types say, from a hub with workers that are at stops."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from devkit import cli
from devkit.debug import breaks, continue_, crashes, evaluate, ps, stacks
from devkit.debug.breaks import BreakOptions
from devkit.debug.client import HubClient
from devkit.debug.inworker.records import Identity, StopRecord
from devkit.debug.inworker.snapshot import take
from devkit.debug.inworker.stacks import all_threads
from devkit.debug.inworker.vanished import vanished
from tests import documents
from tests.debug.hubs import FakeAgent, RunningHub, identity, running_hub, stop

Document = dict[str, Any]


def failing() -> None:
    try:
        {}["step"]
    except KeyError:
        raise ValueError("no step") from None


POINT = breaks.make(f"{Path(__file__).resolve()}:{failing.__code__.co_firstlineno + 2}").to_json()
ARMED = {POINT["id"]: {"places": 1, "note": "", "hits": 2}}


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[RunningHub]:
    """Rank 0 is stopped and answers, rank 1 is stopped at an exception and gives errors, one has gone."""
    with running_hub(tmp_path) as hub:
        report = {"identity": identity("w0"), "stops": [stop("w0")], "armed": ARMED, "ended": []}
        answers = {"eval": {"value": "1", "error": None}, "continue": {}}
        answers |= {"stacks": {"threads": all_threads(), "task": "load"}}
        answers |= {"break": {"report": report}, "spy": {"error": "no"}, "kept": {"documents": []}}
        first = FakeAgent(hub, identity("w0"), answers)
        first.report(stop("w0"), stop("w0", number=2))
        first.report(stop("w0"), armed=ARMED, ended=({"id": "w0-2", "why": "timeout"},))
        nothing = {name: {"error": "no"} for name in ("break", "eval", "continue", "stacks", "spy", "kept")}
        second = FakeAgent(hub, identity("w1", rank=1), nothing)
        raised = {"reason": "exception", "exception": {"type": "ValueError", "message": "x"}}
        second.report({**stop("w1", rank=1), **raised})
        yield hub
        hub.surroundings.fates = {name: {"reason": "", "crashed": False} for name in ("w0", "w1")}


@pytest.fixture
def client(hub: RunningHub) -> Iterator[HubClient]:
    with hub.client() as client:
        client.call("break", breakpoint=POINT, wait=1.0)
        yield client


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Any:
    """What was printed, after it was checked; the verb's name first."""

    def read(*verb: str) -> Document:
        document: Document = json.loads(capsys.readouterr().out)
        documents.check_output(verb, document)
        return document

    return read


def test_ps(client: HubClient, told: Any) -> None:
    ps.run(client, json=True)
    document = told("ps")
    assert [each["exception"] for each in document["stops"]] == [None, {"type": "ValueError", "message": "x"}]
    assert document["gone"] and document["breakpoints"] and len(document["workers"]) == 2


def test_a_stop_has_every_field_of_its_record(client: HubClient) -> None:
    real = StopRecord(**stop("w0")).to_json()  # as the agents make it
    assert client.call("ps")["stops"][0] == real


def test_eval_and_continue(client: HubClient, told: Any) -> None:
    evaluate.run(client, "loss", json=True)
    assert [each["error"] for each in told("eval")["results"]] == [None, "no"]
    continue_.run(client, everything=True, json=True)
    assert told("continue") == {"continued": ["w0-1"], "failed": {"w1-1": "no"}}


def test_an_eval_of_who_went_on_in_between(client: HubClient, told: Any) -> None:
    gone = evaluate.missing([StopRecord(**stop("w9"))], [])
    documents.check(evaluate.record(gone), documents.KINDS["eval",])


def test_stacks(client: HubClient, told: Any) -> None:
    stacks.run(client, json=True)
    document = told("stacks")
    assert document["groups"] and [each["error"] for each in document["ranks"]] == [None, "no"]
    assert [each["task"] for each in document["ranks"]] == ["load", ""]


def test_break(client: HubClient, told: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("devkit.debug.client.connect", lambda _: client)
    breaks.main(BreakOptions(show=True, json=True))
    assert told("break")["breakpoints"][0]["armed"] == 1


def crash(hub: RunningHub, document: Document) -> None:
    hub.agents[0].connection.send({"type": "crash", "document": document})


def test_crashes(hub: RunningHub, client: HubClient, told: Any) -> None:
    # given a snapshot of an exception, and one of a process that had no time to write it
    who = Identity(**identity("w0"))
    with pytest.raises(ValueError, match="no step") as caught:
        failing()
    crash(hub, {**take(caught.value, who, "task", budget=5.0)})
    crash(hub, vanished(who, {"signal": "SIGSEGV", "message": "x", "frames": _frames()}, "killed"))
    # when they are listed and shown
    crashes.run_list(client, json=True)
    listed = told("crashes")["crashes"]
    shown = []
    for each in listed:
        crashes.run_show(client, each["id"], json=True)
        shown.append(told("crashes", "show"))
    # then they are as their types say, with all that these have
    assert [each.get("reason") for each in shown] == [None, "killed"]
    assert shown[0]["frames"][0]["source"] and shown[0]["threads"] and shown[0]["chain"]


def _frames() -> Sequence[Document]:
    return [{"file": __file__, "line": 1, "function": "f"}]


@pytest.mark.parametrize("code", [0, 3])
def test_run(code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DEVKIT_HOME", str(tmp_path))
    command = [sys.executable, "-c", f"raise SystemExit({code})"]
    assert cli.main(["run", "--json", "--", *command]) == code
    document = json.loads(capsys.readouterr().out)  # one, also of a command that failed
    error = {name: document.pop(name) for name in ("error", "hint", "exit_code") if name in document}
    assert bool(error) == bool(code)
    documents.check_output(["run"], document)
    assert document["returncode"] == code
