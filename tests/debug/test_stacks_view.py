"""How the stacks of many ranks become a few, and who is odd."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devkit.debug import stacks
from devkit.debug.stack_groups import Frame, fold, merge, trim
from devkit.errors import DevkitError
from tests.debug.hub_fake import FakeHub, printed

SITE = "/v/lib/python3.11/site-packages"
RAY = f"{SITE}/ray/_private/worker.py"
TORCH = f"{SITE}/torch/distributed/distributed_c10d.py"
BOOT = "/v/lib/python3.11/threading.py"


Thread = dict[str, Any]


def frames(*rows: tuple[str, int, str]) -> list[dict[str, Any]]:
    return [{"file": file, "line": line, "function": function} for file, line, function in rows]


def busy(line: int, waits_in: str = "wait") -> dict[str, Any]:
    rows = [
        (TORCH, 9, waits_in),
        (TORCH, 5, "all_reduce"),
        ("/job/train.py", line, "step"),
        ("/job/train.py", 7, "fit"),
    ]
    return {"name": "MainThread", "frames": frames(*rows, (RAY, 1, "main_loop"))}


IDLE = {"name": "MainThread", "frames": frames((RAY, 1, "main_loop"))}


def process(
    rank: int | None, *threads: dict[str, Any], role: str = "Worker", error: str | None = None
) -> dict[str, Any]:
    pid = 100 + (rank or 0)
    return {"role": role, "rank": rank, "node_ip": "10.0.0.1", "pid": pid, "threads": list(threads), "error": error}


def ranks_of(documents: list[dict[str, Any]]) -> list[list[int]]:
    return [one.ranks for one in merge(documents).groups]


def test_equal_user_frames_are_one_group_and_the_other_rank_is_odd() -> None:
    # given three ranks in one line, deep in the library at different depths, and one rank elsewhere
    documents = [process(0, busy(3)), process(1, busy(3, "poll")), process(2, busy(4)), process(3, busy(3))]
    merged = merge(documents)
    assert [one.ranks for one in merged.groups] == [[0, 1, 3], [2]]
    assert [who.rank for who in merged.odd] == [2]


def test_two_against_two_is_nobodys_fault() -> None:
    documents = [process(0, busy(3)), process(1, busy(3)), process(2, busy(4)), process(3, busy(4))]
    assert merge(documents).odd == ()


def test_roles_are_compared_among_themselves() -> None:
    documents = [process(rank, busy(3)) for rank in range(3)]
    documents += [process(rank, busy(50), role="Critic") for rank in range(3)]
    assert merge(documents).odd == ()
    assert ranks_of(documents) == [[0, 1, 2], [0, 1, 2]]


def test_a_rank_that_idles_while_its_peers_work_is_shown_and_not_called_odd() -> None:
    merged = merge([process(0, busy(3)), process(1, busy(3)), process(2, IDLE)])
    assert merged.odd == () and merged.idle == () and [one.ranks for one in merged.groups] == [[0, 1], [2]]
    text = printed(stacks.page(merged, cwd="/job"))
    assert "Worker rank 2  10.0.0.1 pid 102\n  idle: no code of the program is running\n" in text
    assert "differs" not in text


def unranked(pid: int, *threads: Thread, role: str = "worker", task: str = "") -> dict[str, Any]:
    return {**process(None, *threads, role=role), "pid": pid, "task": task}


def test_a_spare_worker_and_an_actor_that_still_starts_are_idle_and_not_odd() -> None:
    """Ray starts workers in advance; and an engine that is not there yet is in no line of the program."""
    work = [unranked(pid, busy(3), task="load") for pid in (7, 8)]
    engines = [unranked(pid, busy(5), role="Engine") for pid in (10, 11)]
    merged = merge([*work, unranked(9, IDLE), *engines, unranked(12, IDLE, role="Engine")])
    assert merged.odd == () and [one.pid for one in merged.idle] == [9, 12]
    assert "2 processes idle: worker pid 9, Engine pid 12" in printed(stacks.page(merged))


def test_who_is_in_a_call_but_in_no_line_of_the_program_is_not_idle() -> None:
    """As a generator is, and a child that has its parent's title."""
    waits = {**unranked(12, IDLE, role="Engine"), "call": "stream"}
    text = printed(stacks.page(merge([waits, unranked(9, IDLE), unranked(10, busy(3), task="load")])))
    assert "1 process in a call, in no line of the program: Engine pid 12 (stream)\n1 process idle: worker pid 9" in (
        text.replace("\n\n", "\n")
    )


