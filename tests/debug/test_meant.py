"""What is said of who is meant: unknown ids, threads that are no ranks, breakpoints that some have, failed jobs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from devkit.debug import breaks, continue_, evaluate, jobs, terminal
from devkit.debug.breaks import BreakOptions
from devkit.debug.inworker.records import StopRecord
from devkit.debug.job_ends import corrected
from devkit.debug.jobs import record
from devkit.debug.ps_view import armed
from devkit.debug.rows import JobRow
from devkit.debug.targets import counted
from devkit.errors import DevkitError, UsageError
from tests.debug.hub_fake import FakeHub, ps_document, stop
from tests.debug.hubs import FakeAgent, RunningHub, identity, running_hub
from tests.debug.test_hub import POINT, eventually


def unknown(ids: list[str]) -> Any:
    """As the hub answers."""
    error = DevkitError(f"nothing is stopped as {ids[0]}", hint="devkit ps shows what is stopped")
    error.exit_code = 2
    raise error


@pytest.fixture
def empty() -> FakeHub:
    return FakeHub(ps=ps_document(), continue_=unknown)


@pytest.mark.parametrize("target", ["7", "Worker[1]", "nosuch"])
def test_an_unknown_target_is_told_as_such_where_nothing_is_stopped(empty: FakeHub, target: str) -> None:
    for run in (
        lambda: evaluate.run(empty, "1", target=target),
        lambda: continue_.run(empty, [target]),
    ):
        with pytest.raises(UsageError, match="no stopped rank matches") as caught:
            run()
        assert "nothing is stopped" in caught.value.hint
    with pytest.raises(UsageError, match=f"no stop has the id '{target}'".replace("[", r"\[")):
        terminal.run(empty, target)


def test_the_id_of_a_stop_that_is_not_there_is_told_as_the_hub_tells_it(empty: FakeHub) -> None:
    for run in (
        lambda: continue_.run(empty, ["9999-1"]),
        lambda: evaluate.run(empty, "1", target="9999-1"),
        lambda: terminal.run(empty, "9999-1"),
    ):
        with pytest.raises(DevkitError, match="nothing is stopped as 9999-1") as caught:
            run()
        assert caught.value.exit_code == 2


def test_without_a_target_nothing_is_stopped(empty: FakeHub) -> None:
    for run in (
        lambda: evaluate.run(empty, "1"),
        lambda: continue_.run(empty, everything=True),
        lambda: continue_.run(empty),
        lambda: terminal.run(empty),
    ):
        with pytest.raises(DevkitError, match=r"^nothing is stopped$"):
            run()


@pytest.mark.parametrize(
    ("stops", "said"),
    [
        ([stop(1, 0), stop(2, 1)], "2 ranks"),
        ([stop(1), stop(2), stop(3)], "3 processes"),
        ([stop(1, 0), stop(2, role="driver")], "2 processes"),
        ([stop(1, 0), stop(2, 0, worker_id="w1")], "2 threads"),
        ([stop(1, 0), stop(2, 0)], "2 processes"),  # rank 0 of the actor and of the critic
    ],
)
def test_the_words_fit_what_is_stopped(stops: list[dict[str, Any]], said: str) -> None:
    records = [StopRecord.from_json(each) for each in stops]
    assert counted(records) == said
    hub = FakeHub(ps=ps_document(stops=stops))
    for run in (lambda: continue_.run(hub), lambda: terminal.run(hub)):
        with pytest.raises(UsageError, match=f"^{said} are paused(; name one|: which one)"):
            run()


DRIVER = {"role": "driver", "rank": None}
RANKS = [{"role": "Worker", "rank": rank} for rank in range(1, 5)]


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"armed": 2, "workers": 3, "hits": 1, "note": "module not loaded yet", "missing": [DRIVER]},
         "armed in 2 of 3, 1 hit (not in the driver: module not loaded yet)"),
        ({"armed": 1, "workers": 8, "note": "module not loaded yet",
          "missing": [DRIVER, *RANKS, {"role": "worker", "rank": None}, {"role": "worker", "rank": None}]},
         "armed in 1 of 8 (not in ranks 1-4, the driver and 2 worker processes: module not loaded yet)"),
        ({"armed": 2, "workers": 8, "note": "module not loaded yet"},  # of an older hub
         "armed in 2 of 8 (not in 6 other processes: module not loaded yet)"),
        ({"armed": 1, "workers": 1, "note": "another tool traces the thread that runs this"},
         "armed in 1 of 1 (another tool traces the thread that runs this)"),
        ({"armed": 0, "workers": 8, "note": "module not loaded yet"}, "armed in 0 of 8: module not loaded yet"),
        ({"armed": 2, "workers": 2, "hits": 2, "note": ""}, "armed in 2 of 2, 2 hits"),
        ({"armed": 0, "workers": 1, "hits": 3, "note": "module not loaded yet"},
         "armed in 0 of 1, 3 hits: module not loaded yet"),
    ],
)  # fmt: skip
def test_a_breakpoint_that_some_have_is_no_failure(state: dict[str, Any], said: str) -> None:
    assert armed(state) == said


# ---- with a real hub

QUICK: dict[str, Any] = {"break": {"error": "no"}, "clear": {}, "kept": {"documents": []}}  # an agent that answers


@pytest.fixture
def hub(tmp_path: Path) -> Any:
    with running_hub(tmp_path / "crashes") as running:
        yield running


@pytest.fixture
def connected(hub: RunningHub, monkeypatch: pytest.MonkeyPatch) -> RunningHub:
    monkeypatch.setattr("devkit.debug.client.connect", lambda *_, **__: hub.client())
    return hub


def test_all_breakpoints_are_cleared_at_once(connected: RunningHub, capsys: pytest.CaptureFixture[str]) -> None:
    with connected.client() as client:
        for name in ("b1", "b2", "b3"):
            client.call("break", breakpoint={**POINT, "id": name}, wait=1.0)
        assert breaks.main(BreakOptions(clear="all")) == 0
        assert capsys.readouterr().out == "cleared 3 breakpoints\n"
        assert client.call("ps")["breakpoints"] == []
        assert breaks.main(BreakOptions(clear="all")) == 0
        assert capsys.readouterr().out == "there are no breakpoints\n"
        with pytest.raises(DevkitError, match="no breakpoint 'b9'"):
            breaks.main(BreakOptions(clear="b9"))


def test_only_those_of_a_job_are_cleared(connected: RunningHub, capsys: pytest.CaptureFixture[str]) -> None:
    with connected.client() as client:
        for name, job in (("b1", "01"), ("b2", "02"), ("b3", "")):
            client.call("break", breakpoint={**POINT, "id": name, "job_id": job}, wait=1.0)
        assert breaks.main(BreakOptions(clear="all", job="01")) == 0
        assert capsys.readouterr().out == "cleared 1 breakpoint\n"
        assert [each["id"] for each in client.call("ps")["breakpoints"]] == ["b2", "b3"]


def test_a_text_is_asked_of_all_processes(connected: RunningHub) -> None:
    """As `devkit break "<generated>:2"` does it."""
    none = {"source": {"near": ["/w/train.py"]}}
    has = {"source": {"file": "<generated>", "text": "def f():\n    return 1\n", "near": []}}
    answer = {"break": {"error": "no"}}
    FakeAgent(connected, identity("w1"), {**none, **answer})
    FakeAgent(connected, identity("w2", 1), {**has, **answer})
    FakeAgent(connected, identity("w3", 2), {"source": {"error": "it is busy"}, **answer})
    options = BreakOptions(spec="<generated>:2")
    with connected.client() as client:
        eventually(lambda: len(client.call("ps")["workers"]) == 3)
        assert breaks.main(options) == 0
        [state] = client.call("ps")["breakpoints"]
        assert state["spec"] == "<generated>:2"
    posted = [
        request["breakpoint"] for agent in connected.agents for request in agent.requests if "breakpoint" in request
    ]
    assert {(each["paths"][0], each["source"]) for each in posted} == {("<generated>", has["source"]["text"])}


def test_the_breakpoints_of_a_job_go_when_it_has_ended(hub: RunningHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("devkit.debug.inworker.hub_after.RETIRE_SECONDS", 0.1)
    first = FakeAgent(hub, identity("w1"), QUICK)
    FakeAgent(hub, identity("w2", job_id="02"), QUICK)
    with hub.client() as client:
        for name, job in (("of it", "01"), ("another's", "02"), ("every job's", "")):
            client.call("break", breakpoint={**POINT, "id": name, "job_id": job}, wait=1.0)
        hub.surroundings.over.add("01")
        hub.surroundings.fates["w1"] = {"reason": "the process died: job finished", "crashed": False}
        first.close()
        eventually(lambda: "of it" not in [each["id"] for each in client.call("ps")["breakpoints"]])
        assert [each["id"] for each in client.call("ps")["breakpoints"]] == ["another's", "every job's"]
    assert [each["id"] for each in hub.surroundings.kept[-1]] == ["another's", "every job's"]


def test_the_breakpoints_of_a_job_whose_worker_went_stay(hub: RunningHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("devkit.debug.inworker.hub_after.RETIRE_SECONDS", 0.0)
    first = FakeAgent(hub, identity("w1"), QUICK)
    with hub.client() as client:
        client.call("break", breakpoint={**POINT, "id": "of it", "job_id": "01"}, wait=1.0)
        hub.surroundings.fates["w1"] = {"reason": "the process died: idle", "crashed": False}
        first.close()
        eventually(lambda: not client.call("ps")["workers"])
        assert [each["id"] for each in client.call("ps")["breakpoints"]] == ["of it"]


# ---- how a job has ended


def rows() -> list[JobRow]:
    return [
        JobRow(job_id="01", type="DRIVER", status="SUCCEEDED"),
        JobRow(job_id="02", type="DRIVER", status="SUCCEEDED"),
        JobRow(job_id="03", type="DRIVER", status="SUCCEEDED"),
        JobRow(job_id="04", type="DRIVER", status="RUNNING"),
        JobRow(job_id="05", submission_id="raysubmit_5", status="SUCCEEDED"),
        JobRow(job_id="06", type="DRIVER", status="SUCCEEDED"),
        JobRow(job_id="07", type="DRIVER", status="SUCCEEDED"),
        JobRow(job_id="08", type="DRIVER", status="SUCCEEDED"),
        JobRow(job_id="09", type="DRIVER", status="SUCCEEDED"),
    ]


def test_a_driver_that_failed_is_no_success(hub: RunningHub) -> None:
    """Ray has no exit code of a driver that nobody submitted: it calls each of them a success."""
    with hub.client() as client:
        for job, code in (("01", 1), ("02", 0), ("06", -9), ("07", 130), ("08", -40)):
            client.call("ended", job_id=job, code=code)
        document = {"id": "c1", "job_id": "03", "kind": "driver", "time": 1.0, "root": None}
        crash = {**crash_document(), **document}
        left = {**crash, "id": "c2", "job_id": "09", "exception": {"type": "SystemExit", "message": "4"}}
        for each in (crash, left):
            FakeAgent(hub, identity("w1"), QUICK).connection.send({"type": "crash", "document": each})
        eventually(lambda: len(client.call("crashes")["crashes"]) == 2)
        records = [record(row) for row in corrected(rows(), client)]
    assert {each["job_id"]: (each["status"], each["message"], each["exit_code"]) for each in records} == {
        "01": ("FAILED", "the driver ended with exit code 1", 1),
        "02": ("SUCCEEDED", "", 0),
        "03": ("FAILED", "the driver raised ValueError: no", None),
        "04": ("RUNNING", "", None),
        "05": ("SUCCEEDED", "", None),
        "06": ("FAILED", "the driver was ended by SIGKILL", -9),
        "07": ("STOPPED", "the driver was interrupted", 130),
        "08": ("FAILED", "the driver was ended by signal 40", -40),
        "09": ("FAILED", "the driver ended with exit code 4", 4),
    }


def crash_document() -> dict[str, Any]:
    return {
        "id": "c1",
        "role": "driver",
        "rank": None,
        "node_ip": "10.0.0.1",
        "pid": 7,
        "exception": {"type": "ValueError", "message": "no"},
        "file": "/w/a.py",
        "line": 3,
        "function": "main",
        "worker_id": "w1",
        "task_id": "",
    }


def test_a_driver_of_which_nobody_tells_how_it_ended_is_no_success(hub: RunningHub) -> None:
    """One that ended with a traceback on a debug cluster, and had no devkit in it."""
    with hub.client() as client:
        client.call("ended", job_id="02", code=0)
        found = corrected(rows(), client)
    assert [row.ending for row in found[:5]] == ["ENDED", "SUCCEEDED", "ENDED", "RUNNING", "SUCCEEDED"]
    assert record(found[0])["status"] == "SUCCEEDED", "as Ray has it"
    listed = jobs.page(found[:2], time.time(), width=200).plain
    assert listed.count("ENDED") == listed.count("SUCCEEDED") == 1


def test_without_a_hub_ray_is_believed() -> None:
    assert [row.status for row in corrected(rows(), None)][:3] == ["SUCCEEDED"] * 3
    assert [row.ending for row in corrected(rows(), None)][:3] == ["ENDED"] * 3
    broken = FakeHub(ends=DevkitError("the hub does not know ends", hint="-"), crashes=DevkitError("no", hint="-"))
    assert [row.status for row in corrected(rows(), broken)][:3] == ["SUCCEEDED"] * 3
