"""One cause out of what many processes left behind, from text and tables alone; and no secret in a bundle."""

from __future__ import annotations

import json
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devkit.debug.inworker.hub_place import DRIVER_NOTES
from devkit.debug.inworker.records import CrashRecord
from devkit.debug.inworker.records import Raised as RaisedDocument
from devkit.debug.jobs import command_of
from devkit.debug.protocols import Document
from devkit.debug.rows import JobRow, NodeRow
from devkit.doctor.cluster import BOOT
from devkit.errors import DevkitError, NoJobError, UsageError
from devkit.logs import bundle, parse, redact, view
from devkit.logs.collect import Left, LogFile, of_crash, of_log, word_on
from devkit.logs.events import Event, Raised
from devkit.logs.follows import CAUSE, FOLLOWS, MAYBE, weigh
from devkit.logs.judge import with_causes
from devkit.logs.order import AGAIN, AT_ITS_LINE, WITHIN, first_error
from devkit.logs.run import newest_failed

PLAIN = """\
INFO starting
Traceback (most recent call last):
  File "/job/train.py", line 7, in main
    load(path)
  File "/job/data.py", line 3, in load
    rows["response"]
KeyError: 'response'
INFO ended
"""
CHAIN = """\
Traceback (most recent call last):
  File "/job/data.py", line 3, in load
    int("x")
ValueError: invalid literal

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/job/train.py", line 9, in main
    load()
RuntimeError: cannot load
"""
NESTED = """\
Traceback (most recent call last):
  File "/job/train.py", line 20, in <module>
    ray.get(outer.remote(7))
  File "/v/lib/python3.11/site-packages/ray/_private/worker.py", line 1, in get
    raise value.as_instanceof_cause()
ray.exceptions.RayTaskError(KeyError): \x1b[36mray::outer()\x1b[39m (pid=10, ip=10.0.0.1)
  File "/job/train.py", line 12, in outer
    ray.get(pick.remote(x))
ray.exceptions.RayTaskError(KeyError): \x1b[36mray::Rank.pick()\x1b[39m (pid=11, ip=10.0.0.2, actor_id=ab, repr=<x>)
  File "/job/train.py", line 5, in pick
    rows["response"]
KeyError: 'response'
after
"""


def only(text: str) -> parse.Found:
    [found] = parse.find(text)
    return found


@pytest.mark.parametrize("prefix", ["", "(Rank pid=7, ip=10.0.0.3) ", "\x1b[36m(Rank pid=7, ip=10.0.0.3)\x1b[0m "])
def test_a_traceback_with_what_ray_puts_before_it(prefix: str) -> None:
    found = only("".join(f"{prefix}{line}\n" for line in PLAIN.splitlines()))
    assert found.raised.said == "KeyError: 'response'" and found.line == 1
    assert [(frame.file, frame.line) for frame in found.raised.frames] == [("/job/data.py", 3), ("/job/train.py", 7)]
    assert (found.raised.pid, found.raised.node_ip) == ((7, "10.0.0.3") if prefix else (0, ""))


def test_a_rank_s_prefix_of_torch() -> None:
    found = only("".join(f"[rank3]: {line}\n" for line in PLAIN.splitlines()))
    assert found.raised.rank == 3


def test_a_chain_goes_back_to_its_first_exception() -> None:
    found = only(CHAIN)
    assert found.raised.said == "ValueError: invalid literal"
    assert parse.own_frame(found.raised) == ("/job/data.py", 3, "load")


def test_nested_tasks_go_back_to_the_innermost() -> None:
    found = only(NESTED)
    raised = found.raised
    assert (raised.said, raised.who, raised.pid, raised.node_ip) == (
        "KeyError: 'response'",
        "Rank.pick",
        11,
        "10.0.0.2",
    )
    assert parse.own_frame(raised) == ("/job/train.py", 5, "pick")


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("Fatal Python error: Segmentation fault", "SIGSEGV"),
        ("Fatal Python error: the interpreter is broken", "fatal error"),
        ("bash: line 1: torchrunn: command not found", "command"),
        ("/bin/sh: 1: torchrunn: not found", "command"),
        ("[rank0]:[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4", "DistBackendError"),
        ("error: no such key", "error"),
    ],
)  # fmt: skip
def test_last_words_that_are_no_traceback(line: str, kind: str) -> None:
    assert only(f"INFO x\n{line}\n").raised.type == kind


@given(st.text())
def test_any_text_can_be_read(text: str) -> None:
    for found in parse.find(f"Traceback (most recent call last):\n{text}"):
        assert found.raised.type
    parse.innermost(text)


OWN = """\
Traceback (most recent call last):
  File "/job/train.py", line 7, in main
    step()
  File "/job/client.py", line 3, in step
    {line}
{error}
"""


@pytest.mark.parametrize(
    "line",
    [
        'raise ConnectionError("connection closed by peer: ours")',
        "raise",
        "assert peers, who",
        "sys.exit(3)",
        "exit(3)",
    ],
)
@pytest.mark.parametrize(
    "error",
    [
        "ConnectionError: connection closed by peer: ours",
        "TimeoutError: no answer within 5 s from the reward model",
        "SystemExit: 3",
        "ray.exceptions.GetTimeoutError: mine",
    ],
)
def test_what_the_program_raises_itself_follows_from_nothing(line: str, error: str) -> None:
    text = OWN.format(line=line, error=error)
    raised = only(text).raised
    assert raised.own and weigh(Event("task", raised)).level == CAUSE
    echo = Event("log", replace(raised, frames=(), own=False), None, "driver")  # a sighting without its lines
    found = first_error([Event("task", raised, 1.0, "f", pid=1), echo])
    assert found.sure and found.cause is not None and found.cause.best.raised.said == raised.said
    assert weigh(Event("crash", raised, root="c1")).level == FOLLOWS


@pytest.mark.parametrize("line", ["sock.recv(3)", "raised = ray.get(ref)", "self.raise_for(3)"])
def test_what_a_call_of_the_programs_raised_may_follow(line: str) -> None:
    raised = only(OWN.format(line=line, error="ConnectionResetError: connection reset by peer")).raised
    assert not raised.own and weigh(Event("task", raised)).level == FOLLOWS