def test_one_stopped_in_a_library_is_not_odd() -> None:
    stopped = {**IDLE, "stopped": True}
    assert merge([process(0, busy(3)), process(1, busy(3)), process(2, stopped)]).odd == ()


def test_a_task_is_called_by_its_function_and_compared_with_its_like() -> None:
    documents = [*(unranked(pid, busy(3), task="load") for pid in (7, 8)), unranked(9, busy(4), task="score")]
    merged = merge(documents)
    assert merged.odd == ()
    text = printed(stacks.page(merged, cwd="/job"))
    assert text.startswith("task load pid 7; task load pid 8\n") and "task score pid 9  10.0.0.1\n" in text
    assert {one["role"] for one in stacks.record(documents, merged)["groups"]} == {"worker"}  # type: ignore[arg-type]


def test_a_pid_is_said_once() -> None:
    merged = merge([unranked(7, busy(3), role="Trainer"), unranked(8, busy(3), role="driver")])
    text = printed(stacks.page(merged, cwd="/job"))
    assert "Trainer pid 7  10.0.0.1\n" in text and "driver  10.0.0.1 pid 8\n" in text


def test_whole_idle_roles_are_folded_away() -> None:
    merged = merge([process(0, busy(3)), process(None, IDLE, role="")])
    assert [one.ranks for one in merged.groups] == [[0]]
    assert [one.pid for one in merged.idle] == [100] and merged.odd == ()


def child(rank: int, number: int, *threads: dict[str, Any]) -> dict[str, Any]:
    """A process that a rank has started: it has the rank's role and number, and a name of its own."""
    return {**process(rank, *threads), "pid": number, "worker_id": f"{rank:06x}-{number}"}


def worker(rank: int, *threads: dict[str, Any], error: str | None = None) -> dict[str, Any]:
    return {**process(rank, *threads, error=error), "worker_id": f"{rank:06x}"}


def test_a_child_that_idles_beside_its_rank_is_not_told_as_the_rank() -> None:
    """A data loader, torch's processes that compile: they have an agent, and nothing of the program to do."""
    merged = merge([worker(0, busy(3)), child(0, 900, IDLE), worker(1, busy(4)), child(1, 901, IDLE)])
    assert [one.ranks for one in merged.groups] == [[0], [1]] and merged.odd == ()
    assert [one.pid for one in merged.idle] == [900, 901]
    text = printed(stacks.page(merged, cwd="/job"))
    assert "no code of the program is running" not in text
    assert "2 processes idle: child of Worker[0] pid 900, child of Worker[1] pid 901" in text


def test_a_rank_that_does_not_answer_is_not_hidden_by_its_children() -> None:
    merged = merge([worker(0, error="late"), child(0, 900, IDLE), worker(1, busy(4))])
    assert [one.ranks for one in merged.groups] == [[1]] and [one.pid for one in merged.silent] == [100]
    assert "Worker[0] pid 100: no stack: late" in printed(stacks.page(merged))


def test_a_child_that_works_is_compared_with_its_like_alone() -> None:
    merged = merge([worker(0, busy(3)), worker(1, busy(3)), worker(2, busy(3)), child(0, 900, busy(9))])
    assert merged.odd == ()
    assert "child of Worker rank 0  10.0.0.1 pid 900" in printed(stacks.page(merged))


def test_a_function_is_the_same_whoever_named_it() -> None:
    """Python's own dump says `step` where the process itself says `Trainer.step`."""
    one, other = busy(3), busy(3)
    other["frames"] = [{**frame, "function": f"Trainer.{frame['function']}"} for frame in other["frames"]]
    assert ranks_of([process(0, one), process(1, other)]) == [[0, 1]]


def test_a_train_function_in_a_thread_counts_when_the_main_thread_idles() -> None:
    rows = [("/job/train.py", 3, "loop"), (BOOT, 1, "run"), (BOOT, 2, "_bootstrap")]
    threaded = {"name": "TrainingThread", "frames": frames(*rows)}
    [one] = merge([process(0, IDLE, threaded)]).groups
    assert [frame.function for frame in one.key.frames] == ["loop"]


