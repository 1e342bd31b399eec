"""What `devkit ps` shows, in every width."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devkit.debug import ps
from devkit.debug.naming import Who, name_members, rank_list, short_path
from devkit.debug.ps_view import page
from devkit.errors import DevkitError, UnreachableError
from tests.debug.hub_fake import NOW, FakeHub, printed, ps_document, stop
from tests.pace import stretched

LONG = "/job/trainer/workers/a_rather_long_name_of_a_file_of_a_trainer.py"
MANY = [
    stop(1, 0, since=NOW - 12, file="/job/trainer/ppo.py"),
    stop(2, 1, since=NOW - 200, file=LONG, function="SomeTrainWorker.update_actor_and_critic", attached=2),
    stop(
        3, None, role="driver", since=NOW - 7500, reason="exception", exception={"type": "ValueError", "message": "x"}
    ),
]


def shown(width: int | None = None, **changes: object) -> str:
    return printed(page(ps_document(**changes), NOW, width=width, cwd="/job"))


def test_every_fact_of_a_stop_is_on_its_line_where_there_is_room() -> None:
    lines = shown(220, stops=MANY).splitlines()
    assert ",".join(lines[0].split()) == "ID,JOB,ROLE,RANK,HOST,PID,WHERE,FUNCTION,REASON,SINCE,ATTACHED"
    first = "s1,02000000,Worker,0,10.0.0.5,4001,trainer/ppo.py:88,update,breakpoint,b1,12,s"
    assert ",".join(lines[1].split()) == first
    assert lines[2].split()[-4:] == ["b1", "3", "min", "2"]
    assert "driver" in lines[3] and "exception ValueError" in lines[3] and "2 h 5 min" in lines[3]


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_narrow_terminal_gets_two_lines_for_a_stop_and_none_is_too_long(width: int) -> None:
    text = shown(width, stops=MANY)
    lines = text.rstrip("\n").splitlines()
    assert len(lines) == 1 + 2 * len(MANY)
    assert max(map(len, lines)) <= width
    assert "Worker[1]" in lines[3] and ".py:88" in lines[3] and "3 min" in lines[3]
    assert "10.0.0.5 pid 4002" in lines[4] and ("2 attached" in lines[4] or width == 60)


def catches(rank: int, count: int, **changes: object) -> dict[str, object]:
    at = {"file": "/job/reward.py", "line": 12, "function": "score"}
    row = {"kind": "KeyError", "text": "'answer'", "at": at, "by": {**at, "line": 30}, "count": count, **changes}
    caught = [{"seconds": 8.0, "ago": 0.1, **row}]
    return {"role": "Rank", "rank": rank, "worker_id": f"w{rank}", "pid": 7, "connected": True, "caught": caught}


def test_what_the_program_catches_is_shown_for_all_ranks_together() -> None:
    rare = catches(2, 4, kind="OSError", text="")
    text = shown(160, workers=[catches(0, 100), catches(1, 20), rare])
    block = text[text.index("caught by the program") :].splitlines()
    assert block[1] == "  120 x KeyError: 'answer' at reward.py:12, caught at reward.py:30 · ranks 0,1"
    assert block[2] == "  4 x OSError at reward.py:12, caught at reward.py:30 · rank 2"
    assert "caught" not in shown(160)
    narrow = shown(60, workers=[catches(0, 100)])
    assert narrow.endswith("  100 x KeyError: 'answer' at reward.py:12\n    caught at reward.py:30 · rank 0\n")


def test_what_no_handler_has_caught_is_not_called_caught() -> None:
    task = {"by": {"file": "/v/lib/python3.12/asyncio/__init__.py", "line": 0, "function": "Task"}}
    pool = {"by": {"file": "/v/lib/python3.12/concurrent/futures/thread.py", "line": 58, "function": "_WorkItem.run"}}
    text = shown(160, workers=[catches(0, 1, **task), catches(1, 4, **task, kind="ValueError"), catches(2, 3, **pool)])
    assert "caught" not in text
    assert text.partition("kept by tasks or Futures of the program\n")[2].splitlines() == [
        "  4 x ValueError: 'answer' at reward.py:12, kept by asyncio tasks · rank 1",
        "  3 x KeyError: 'answer' at reward.py:12, kept by Futures · rank 2",
        "  1 x KeyError: 'answer' at reward.py:12, kept by its asyncio task · rank 0",
    ]
    both = shown(160, workers=[catches(0, 1, **task), catches(1, 20)])
    assert both.index("caught by the program\n  20 x") < both.index(
        "\n\nkept by tasks or Futures of the program\n  1 x"
    )


def test_stops_come_by_role_and_rank_whoever_stopped_first() -> None:
    stops = [stop(number, rank, since=NOW - rank) for number, rank in enumerate((10, 1, 9, 0))]
    lines = shown(220, stops=[*stops, stop(7, None, role="Driver")]).splitlines()
    assert [line.split()[0] for line in lines[1:6]] == ["s7", "s3", "s1", "s2", "s0"]


@pytest.mark.parametrize("width", [80, 200])
def test_a_stop_whose_worker_cannot_be_asked_says_so(width: int) -> None:
    text = shown(width, stops=MANY[:2], workers=[{"worker_id": "w1", "connected": False}, {"worker_id": "w2"}])
    assert text.count("connection lost") == 1 and "breakpoint b1, connection lost" in text


def test_a_pipe_gets_one_whole_line_for_a_stop_however_long() -> None:
    lines = shown(None, stops=MANY).splitlines()
    assert "trainer/workers/a_rather_long_name_of_a_file_of_a_trainer.py:88" in lines[2]
    assert "SomeTrainWorker.update_actor_and_critic" in lines[2]


def test_a_breakpoint_says_how_far_it_came_and_why_not_further() -> None:
    points = [
        {"id": "b1", "spec": "a.py:3 @Worker", "armed": 3, "workers": 8, "hits": 1, "note": ""},
        {"id": "b2", "spec": "b.py:4", "armed": 0, "workers": 8, "hits": 0, "note": "module not loaded yet"},
        {"id": "b3", "spec": "c.py:5 if x", "armed": 8, "workers": 8, "hits": 0, "note": "", "error": "NameError: x"},
    ]
    text = shown(80, breakpoints=points)
    assert "b1  a.py:3 @Worker  armed in 3 of 8, 1 hit\n" in text
    assert "b2  b.py:4  armed in 0 of 8: module not loaded yet\n" in text
    assert "armed in 8 of 8\n    NameError: x" in text


def test_what_ended_is_told_the_newest_first_and_no_endless_list() -> None:
    gone = [{"id": f"s{n}", "role": "Worker", "rank": n, "reason": f"why {n}", "time": NOW - 100 + n} for n in range(9)]
    text = shown(80, gone=gone, crashes=2)
    assert text.index("s8  Worker[8]  why 8  92 s ago") < text.index("s7  ")
    assert "s3 " not in text and "and 4 more" in text
    assert "2 crashes: devkit crashes" in text


def test_stops_of_a_job_that_has_ended_go_when_a_later_job_runs() -> None:
    gone = [
        {"id": f"s{job}", "job_id": f"{job:02x}000000", "role": "W", "rank": 0, "reason": "continued", "time": NOW}
        for job in (1, 2, 3)
    ]
    both = [{"job_id": "02000000"}, {"job_id": ""}]
    text = shown(80, gone=gone, workers=both)
    assert "s1 " not in text and "s2 " in text and "s3 " in text, "the third has ended just now, beside the second"
    assert "s1 " in shown(80, gone=gone, workers=[*both, {"job_id": "01000000"}])
    assert "s1 " in shown(80, gone=gone) and "no longer" not in shown(80, gone=gone[:1], workers=both)


@pytest.mark.parametrize(
    ("state", "hint"),
    [
        ({}, "devkit run -- CMD"),
        ({"workers": [{}]}, "devkit break FILE:LINE"),
        ({"workers": [{}]}, "devkit stacks shows where they are; if nothing moves, devkit hang says why\n"),
        (
            {"workers": [{"worker_id": "ab"}, {"worker_id": "ab-7"}]},
            "devkit is in 1 process that these have started, too\n",
        ),
        ({"workers": [{}], "breakpoints": [{"id": "b", "spec": "a:1"}]}, "when they hit a breakpoint"),
    ],
)
def test_when_nothing_is_stopped_it_says_what_to_do(state: dict[str, object], hint: str) -> None:
    text = shown(80, **state)
    assert text.startswith("nothing is stopped\n") and hint in text
    assert max(map(len, text.splitlines())) <= 80


def test_json_is_one_document_with_every_promised_field(capsys: pytest.CaptureFixture[str]) -> None:
    assert ps.run(FakeHub(ps={"stops": MANY[:1]}), json=True) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document) == {"stops", "breakpoints", "crashes", "gone", "workers"}
    assert document["stops"] == MANY[:1] and document["crashes"] == 0


def test_watch_prints_a_json_line_for_each_change_until_the_hub_is_gone(capsys: pytest.CaptureFixture[str]) -> None:
    hub = FakeHub()
    hub.news = [ps_document(), ps_document(stops=MANY)]
    with pytest.raises(DevkitError, match="hub is gone"):
        ps.run_watch(hub, json=True)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [len(line["stops"]) for line in lines] == [0, 3]


def test_a_patient_watch_says_once_what_is_wrong_and_finds_the_next_job() -> None:
    idle, hub = DevkitError("no job runs", hint="start one"), FakeHub()
    hub.news = [ps_document(stops=MANY)]
    tries: Iterator[DevkitError | FakeHub] = iter(
        [idle, idle, hub, idle, UnreachableError("nothing answers", hint="-")]
    )
    pauses: list[float] = []

    def connect() -> AbstractContextManager[FakeHub]:
        found = next(tries)
        if isinstance(found, DevkitError):
            raise found
        return nullcontext(found)

    def goes_on(seconds: float) -> bool:
        pauses.append(seconds)
        return len(pauses) < 5

    told = [document.get("error") or len(document["stops"]) for document in ps.patient_news(connect, goes_on)]
    assert told == ["no job runs", 3, "no job runs", "nothing answers"]
    assert pauses == [ps.SOON] * 4 + [ps.LATER]


def test_a_patient_watch_ends_with_its_reader() -> None:
    code = "from devkit.debug.ps import is_read; print(is_read(0.01), flush=True); assert not is_read(30)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "True\n"
    child.stdout.close()
    assert child.wait(timeout=stretched(15)) == 0


def test_watch_in_a_file_prints_each_page(capsys: pytest.CaptureFixture[str]) -> None:
    hub = FakeHub()
    hub.news = [ps_document(), ps_document(stops=MANY)]
    with pytest.raises(DevkitError):
        ps.run_watch(hub)
    assert capsys.readouterr().out.count("FUNCTION") == 1


@given(st.sets(st.integers(0, 40)))
def test_a_list_of_ranks_says_exactly_these_ranks(ranks: set[int]) -> None:
    read: list[int] = []
    for part in filter(None, rank_list(ranks).split(",")):
        first, _, last = part.partition("-")
        read += range(int(first), int(last or first) + 1)
    assert read == sorted(ranks)


def test_members_are_named_so_that_nobody_else_is_meant() -> None:
    twice = [Who("Worker", 0, "s1"), Who("Worker", 0, "s2"), Who("Worker", 1, "s3")]
    assert name_members(twice) == "rank 1; Worker[0] s1; Worker[0] s2"
    assert name_members(twice[:1], twice) == "Worker[0] s1"
    two_roles = [Who("Actor", 0, "a"), Who("Critic", 0, "c")]
    assert name_members(two_roles[:1], two_roles) == "Actor rank 0"


def test_a_path_below_another_folder_of_the_same_beginning_stays_whole() -> None:
    assert short_path("/jobs/train.py", "/job") == "/jobs/train.py"
    assert short_path("/job/train.py", "/") == "/job/train.py"