def test_a_library_that_raises_is_not_the_program() -> None:
    text = OWN.format(line="raise value", error="ConnectionError: connection closed by peer")
    raised = only(text.replace("/job/client.py", "/v/lib/python3.11/site-packages/ray/_private/worker.py")).raised
    assert not raised.own and weigh(Event("task", raised)).level == FOLLOWS


def test_a_snapshot_of_what_the_program_raised() -> None:
    source = {"first": 3, "lines": ["def step():", '    raise TimeoutError("no answer within 5 s from it")', ""]}
    frame = {"file": "/job/client.py", "line": 4, "function": "step", "source": source, "user": True, "locals": {}}
    said = {"type": "TimeoutError", "message": "no answer within 5 s from it"}
    document = {"exception": said, "frames": [frame], "file": "/job/client.py", "line": 4, "function": "step",
                "time": 1.0, "role": "A", "rank": None, "node_ip": "h", "pid": 7, "id": "c1", "root": None}  # fmt: skip
    assert weigh(of_crash(document)).level == CAUSE
    assert weigh(of_crash({**document, "root": "c0"})).level == FOLLOWS
    called = {**frame, "source": {**source, "lines": ["def step():", "    wait(5)", ""]}}
    assert weigh(of_crash({**document, "frames": [called]})).level == MAYBE


def test_a_crash_and_its_follower_of_one_process_are_the_cause_once() -> None:
    """As in a trial of Ray Tune: its thread fails, and then the actor's method with the same exception."""
    raised = Raised("ZeroDivisionError", "division by zero", KEY.frames)
    seen = [Event("crash", raised, at, "Trial", pid=7, id=name, root=root) for at, name, root in TWICE]
    found = first_error([*seen, Event("task", raised, 1.2, "Trial", pid=7)])
    assert found.cause is not None and found.cause.best.id == "c1" and found.sure
    alone = first_error(seen[1:])  # of what it followed from nothing else was found
    assert not alone.sure


def test_a_driver_s_exit_code_alone_is_what_is_known() -> None:
    job = JobRow(job_id="04", status="FAILED", message="the driver ended with exit code 3", entrypoint="python e.py")
    found = first_error(list(word_on(job)))
    assert (
        found.cause is not None and found.cause.best.raised.said == "the driver ended with exit code 3" and found.sure
    )
    page = view.page(Left(job, (), (), ()), found).plain
    assert "no trace of its cause" not in page and "no error was found: the driver ended with exit code 3" in page


def test_a_driver_that_a_fault_ended_has_an_error() -> None:
    job = JobRow(job_id="04", status="FAILED", message="the driver was ended by SIGSEGV", entrypoint="python e.py")
    page = view.page(Left(job, (), (), ()), first_error(list(word_on(job)))).plain
    assert "first error: the driver was ended by SIGSEGV" in page and "--count-caught" not in page


def test_a_job_that_ended_well_is_said_to() -> None:
    job = JobRow(job_id="05", status="SUCCEEDED", entrypoint="python tune.py")
    found = first_error([Event("task", KEY, 1.0, "trial", pid=1)])
    assert "its driver exited without an error" in view.page(Left(job, (), (), ()), found).plain
    page = view.page(Left(replace(job, is_untold=True), (), (), ()), found).plain
    assert "job 05 (ENDED): python tune.py" in page and "its driver has ended; Ray does not record how" in page
    assert "succeeded" not in page.lower()


# ---- deadly signals

SEGFAULT = """\
*** SIGSEGV received at time=1795628461 on cpu 1 ***
PC: @     0x7f46f3385ad8  (unknown)  (unknown)
[2026-11-25 17:41:01,052 E 16270 16270] logging.cc:474: *** SIGSEGV received at time=1795628461 on cpu 1 ***
Fatal Python error: Segmentation fault

Stack (most recent call first):
  File "/job/count.py", line 20 in count
  File "/job/count.py", line 33 in <genexpr>

Extension modules: msgpack._cmsgpack, ray._raylet (total: 2)
"""
ABORT = """\
[2026-11-25 17:41:48,478 E 19999 20494] logging.cc:118: Unhandled exception: N4gloo13EnforceNotMetE. what(): \
[enforce fail at tcp/pair.cc:456] op.preamble.length <= op.nbytes. \
16 vs 14 /v/ray/_raylet.so(+0x1812b9a) [0x7f01] ray::operator()
*** SIGABRT received at time=1795628508 on cpu 1 ***
Fatal Python error: Aborted


Extension modules: msgpack._cmsgpack (total: 1)
"""
DIED = (
    "The actor died unexpectedly before finishing this task.\n\tclass_name: Worker\n\tpid: 7\nThe actor is dead "
    "because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits "
    "with a connection error code 2. End of file. Some common causes include: "
    "(1) the process was killed by the OOM killer"
)


def of_worker(text: str, pid: int = 7) -> list[Event]:
    return list(of_log(LogFile("n", "10.0.0.1", f"worker-ab-01-{pid}.err", text)))


@pytest.mark.parametrize("with_devkit", [False, True])
def test_a_deadly_signal_is_one_error_with_its_line(with_devkit: bool) -> None:
    exit_ = Raised("SIGSEGV", "Segmentation fault", tuple(of_worker(SEGFAULT)[-1].raised.frames))
    crash = Event("crash", exit_, 1.0, "Worker", 2, "10.0.0.1", 7, id="c1", kind="exit")
    known_to_ray = Event("worker", Raised("ProcessDied", "the process died: no word"), 1.0, pid=7)
    told = Event("task", Raised("ActorDiedError", DIED), 1.2, "driver", pid=1)
    found = first_error([*of_worker(SEGFAULT), told, *([crash] if with_devkit else [known_to_ray])])
    assert found.cause is not None and not found.others
    assert found.cause.best.raised.said == "SIGSEGV: Segmentation fault"
    assert found.cause.at is not None and found.cause.at.line == 20 and found.cause.process[1] == 7
    assert [each.said for each in found.followed] == [
        "ActorDiedError: Worker (pid 7) died: SIGSEGV: Segmentation fault"
    ], "and nobody says that it went without a word"


def test_an_abort_says_what_c_plus_plus_said() -> None:
    found = first_error(of_worker(ABORT))
    said = "SIGABRT: gloo::EnforceNotMet: [enforce fail at tcp/pair.cc:456] op.preamble.length <= op.nbytes. 16 vs 14"
    assert found.cause is not None and found.cause.best.raised.said == said and not found.others