def thread(name: str, line: int, *inner: tuple[str, int, str]) -> Thread:
    """A thread or a task in a line of the program, and in a library below it."""
    return {"name": name, "frames": frames(*inner, ("/job/data.py", line, f"load_{line}"), (BOOT, 1, "run"))}


def lines_of(*documents: dict[str, Any], everything: bool = False) -> list[str]:
    return printed(stacks.page(merge(documents), everything=everything, cwd="/job")).splitlines()


def test_the_main_thread_goes_first_and_other_threads_of_the_program_follow() -> None:
    merged = merge([process(0, thread("prefetch", 1), busy(3), IDLE)])
    assert merged.groups[0].key.frames[0].function == "step"
    assert printed(stacks.page(merged, cwd="/job")).splitlines()[2:] == [
        "  step  train.py:3",
        "  fit  train.py:7",
        "  thread prefetch",
        "    load_1  data.py:1",
        "  + 1 idle thread",
    ]


LOCKS = "/v/lib/python3.11/asyncio/locks.py"


@pytest.mark.parametrize("everything", [False, True])
def test_equal_stacks_of_a_process_are_shown_once_with_their_number(everything: bool) -> None:
    """Calls of an async actor are tasks: 48 of them are blocked at one line, and nobody is at work."""
    calls = [thread(f"task Task-{number}", 5, (LOCKS, 387, "acquire")) for number in range(48)]
    waiting = {"name": "task Task-99", "frames": frames((LOCKS, 9, "wait"), (RAY, 1, "main_loop"))}
    assert lines_of(process(0, IDLE, *calls, waiting), everything=everything) == [
        "Worker rank 0  10.0.0.1 pid 100",
        "  48 tasks",
        "    acquire  asyncio/locks.py:387",
        "    load_5  data.py:5",
        "  + 1 idle thread, 1 idle task",
    ]


def test_threads_and_tasks_at_one_line_are_counted_apart() -> None:
    pool = [thread(f"pool_{number}", 5) for number in range(3)]
    assert lines_of(process(0, *pool, thread("task Task-1", 5)))[1:] == [
        "  1 task and 3 threads",
        "    load_5  data.py:5",
    ]


def test_with_all_frames_stacks_that_differ_in_a_library_are_two() -> None:
    two = process(0, thread("a", 5, (TORCH, 1, "wait")), thread("b", 5, (TORCH, 2, "wait")))
    assert "  2 threads" in lines_of(two)
    assert [line for line in lines_of(two, everything=True) if "thread" in line] == ["  thread a", "  thread b"]


def test_at_most_five_different_stacks_are_shown_and_the_rest_is_counted() -> None:
    threads = [thread(f"t{line}", line) for line in range(1, 7)]
    tasks = [thread(f"task Task-{line}", line) for line in range(7, 10)]
    many = process(0, *threads, *tasks, IDLE)
    assert lines_of(many)[-2:] == [
        "    load_4  data.py:4",
        "  + 2 tasks and 2 threads (shown with --all), 1 idle thread",
    ]
    everything = lines_of(many, everything=True)
    assert "  task Task-9" in everything and everything[-1] == "  + 1 idle thread"
    assert not any("#" in line or "working" in line for line in everything)


def test_nothing_is_said_of_threads_where_there_is_none() -> None:
    assert lines_of(process(0, busy(3)))[-1] == "  fit  train.py:7"


def test_other_stacks_of_equal_processes_say_whose_they_are() -> None:
    """All wait in one collective; the decisive thread is that of one rank."""
    own = [thread("prefetch", 1) for _ in range(3)]
    ranks = [process(rank, busy(3), own[rank], *([thread("writer", 2)] if rank == 2 else [])) for rank in range(3)]
    lines = [line for line in lines_of(*ranks) if "thread" in line]
    assert lines == ["  thread prefetch in each", "  thread writer in rank 2"]
    pools = [process(rank, busy(3), *(thread(f"p{rank}_{n}", 1) for n in range(2))) for rank in range(2)]
    assert "  2 threads in each" in lines_of(*pools)
    assert "  3 threads in ranks 0,1" in lines_of(*pools[:1], process(1, busy(3), thread("p", 1)), process(2, busy(3)))


