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


def test_a_rank_that_idles_while_its_peers_work_is_odd() -> None:
    merged = merge([process(0, busy(3)), process(1, busy(3)), process(2, IDLE)])
    assert [who.rank for who in merged.odd] == [2] and merged.idle == ()


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


def test_the_main_thread_goes_first_and_other_threads_are_only_counted() -> None:
    other = {"name": "prefetch", "frames": frames(("/job/data.py", 1, "load"), (BOOT, 1, "run"))}
    merged = merge([process(0, other, busy(3), IDLE)])
    assert merged.groups[0].key.frames[0].function == "step"
    text = printed(stacks.page(merged, cwd="/job"))
    assert "load" not in text and "1 other thread working" in text and "1 idle thread" in text
    assert "load  data.py:1" in printed(stacks.page(merged, cwd="/job", everything=True))


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
    assert text.endswith("odd: rank 2\n")


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