def test_a_check_that_only_warns_is_no_error_and_two_signals_are_two() -> None:
    assert first_error(of_worker("W x.cc:3] Check failed: a == b\n")).cause is None
    found = first_error([*of_worker(SEGFAULT), *of_worker(ABORT, pid=8)])
    assert found.cause is not None and len(found.others) + sum(each.count for each in found.followed) == 1


# ---- which one is the cause

TWICE = ((1.0, "c1", ""), (1.1, "c2", "c1"))
KEY = Raised("KeyError", "'response'", parse.innermost(PLAIN.split("INFO ended")[0]).frames)


def event(kind: str, message: str = "", at: float | None = 10.0, pid: int = 1, **changes: object) -> Event:
    return replace(Event("task", Raised(kind, message), at, "Rank.train", pid=pid, node_ip="10.0.0.1"), **changes)  # type: ignore[arg-type]


CAUSED = [
    event("RuntimeError", "[gloo/tcp/pair.cc] Connection closed by peer [10.0.0.2]:4", 9.0, pid=2),
    event("DistBackendError", "Watchdog caught collective operation timeout: ALLREDUCE", 9.5, pid=3),
    event("ActorDiedError", "The actor died unexpectedly before finishing this task.", 9.6, pid=4),
    event("ValueError", "Failed to create placement group 'pg' because the name already exists", 9.7, pid=5),
    event("ProcessDied", "*** SIGTERM received at time=1", 9.8, pid=6, source="worker"),
]


def test_who_was_told_that_an_actor_has_died_got_that_and_not_what_it_died_of() -> None:
    text = """\
Traceback (most recent call last):
  File "/job/train.py", line 65, in main
    ray.get(actor.step.remote())
ray.exceptions.ActorDiedError: The actor died because of an error raised in its creation task, \
ray::Actor.__init__() (pid=7, ip=10.0.0.1, actor_id=ab, repr=<x>)
  File "/job/train.py", line 25, in _restore
    torch.load(path)
_pickle.UnpicklingError: Weights only load failed.
"""
    told = only(text)
    own = event("UnpicklingError", "Weights only load failed.", 1.0, pid=7, source="crash", id="ab", role="Actor")
    driver = Event("log", told.raised, 1.2, "driver", pid=1, text=told.text)
    found = first_error([own, driver])
    assert found.cause is not None and found.cause.best.raised.said == "UnpicklingError: Weights only load failed."
    end = Event("crash", replace(told.raised, who="", pid=1), 1.2, "driver", pid=1, text=told.text, id="cd", root="ab")
    [followed] = first_error([own, end]).followed
    assert followed.said == "ActorDiedError: UnpicklingError: Weights only load failed.", followed


def test_what_only_follows_is_set_aside_though_its_clock_is_ahead() -> None:
    found = first_error([*CAUSED, event("KeyError", "'response'", 10.0)])
    assert found.cause is not None and found.cause.best.raised.said == "KeyError: 'response'"
    assert found.sure and not found.others
    assert sum(each.count for each in found.followed) == len(CAUSED)
    assert {each.why for each in found.followed} == {
        "a peer that closed its connection",
        "a rank that never arrived",
        "an actor that died",
        "an earlier attempt",
        "a process that was terminated",
    }


def test_a_time_out_alone_is_told_as_what_may_follow() -> None:
    found = first_error(CAUSED)
    assert found.cause is not None and found.cause.weight.level == MAYBE and not found.sure


def test_one_error_in_many_places_is_one() -> None:
    """The task's row, the snapshot, the driver's log without a line, and Ray's status of the job."""
    crash = Event("crash", KEY, 9.9, "Rank", 1, "10.0.0.1", 1, id="c1", where="snapshot")
    task = Event("task", KEY, 10.0, "Rank.train", None, "10.0.0.1", 1, where="task")
    log = Event("log", replace(KEY, pid=1, node_ip="10.0.0.1", who="Rank.train"), None, "driver", where="log")
    job = Event("job", Raised("KeyError", "'response'"), 11.0, "driver", where="job")
    found = first_error([job, log, task, crash])
    assert found.cause is not None and not found.followed
    assert [each.where for each in found.cause.events] == ["snapshot", "task", "log", "job"]
    assert (found.cause.rank, found.cause.time) == (1, 9.9)
    # Ray's table may have a row before it has the process.
    nameless = first_error([job, log, replace(task, pid=0, node_ip="")])
    assert nameless.cause is not None and nameless.cause.best.source == "task"
    assert nameless.cause.process == ("10.0.0.1", 1) and not nameless.followed


def test_the_same_error_of_two_ranks_is_one_cause_and_one_that_followed() -> None:
    found = first_error([event("ValueError", "bad", 10.0, pid=1), event("ValueError", "bad", 10.2, pid=2)])
    assert found.cause is not None and found.cause.best.pid == 1
    assert [(each.count, each.why) for each in found.followed] == [(1, "the same, elsewhere")]


def test_what_ray_raises_in_place_of_an_error_is_said_to_be_that() -> None:
    """It came a moment after it, in who awaited it; alone it is all that is known."""
    unread = (
        "Failed to deserialize exception. Refer to the documentation.\nOriginal exception:\n"
        "ray.exceptions.RayTaskError: ray::Tool.call() (pid=7, ip=10.0.0.1)\n"
        '  File "/job/tool.py", line 24, in __call__\n    raise ToolError(uid)\nToolError: failed for 10-4\n'
    )
    own = event("ToolError", "failed for 10-4", 10.0, pid=7)
    shown = event("UnserializableException", unread, 10.1, pid=1)
    page = view.page(left(), first_error([own, shown])).plain
    assert "first error: ToolError" in page and "at the same time" not in page, page
    told = (
        "Ray raised in its place: UnserializableException: in place of ToolError, which cannot be unpickled: failed for"
    )
    assert told in page, page
    other = event("ToolError", "failed for 9-1", 10.0, pid=7)
    assert "at the same time: UnserializableException" in view.page(left(), first_error([other, shown])).plain