def test_the_stack_that_a_process_is_about_is_the_first() -> None:
    document = process(0, thread("task Task-1", 1), thread("task Task-2", 2))
    about = {("10.0.0.1", 100): Frame("/job/data.py", 2, "load_2")}
    first = printed(stacks.page(merge([document], about), cwd="/job")).splitlines()
    assert first[1:] == ["  load_2  data.py:2", "  task Task-1", "    load_1  data.py:1"]
    assert lines_of(document)[1:] == ["  load_1  data.py:1", "  task Task-2", "    load_2  data.py:2"]


PYTHON = "/usr/lib/python3.11"
SERVES = [
    (f"{PYTHON}/http/server.py", 438, "BaseHTTPRequestHandler.handle"),
    (f"{PYTHON}/socketserver.py", 240, "BaseServer.serve_forever"),
    (BOOT, 1, "run"),
]


@pytest.mark.parametrize("everything", [False, True])
def test_a_server_that_reads_from_a_connection_is_not_idle(everything: bool) -> None:
    reads = {"name": "Thread-1", "frames": frames((f"{PYTHON}/socket.py", 707, "SocketIO.readinto"), *SERVES)}
    lines = lines_of(unranked(7, IDLE, reads, role="Reward"), everything=everything)
    assert lines[1:4] == [
        "  thread Thread-1",
        "    SocketIO.readinto  socket.py:707",
        "    BaseHTTPRequestHandler.handle  http/server.py:438",
    ], lines
    rests = {"name": "Thread-1", "frames": frames((f"{PYTHON}/selectors.py", 415, "select"), *SERVES[1:])}
    assert lines_of(unranked(7, IDLE, rests, role="Reward"), everything=everything) == ["1 process idle: Reward pid 7"]


def test_the_first_stack_has_its_thread_where_that_is_not_the_main_one() -> None:
    document = process(0, busy(3), thread("heartbeat", 1))
    about = {("10.0.0.1", 100): Frame("/job/data.py", 1, "load_1")}
    lines = printed(stacks.page(merge([document], about), cwd="/job")).splitlines()
    assert lines[1:4] == ["  thread heartbeat", "    load_1  data.py:1", "  thread MainThread"], lines
    assert lines_of(process(0, IDLE, thread("TrainingThread", 1)))[1] == "  load_1  data.py:1", "there is no other one"


TRACING = f"{SITE}/ray/util/tracing/tracing_helper.py"


def test_rays_wrappers_between_frames_of_the_program_are_left_out_unless_all_are_wanted() -> None:
    rows = [("/job/env.py", 44, "act"), (TRACING, 487, "_resume_span"), ("/job/env.py", 50, "rollout")]
    document = process(0, {"name": "MainThread", "frames": frames(*rows)})
    assert lines_of(document)[1:] == ["  act  env.py:44", "  rollout  env.py:50"]
    assert "tracing_helper" in lines_of(document, everything=True)[2]


def test_a_stop_of_ours_is_named() -> None:
    stopped = {
        "name": "MainThread",
        "frames": frames(("/job/train.py", 3, "step"), (RAY, 1, "main_loop")),
        "stopped": True,
    }
    merged = merge([process(0, stopped)])
    [one] = merged.groups
    assert one.key.stopped and [frame.function for frame in one.key.frames] == ["step"]
    text = printed(stacks.page(merged, cwd="/job"))
    assert "stopped by devkit" in text
    assert "stopped by devkit" not in printed(stacks.page(merge([process(0, busy(3))]), cwd="/job"))


def test_a_process_without_an_answer_is_named() -> None:
    merged = merge([process(0, busy(3)), process(1, error="no answer within 1 s")])
    assert "Worker[1] pid 101: no stack: no answer within 1 s" in printed(stacks.page(merged))
    assert merged.odd == ()


def test_the_page_names_ranks_and_marks_the_odd_one() -> None:
    documents = [process(0, busy(3)), process(1, busy(3)), process(2, busy(4))]
    text = printed(stacks.page(merge(documents), cwd="/job"))
    assert text.splitlines()[:4] == [
        "Worker ranks 0,1",
        "  all_reduce  torch/distributed/distributed_c10d.py:5  (+1 more)",
        "  step  train.py:3",
        "  fit  train.py:7",
    ]
    assert "Worker rank 2  10.0.0.1 pid 102  differs from the rest" in text
    assert text.endswith("differs from the rest: rank 2\n")