def test_what_would_help_is_said_once() -> None:
    """Of the error where it was raised, and not of what Ray raises in its place, too."""
    unread = (
        "Failed to deserialize exception. Refer to the documentation.\nOriginal exception:\n"
        "ray.exceptions.RayTaskError: ray::Tool.call() (pid=7, ip=10.0.0.1)\n"
        '  File "/job/tool.py", line 24, in __call__\n    raise ToolError(uid)\nToolError: failed for 10-4\n'
    )
    own = replace(event("ToolError", "failed for 10-4", 10.0, pid=7), id="c1")
    shown = replace(event("UnserializableException", unread, 10.1, pid=1), id="c2")
    crash = {"exception": {"type": "ToolError", "message": ""}, "frames": []}
    here = {**crash, "id": "c1", "remade": "ToolError is made again so, which no `except` catches; define a __reduce__"}
    there = {**crash, "id": "c2", "remade": "ToolError is made again so; define a __reduce__"}
    page = view.page(replace(left(), crashes=(here, there)), first_error([own, shown])).plain
    assert page.count("define a __reduce__") == 1 and "which no `except` catches" in page, page
    alone = view.page(replace(left(), crashes=(there,)), first_error([own, shown])).plain
    assert alone.count("define a __reduce__") == 1, "where it was raised nothing was known"


def test_errors_are_counted_and_not_the_processes_that_had_them() -> None:
    """Three calls of each of two actors fail alike: each leaves a snapshot of its own."""
    raised = Raised("RuntimeError", "probability tensor contains `nan`", (parse.Frame("/job/act.py", 38, "complete"),))
    seen = [
        Event("crash", raised, 100.0 + at, "Worker", None, "10.0.0.1", pid, id=f"c{pid}{at}", kind="actor")
        for pid in (11, 12)
        for at in range(3)
    ]
    seen += [Event("crash", raised, 103.0, "Worker", None, "10.0.0.1", 12, id="way out", root="c122", kind="exit")]
    found = first_error(seen)
    assert found.cause is not None and (found.cause.process[1], found.cause.times) == (11, 3)
    assert [(each.count, each.why) for each in found.followed] == [(3, "the same, elsewhere")]
    page = view.page(left(), found).plain
    assert " · 3 times\n" in page and "3 errors followed:\n  3 x RuntimeError" in page, page


def test_a_consequence_is_one_wherever_it_is_seen() -> None:
    """devkit knows of a snapshot that another one caused it; Ray's row of the same error does not."""
    outer = event("RuntimeError", "cannot load", 5.0, pid=2)
    known = replace(outer, source="crash", id="c2", root="c1")
    cause = event("KeyError", "'response'", 9.0)
    found = first_error([outer, known, cause])
    assert found.cause is not None and found.cause.best.raised.type == "KeyError"
    assert [each.why for each in found.followed] == ["another crash"]


def test_what_differs_only_in_a_path_or_number_is_the_same_elsewhere() -> None:
    at = (parse.Frame("/job/r.py", 37, "rules"),)
    seen = [
        Event("crash", Raised("OSError", f"Too many open files: '/tmp/{n}/rule_{n}.txt'", at), 100.0 + n / 10, "Worker",
              None, "10.0.0.1", n + 1, id=f"c{n}", kind="actor")
        for n in range(3)
    ]  # fmt: skip
    found = first_error(seen)
    assert not found.others and {each.why for each in found.followed} == {"the same, elsewhere"}
    elsewhere = replace(seen[1], raised=replace(seen[1].raised, frames=(parse.Frame("/job/r.py", 60, "rules"),)))
    [other] = first_error([seen[0], elsewhere]).others
    assert other.best is elsewhere


def test_other_files_at_one_line_of_a_process_are_one_row_and_those_after_the_drivers_end_another() -> None:
    """Calls wait in one actor; when their driver fails, its `with` takes away what those need that come last."""
    at = (parse.Frame("/job/evaluate.py", 58, "Evaluator.evaluate"),)

    def crash(step: int, time: float, **changes: str) -> Event:
        raised = Raised(
            "FileNotFoundError", f"[Errno 2] No such file or directory: '/tmp/c/step_{step}/model.json'", at
        )
        own = Event("crash", raised, time, "Evaluator", None, "10.0.0.1", 7, id=f"c{step}", kind="actor")
        return replace(own, **changes)  # type: ignore[arg-type]

    driver = replace(crash(2, 10.5, id="d", kind="driver", role="driver", root="c2"), pid=1)
    seen = [crash(2, 10.0), crash(4, 10.1), crash(6, 10.2), driver, crash(16, 11.0), crash(18, 11.1), crash(20, 10.6)]
    found = first_error(seen)
    assert found.cause is not None and found.cause.best.id == "c2"
    rows = {(each.why, each.late): (each.count, each.said) for each in found.followed}
    said = "FileNotFoundError: [Errno 2] No such file or directory: '/tmp/c/step_{}/model.json'"
    assert rows[AT_ITS_LINE, False] == (3, said.format(4)), "the snapshot of one may be kept a little later"
    assert rows[AT_ITS_LINE, True] == (2, said.format(16))
    page = view.page(left(), found).plain
    assert "in Evaluator  (at the same line of the same process, with another path or number)\n" in page, page
    assert "another path or number, after the driver had failed)" in page and "elsewhere" not in page, page
    for other in (crash(16, 11.0, node_ip="10.0.0.2"), crash(16, 11.0, kind="exit")):
        assert not any(each.late for each in first_error([*seen[:4], other]).followed), other
    left_by_itself = replace(driver, raised=Raised("SystemExit", "1"))
    assert not any(each.late for each in first_error([*seen[:3], left_by_itself, seen[4]]).followed)
    again = crash(2, 10.3, id="again")
    again = replace(
        again, raised=replace(again.raised, frames=(parse.Frame("/job/evaluate.py", 71, "Evaluator.more"),))
    )
    [same] = first_error([seen[0], again]).followed
    assert same.why == "the same, in the same process"


def test_what_followed_is_more_where_others_stand_above_it() -> None:
    two = [event("ValueError", "bad", 10.0, pid=1), event("KeyError", "'x'", 11.0, pid=2)]
    later = event("ValueError", "worse", 60.0, pid=3)
    assert "1 more error followed:\n" in view.page(left(), first_error([*two, later])).plain
    assert "\n1 error followed:\n" in view.page(left(), first_error([two[0], later])).plain
    placed = event("ValueError", "worse at /home/user/job/train.py:7 in fit", 60.0, pid=3)
    page = view.page(left(), first_error([two[0], placed]), "/home/user/job").plain
    assert "1 x ValueError: worse at train.py:7 in fit" in page, "as the line above has its places"


def test_the_error_that_was_handled_when_a_process_left_is_in_the_headline() -> None:
    left_by = Event("crash", Raised("SystemExit", "1"), 10.0, "Actor", 2, "10.0.0.1", 7, id="c1", kind="exit")
    snapshot = {"id": "c1", "kind": "exit", "handled": "AssertionError: 3 sequences (c08.py:14)"}
    page = view.page(replace(left(), crashes=(snapshot,)), first_error([left_by])).plain
    assert "first error: SystemExit: 1, while AssertionError: 3 sequences (c08.py:14) was handled\n" in page, page


def test_of_many_places_it_is_said_how_many_are_not_named() -> None:
    seen = [
        Event("crash", LOSS, 10.0 + at, "Worker", None, "10.0.0.1", 7, id=f"c{at}", where=f"c{at}") for at in range(6)
    ]
    assert "seen in c0, c1, c2, c3 and 2 more\n" in view.page(left(), first_error(seen)).plain


def test_two_causes_at_one_time_are_both_told() -> None:
    found = first_error([event("ValueError", "bad", 10.0, pid=1), event("KeyError", "'x'", 11.0, pid=2)])
    assert [each.best.raised.type for each in found.others] == ["KeyError"]
    found = first_error([event("ValueError", "bad", 10.0, pid=1), event("KeyError", "'x'", 60.0, pid=2)])
    assert not found.others and found.followed[0].why == "came later"


def test_a_worker_killed_for_memory_is_a_cause() -> None:
    killed = event("OutOfMemory", "Task was killed due to the node running low on memory.", 10.0, source="worker")
    died = event("WorkerCrashedError", "The worker died unexpectedly while executing this task", 9.0, pid=2)
    found = first_error([died, killed])
    assert found.cause is not None and found.cause.best.raised.type == "OutOfMemory"


def test_no_error() -> None:
    assert first_error([]).cause is None


@given(st.permutations(range(len(CAUSED) + 1)))
def test_the_order_in_which_it_is_found_makes_no_difference(order: list[int]) -> None:
    events = [*CAUSED, event("KeyError", "'response'", 10.0)]
    assert first_error([events[at] for at in order]) == first_error(events)


def test_weights() -> None:
    assert weigh(event("ValueError", "bad")).level == CAUSE
    assert weigh(replace(event("ValueError", "bad"), root="c1")).level == FOLLOWS


# ---- the bundle

SECRETS = ("abcdef123456", "hunter2hunter2", "eyJhbGciOi.eyJzdWIiOi.abc", "s3cr3ts3cr3t")
LOG = f"""\
:actor_name:Rank
WANDB_API_KEY={SECRETS[0]} Authorization: Bearer {SECRETS[2]}
clone https://me:{SECRETS[1]}@host/repo --hf-token {SECRETS[3]} eos_token=</s> max_tokens=512
{PLAIN}"""


def left() -> Left:
    name = "worker-" + "ab" * 28 + "-01000000-77.err"
    file = LogFile("n" * 56, "10.0.0.1", name, LOG)
    environment = {"env_vars": {"HF_TOKEN": SECRETS[0], "STEPS": "4"}}
    job = JobRow(job_id="01000000", status="FAILED", entrypoint=f"python t.py --password {SECRETS[1]}")
    job = replace(job, metadata={"runtime_env": json.dumps(environment), "api_key": SECRETS[3]})
    crash = {"id": "c1", "frames": [{"locals": {"api_key": SECRETS[3], "rows": [1]}}]}
    node = NodeRow(node_id="n" * 56, node_ip="10.0.0.1", state="ALIVE")
    return Left(job, tuple(of_log(file)), (file,), (), (node,), crashes=(crash,))


def read(path: Path) -> dict[str, str]:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name).decode() for name in archive.namelist()}
    with tarfile.open(path) as tar:
        return {name: tar.extractfile(name).read().decode() for name in tar.getnames()}  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["bug.tar.gz", "bug.zip"])
def test_a_bundle_has_what_tells_and_no_secret(tmp_path: Path, name: str) -> None:
    found = first_error(left().events)
    record = view.record(left(), found, name)
    bundle.write(tmp_path / name, left(), found, view.page(left(), found).plain, record, "2.60.0", {"ranks": []})
    content = read(tmp_path / name)
    everything = "\n".join(content.values())
    assert [secret for secret in SECRETS if secret in everything] == []
    assert "eos_token=</s> max_tokens=512" in everything and '"STEPS' in everything.replace("\\", "")
    assert content["report.txt"].splitlines()[2] == "first error: KeyError: 'response'"
    assert {"job.json", "versions.json", "cluster.json", "stacks.json", "crashes/c1.json"} <= set(content)
    [log] = [text for path, text in content.items() if path.startswith("logs/10.0.0.1-")]
    assert "rows[" in log and "<redacted>" in log
    assert list(tmp_path.iterdir()) == [tmp_path / name]


@pytest.mark.parametrize("name", ["bug.tar.gz", "bug.zip"])
def test_no_name_in_a_bundle_leads_out_of_it(tmp_path: Path, name: str) -> None:
    """Names of logs and snapshots are a server's; somebody else unpacks them."""
    file = LogFile("n" * 56, "../../10.0.0.1", "../../../etc/worker.err", LOG)
    crash = {"id": "../../evil", "frames": []}
    all_left = replace(left(), files=(file,), crashes=(crash,))
    found = first_error(all_left.events)
    bundle.write(tmp_path / name, all_left, found, "", {}, "2.60.0")
    names = list(read(tmp_path / name))
    assert any("worker.err" in each for each in names) and any("evil" in each for each in names)
    for each in names:
        assert not each.startswith("/") and ".." not in each.split("/"), each


def test_a_bundle_is_an_archive() -> None:
    with pytest.raises(UsageError, match=r"bug\.txt is not an archive"):
        bundle.check(Path("bug.txt"))