def test_json_has_ranks_groups_and_odd(capsys: pytest.CaptureFixture[str]) -> None:
    documents = [process(0, busy(3)), process(1, busy(3)), process(2, busy(4))]
    hub = FakeHub(stacks={"ranks": documents})
    assert stacks.run(hub, job="02", native=True, json=True) == 0
    assert hub.asked == [("stacks", {"job_id": "02", "native": True})]
    document = json.loads(capsys.readouterr().out)
    assert document["ranks"] == documents and document["odd"] == [2]
    assert document["groups"][0]["ranks"] == [0, 1]
    assert document["groups"][0]["frames"][0] == {"file": "/job/train.py", "line": 3, "function": "step"}


def test_nobody_there_is_an_error_with_a_hint() -> None:
    with pytest.raises(DevkitError, match="no process of job 07") as caught:
        stacks.run(FakeHub(stacks={"ranks": []}), job="07")
    assert caught.value.exit_code == 3


def test_exit_code_1_when_nobody_could_be_looked_at() -> None:
    assert stacks.run(FakeHub(stacks={"ranks": [process(0, error="late")]})) == 1


lines = st.lists(st.sampled_from([3, 4, 5]), min_size=1, max_size=12)


@given(lines, st.randoms())
def test_each_process_is_in_one_group_whatever_the_order(chosen: list[int], random: Any) -> None:
    documents = [process(rank, busy(line)) for rank, line in enumerate(chosen)]
    assert sorted(rank for ranks in ranks_of(documents) for rank in ranks) == list(range(len(chosen)))
    shuffled = list(documents)
    random.shuffle(shuffled)
    assert ranks_of(shuffled) == ranks_of(documents)
    assert merge(shuffled).odd == merge(documents).odd


files = st.sampled_from(["/job/a.py", TORCH, RAY, BOOT, "/tmp/devkit_inworker/stops.py"])
stack = st.lists(st.builds(Frame, files, st.integers(1, 99), st.sampled_from("fgh")), max_size=12).map(tuple)


@given(stack)
def test_trimming_only_takes_from_the_ends_and_twice_is_once(frames_: tuple[Frame, ...]) -> None:
    kept = trim(frames_)
    assert any(frames_[at : at + len(kept)] == kept for at in range(len(frames_) + 1))
    assert trim(kept) == kept


@given(stack)
def test_folding_loses_no_frame(frames_: tuple[Frame, ...]) -> None:
    lines_ = fold(frames_)
    assert sum(1 + line.folded for line in lines_) == len(frames_)
    own = [one for one in frames_ if one.file == "/job/a.py"]
    assert [line.frame for line in lines_ if not line.library] == own


def test_frames_of_devkit_that_started_a_worker_are_not_the_programs() -> None:
    """The smoke test forks its workers out of a process of its own."""
    fork = [("/w/devkit/smoke/warm.py", line, name) for line, name in ((180, "_become_worker"), (105, "_fork_worker"))]
    started = frames(
        (RAY, 1, "main_loop"), ("<frozen runpy>", 198, "run_path"), *fork, ("<frozen runpy>", 88, "_run_code")
    )
    idle = {"name": "MainThread", "frames": started}
    [silent] = merge([process(0, idle)]).idle
    assert (silent.stack, silent.idle) == ((), 1)
    work = {"name": "MainThread", "frames": frames(("/job/train.py", 3, "step")) + started}
    [one] = merge([process(0, work)]).groups
    assert [frame.function for frame in one.key.frames] == ["step"]


def test_a_process_stopped_in_a_library_is_not_idle() -> None:
    # given what a neighbour sees of a process that stopped at an exception: its program's frames are left already
    stopped = {"name": "MainThread", "frames": frames((RAY, 1, "main_loop")), "stopped": True}
    merged = merge([process(0, stopped), process(1, busy(3))])
    assert merged.idle == () and [(one.ranks, one.key.stopped) for one in merged.groups] == [([0], True), ([1], False)]
    text = printed(stacks.page(merged, cwd="/job"))
    assert "stopped by devkit" in text and "devkit ps shows where" in text and "idle" not in text.splitlines()[1]