@given(st.sampled_from(["{}={}", '"{}": "{}"', "{}: {}", "--{} {}", "export {}='{}'"]))
def test_a_secret_is_found_however_it_is_written(form: str) -> None:
    for name in ("WANDB_API_KEY", "MY_SECRET", "DB_PASSWORD", "hf_token", "aws_secret_access_key"):
        shown = name if not form.startswith("--") else name.lower().replace("_", "-")
        assert "q1w2e3" not in redact.text(form.format(shown, "q1w2e3"))


def test_what_is_left_of_a_long_log() -> None:
    lines = [f"line {number}" for number in range(10_000)]
    kept = list(bundle._cut(lines, bundle._parts(len(lines), [5000])))
    assert "line 5000" in kept and "line 9999" in kept and "line 100" not in kept
    assert len(kept) < 800


def test_a_survey_of_devkit_s_own_is_nobody_s_first_error() -> None:
    # given a job that failed, and two later surveys of the doctor: as a driver here, and as a job
    survey = JobRow(job_id="03", status="FAILED", entrypoint=f"python -c {BOOT}", start_time=3)
    job = JobRow(job_id="04", status="FAILED", entrypoint="sh", metadata={"devkit": "devkit doctor"}, start_time=4)
    mine = JobRow(job_id="02", status="FAILED", entrypoint="python train.py", start_time=2)
    assert newest_failed([survey, mine, job], "here") == mine
    assert [command_of(each) for each in (survey, job)] == ["devkit doctor"] * 2
    with pytest.raises(NoJobError, match="no job has run on here"):
        newest_failed([survey, job], "here")


def test_a_process_that_ended_itself_with_no_error_before_is_the_cause_of_what_its_successor_raises() -> None:
    """A guard's thread calls `os._exit`; the actor comes back without what it had."""
    ended = replace(event("SystemExit", "1", 9.0, pid=1, source="crash", id="c1"), kind="exit")
    after = [event("AttributeError", "no net", at, pid=2, source="crash", id=f"c{at}") for at in (9.5, 13.0)]
    found = first_error([*after, ended])
    assert found.cause is not None and found.cause.best.raised.type == "SystemExit" and found.sure
    own = event("ValueError", "bad row", 8.0, pid=1, source="crash", id="c0")
    before = first_error([*after, ended, own])
    assert before.cause is not None and before.cause.best.raised.said == "ValueError: bad row"
    assert "an error in its process" in [each.why for each in before.followed]


def test_a_worker_that_leaves_for_an_error_in_its_actors_init_follows_from_that() -> None:
    told = "the process died: Worker exits because there was an exception in the initialization method (__init__)."
    died = event("ProcessDied", told, 9.0, pid=1, source="crash", id="c1")
    raised = event("RaySystemError", "System error: No module named 'a'", 9.1, pid=1, source="crash", id="c2")
    found = first_error([died, raised])
    assert found.cause is not None and found.cause.best.raised.type == "RaySystemError" and not found.others
    assert [each.why for each in found.followed] == ["an error in its process"]


def test_an_end_by_an_error_in_the_process_itself_is_put_under_no_other_s() -> None:
    init = "the process died: Worker exits because there was an exception in the initialization method."

    def crash(name: str, time: float, kind: str, said: str, how: str, pid: int, root: str | None = None) -> CrashRecord:
        raised: RaisedDocument = {"type": kind, "message": said}
        return CrashRecord(name, "01", "Early", None, "10.0.0.1", pid, time, raised, "a.py", pid, "f", root, how)

    def none(_name: str) -> Document:
        raise DevkitError("there is none", hint="none")

    early = crash("early", 5.0, "KeyError", "'early'", "actor", 4)
    other = crash("async", 5.5, "KeyError", "'async'", "actor", 5)
    died, lost = (crash(f"exit {pid}", 5.2, "ProcessDied", init, "exit", pid) for pid in (4, 6))
    found = with_causes([early, died, lost, other], none)
    assert {each.id: each.root for each in found if each.root} == {"exit 4": "early"}
    assert not any(each.supposed for each in found)
    passed_on = replace(early, id="later", pid=6, root="early")
    assert with_causes([early, passed_on, lost], none)[-1].root == "early", "not what only followed itself"


def test_what_ray_has_put_its_own_error_around_did_not_come_later() -> None:
    around = "an object could not be unpickled: TypeError: 'NoneType' object is not callable"
    wraps = event("RaySystemError", around, 9.0, pid=1, source="crash", id="c1")
    inner = event("TypeError", "'NoneType' object is not callable", 9.0, pid=1)
    assert [each.why for each in first_error([wraps, inner]).followed] == [WITHIN]


def test_a_call_that_ray_tries_again_and_that_dies_again_is_told_as_that() -> None:
    first = event("SIGSEGV", "Segmentation fault", 9.0, pid=1, source="crash", id="c1")
    again = event("SIGSEGV", "Segmentation fault", 12.0, pid=2, source="crash", id="c2", root="c1")
    assert [each.why for each in first_error([first, again]).followed] == [AGAIN]


def test_a_driver_that_leaves_after_it_was_told_of_an_error_elsewhere_is_no_cause() -> None:
    raised = event("KeyError", "'b'", 8.0, pid=2, source="crash", id="c1")
    left = replace(event("SystemExit", "1", 8.2, pid=1, source="crash", id="c2"), kind="driver", role="driver")
    found = first_error([raised, left])
    assert found.cause is not None and found.cause.best.raised.type == "KeyError" and not found.others
    assert not found.followed and found.ended is not None and found.ended.best.raised.type == "SystemExit"
    alone = first_error([left])
    assert alone.cause is not None and alone.cause.best.raised.type == "SystemExit" and alone.sure
    job = JobRow(job_id="01", status="FAILED", entrypoint="python job.py")
    assert "devkit run --count-caught" in view.page(Left(job, (), (), ()), alone).plain
    assert "--count-caught" not in view.page(Left(job, (), (), ()), found).plain
    own = first_error([replace(event("KeyError", "'grad_norm'", 8.2, pid=1, source="crash", id="c3"), role="driver")])
    assert "--count-caught" in view.page(Left(job, (), (), ()), own).plain, "a rank's own error may be swallowed"


WARNED = """\
:actor_name:job.Scores
/job/gae.py:38: UserWarning: std(): degrees of freedom is <= 0. Correction should be less than the reduction factor
  advantages = rewards / rewards.std()
/job/gae.py:9: FutureWarning: weights_only will change
/venv/lib/python3.11/site-packages/torch/x.py:3: UserWarning: of a library
"""


def test_what_the_program_warned_of_in_any_process_stands_below() -> None:
    names = [f"worker-{pid:056x}-01000000-{pid}.err" for pid in (76, 77)]
    files = tuple(LogFile("n" * 56, "10.0.0.1", name, WARNED) for name in names)
    failed = replace(left(), files=(*left().files, *files))
    found = first_error(failed.events)
    page = view.page(failed, found).plain
    said = "/job/gae.py:38  UserWarning: std(): degrees of freedom is <= 0. "
    assert f"warned in this job:\n  {said}" in page and "(Scores pid 76 and 1 more)" in page, page
    assert "FutureWarning" not in page and "of a library" not in page
    [given] = view.record(failed, found)["warned"]
    assert (given["kind"], given["line"], given["who"]) == ("UserWarning", 38, ["Scores pid 76", "Scores pid 77"])
    assert "warned in this job" not in view.page(left(), first_error(left().events)).plain
    page = view.page(replace(failed, events=()), first_error([])).plain
    assert page.startswith("no error was found in ") and f", but this was warned of:\n  {said}" in page, page
    nan = event("RuntimeError", "probability tensor contains either `inf`, `nan` or element < 0", 9.0, pid=3)
    page = view.page(failed, first_error([nan])).plain
    assert f"warned in this job, where what is not a number may come from:\n  {said}" in page, page


@pytest.mark.parametrize(
    ("given", "last"), [(3, "job.py:3  UserWarning: odd rows"), (5, "and 2 more, which are in its")]
)
def test_how_many_warnings_are_not_shown_is_said(given: int, last: str) -> None:
    text = "".join(f"/job/job.py:{line}: UserWarning: odd rows\n" for line in range(1, given + 1))
    file = LogFile("n" * 56, "10.0.0.1", f"worker-{76:056x}-01000000-76.err", text)
    ended = replace(left(), files=(file,), events=())
    *_, line = (each for each in view.page(ended, first_error([])).plain.splitlines() if each.startswith("  "))
    assert last in line, line
    assert len(view.record(ended, first_error([]))["warned"]) == given


def test_what_the_driver_says_of_other_processes_is_not_called_its_own() -> None:
    text = "".join(
        f"/job/job.py:{line}: {kind}: odd rows\n" for line, kind in ((8, "DevkitWarning"), (9, "UserWarning"))
    )
    file = LogFile("n" * 56, "10.0.0.1", f"{DRIVER_NOTES}01000000.err", text)
    page = view.page(replace(left(), files=(file,), events=()), first_error([])).plain
    assert "job.py:8  DevkitWarning: odd rows\n" in page and "job.py:9  UserWarning: odd rows (driver" in page, page


def test_a_warning_that_means_more_in_a_ray_job_is_explained() -> None:
    text = "/job/ref.py:14: UserWarning: The given NumPy array is not writable, and PyTorch does not support\n  x\n"
    file = LogFile("n" * 56, "10.0.0.1", f"worker-{76:056x}-01000000-76.err", text)
    page = view.page(replace(left(), files=(file,), events=()), first_error([])).plain
    assert "\n    as what ray.get gives: larger ones lie in Ray's object store, and what writes" in page, page


@pytest.mark.parametrize(
    ("kind", "message", "level"),
    [
        ("ReadTimeout", "HTTPConnectionPool(host='rewards', port=80): Read timed out. (read timeout=5)", CAUSE),
        ("TimeoutError", "connection to the socket of the judge timed out", CAUSE),
        ("Timeout", "The file lock '/data/store.lock' could not be acquired: wait for it timed out", CAUSE),
        ("ValueError", "Unable to create dataset (name already exists)", CAUSE),
        ("UncompletedJobError", "Job 12 (task: 0) has finished with an error", CAUSE),
        ("RuntimeError", "vLLM's engine: health check failed", CAUSE),
        ("DistStoreError", "Timed out after 601 seconds waiting for clients. 1/2 clients joined.", MAYBE),
        ("DistStoreError", "wait timeout after 5000ms, keys: /ready", MAYBE),
        ("DistNetworkError", "The client socket has timed out after 5000ms while trying to connect to", MAYBE),
        ("RuntimeError", "TCPStore(...) timed out", MAYBE),
        ("DistStoreError", "Socket Timeout", MAYBE),
        ("ValueError", "The name weights (namespace=x) is already taken. Please use a different name", FOLLOWS),
        ("NodeDiedError", "the node: health check failed due to missing too many heartbeats", MAYBE),
    ],
)
def test_only_what_ray_and_torch_say_follows_from_their_own(kind: str, message: str, level: int) -> None:
    assert weigh(event(kind, message)).level == level


def test_a_name_that_is_taken_is_not_said_to_be_a_consequence_where_nothing_was_before() -> None:
    found = first_error([event("ValueError", "The name weights (namespace=x) is already taken.")])
    assert found.cause is not None and found.sure


@pytest.mark.parametrize("message", ["15: SIGTERM came here", "the driver was ended by SIGTERM"])
def test_a_driver_that_was_asked_to_end_has_not_failed_by_what_nobody_found(message: str) -> None:
    job = JobRow(job_id="01", status="FAILED", entrypoint="python job.py", message=message)
    left = replace(event("SystemExit", message, pid=1, source="crash", id="c2"), kind="driver", role="driver")
    events = [left] if message.startswith("15") else list(word_on(job))
    page = view.page(Left(job, (), (), ()), first_error(events)).plain
    assert "--count-caught" not in page
    own = event("KeyError", "'b'", 20.0, pid=2, source="crash", id="c1")
    found = first_error([*events, own])
    assert found.cause is not None and found.cause.best.raised.type == "KeyError"


# ---- what the program has got over

HANDLED = f"""\
:task_name:work
:task_name:job.fetch
2026-11-21 21:30:00,500 ERROR a cache miss, going on without it
{PLAIN.split("INFO ended")[0].partition(chr(10))[2]}:task_name:work
"""
LOSS = Raised("ZeroDivisionError", "division by zero", (parse.Frame("/job/loss.py", 4, "loss"),))


def crash(raised: Raised, at: float, pid: int, name: str, root: str = "", kind: str = "task") -> Event:
    role = "driver" if kind == "driver" else "work"
    return Event("crash", raised, at, role, None, "10.0.0.1", pid, id=name, root=root, kind=kind)


def test_what_a_log_alone_has_is_not_the_first_error_where_a_crash_is() -> None:
    """`logging.exception` of what is handled; the same process has run another task before that."""
    logged = of_worker(HANDLED)
    assert [each.role for each in logged] == ["fetch"] and logged[0].time is not None
    later = crash(LOSS, logged[0].time + 5.0, 8, "c1")
    driver = crash(Raised("RayTaskError(ZeroDivisionError)", "", ()), later.time or 0.0, 1, "c2", "c1", "driver")
    found = first_error([*logged, later, driver])
    assert found.cause is not None and found.cause.best.id == "c1" and not found.others and found.ended is None
    assert [each.best.raised.type for each in found.logged] == ["KeyError"]
    page = view.page(Left(JobRow(job_id="01", status="FAILED"), (), (), ()), found).plain
    assert "as of errors that a program catches itself:\n  KeyError: 'response' at /job/data.py:3 in load  (bef" in page
    alone = first_error(logged)
    assert alone.cause is not None and alone.cause.best.raised.type == "KeyError" and not alone.logged


def test_what_the_first_error_quotes_is_told_with_its_place_and_not_as_got_over() -> None:
    """As of an argument that a worker could not unpickle: the place of the real error is in its log alone."""
    frames = (parse.Frame("/job/c.py", 32, "__getattr__"),)
    deep = Raised("RecursionError", "maximum recursion depth exceeded", frames, pid=7, node_ip="10.0.0.1")
    quoted = "an object could not be unpickled: RecursionError: maximum recursion depth exceeded"
    failed = crash(Raised("RaySystemError", quoted), 9.0, 7, "c1")
    found = first_error([Event("log", deep, 8.0, "W", pid=7, node_ip="10.0.0.1"), failed])
    page = view.page(Left(JobRow(job_id="01", status="FAILED"), (), (), ()), found).plain
    assert "of this its log has:\n  RecursionError: maximum recursion depth exceeded at /job/c.py:32" in page, page
    others = [Event("log", replace(deep, pid=pid), 8.0, "W", pid=pid, node_ip="10.0.0.1") for pid in (7, 8)]
    page = view.page(Left(JobRow(job_id="01", status="FAILED"), (), (), ()), first_error([*others, failed])).plain
    assert "of this the logs have:\n  2 x RecursionError" in page and "catches itself" not in page, page
    assert "catches itself" not in page


def test_the_driver_s_own_word_of_a_task_s_error_is_no_error_that_was_got_over() -> None:
    echo = Event("log", replace(KEY, pid=7, who="Rank.train"), None, "driver")
    assert not first_error([echo, crash(LOSS, 9.0, 8, "c1")]).logged


def test_what_the_driver_failed_by_is_told_where_it_got_over_the_first_error() -> None:
    probe = crash(Raised("ValueError", "probe 1 is not there"), 10.0, 7, "c1")
    step = crash(LOSS, 60.0, 8, "c2")
    driver = crash(replace(LOSS, type="RayTaskError(ZeroDivisionError)"), 60.1, 1, "c3", "c2", "driver")
    found = first_error([probe, step, driver])
    assert found.cause is not None and found.ended is not None
    assert (found.cause.best.id, found.ended.best.id) == ("c1", "c2")
    assert "came later" not in [each.why for each in found.followed]
    failed = Left(JobRow(job_id="01", status="FAILED"), (), (), ())
    assert (
        "its driver failed by: ZeroDivisionError: division by zero\n  at /job/loss.py:4"
        in view.page(failed, found).plain
    )
    well = Left(JobRow(job_id="01", status="SUCCEEDED"), (), (), ())
    page = view.page(well, found).plain
    assert "failed by" not in page and "later, in its driver: ZeroDivisionError" in page
    assert view.record(failed, found)["ended"]["crash"] == "c2"  # type: ignore[index]
    assert first_error([step, driver]).ended is None
    # The end of an actor whose `__init__` failed is of the same process.
    end = crash(Raised("ProcessDied", "exception in the initialization method"), 10.2, 7, "c2", "c1", "exit")
    assert first_error([probe, end, replace(driver, time=10.3)]).ended is None
    said = "Worker exits because there was an exception in the initialization method (e.g., __init__)."
    alike = crash(Raised("ProcessDied", f"the process died: {said}"), 10.2, 9, "c2", "", "exit")
    assert first_error([probe, alike, replace(driver, time=10.3)]).ended is None


def test_of_what_has_no_time_nobody_says_that_it_came_later() -> None:
    log = replace(event("KeyError", "'x'", None, pid=0), source="log", role="driver")
    found = first_error([log, crash(LOSS, 9.0, 8, "c1")])
    assert [each.why for each in found.followed] == ["when is not known"]
    page = view.page(Left(JobRow(job_id="01", status="FAILED"), (), (), ()), found).plain
    assert "1 more error:" in page and "followed" not in page


def test_of_two_errors_of_one_node_it_is_known_which_was_first() -> None:
    first, second = crash(KEY, 10.0, 7, "c1"), crash(LOSS, 11.5, 8, "c2")
    job = Left(JobRow(job_id="01", status="FAILED"), (), (), ())
    assert "1.5 s later: ZeroDivisionError" in view.page(job, first_error([first, second])).plain
    elsewhere = replace(second, node_ip="10.0.0.2")
    assert "at the same time: ZeroDivisionError" in view.page(job, first_error([first, elsewhere])).plain


def test_an_exit_that_the_driver_has_caught_is_not_the_first_error() -> None:
    """As of a parser of arguments that is only tried."""
    caught = replace(crash(Raised("SystemExit", "2"), 1.0, 1, "c0", kind="driver"), role="driver")
    failed = crash(LOSS, 60.0, 1, "c1", kind="driver")
    found = first_error([caught, failed])
    assert found.cause is not None and found.cause.best.id == "c1" and found.ended is None
    assert [each.why for each in found.followed] == ["which the program caught itself"]
    page = view.page(Left(JobRow(job_id="01", status="FAILED"), (), (), ()), found).plain
    assert "1 x SystemExit: 2 in driver  (which the program caught itself)" in page
    assert first_error([caught]).sure and first_error([failed, caught]).cause == found.cause
