"""What Ray says at length is one sentence where crashes are listed, and stays whole in the snapshot."""

from __future__ import annotations

import threading

import pytest

from devkit.debug.briefly import brief
from devkit.debug.inworker.words import plain


class Metrics:
    def __init__(self) -> None:
        self.guard = threading.Lock()


class Trainer:
    def __init__(self) -> None:
        self.metrics = {"train": Metrics(), "val": Metrics()}

    def reward_fn(self) -> object:
        def reward(text: str) -> int:
            return len(text) * len(self.metrics)

        return reward


def test_a_function_that_cannot_be_pickled() -> None:
    from ray._common.serialization import pickle_dumps

    from devkit.debug.inworker.unpicklable import way_of

    with pytest.raises(TypeError) as raised:
        pickle_dumps(Trainer().reward_fn(), "Could not serialize the function job.reward")
    said = brief("TypeError", plain(str(raised.value))).said
    assert said == "TypeError: Could not serialize the function job.reward: cannot pickle '_thread.lock' object"
    assert way_of(raised.value) == "reward -> self.metrics['train'].guard, of type lock"


MONITOR = """\
3 worker(s) were killed due to the node running low on memory. Memory on the node (IP: 192.0.2.2, ID: c7) was \
2.83GB used / 23.54GB limit (0.120319)
OOM kill reason: Memory usage 3032969216B exceeded threshold of 2957351680B (11.7% of 25276510208B limit)
Object store memory usage: [- objects spillable: 0
(global lru) bytes evicted: 0]
Ray killed 3 worker(s) based on the killing policy
To see more information about memory usage on this node, use `ray logs raylet.out -ip 192.0.2.2`
Top 10 memory users: PID\tMEM(GB)\tCOMMAND
17068\t1.33\tray::Buffer.add
16602\t0.18\t/venv/bin/python 17_memory_monitor.py
16910\t0.08\tray::DashboardAgent"""
USED = "killed by Ray's memory monitor; the node used 2.82 of 2.75 GiB allowed (11.7 % of 23.5 GiB)"
MOST = "most by Buffer.add (pid 17068: 1.33 GiB), /venv/bin/python 17_memory_monitor.py (pid 16602: 0.18 GiB)"


def test_a_worker_killed_by_rays_memory_monitor() -> None:
    assert brief("OutOfMemoryError", MONITOR).said == f"OutOfMemoryError: {USED}; {MOST}"
    in_one_line = f"the process died: {' '.join(MONITOR.split())}"
    assert brief("ProcessDied", in_one_line).message == f"{USED}; {MOST}"
    cut = MONITOR[: MONITOR.index("Object store")]
    assert brief("OutOfMemoryError", cut).message == USED, "of the users nothing is known"


def test_the_memory_monitor_of_an_older_ray() -> None:
    before = (
        "Task was killed due to the node running low on memory.\nMemory on the node (IP: 10.0.0.5, ID: a1) where the "
        "task (actor ID: b2, name=Buffer.add, pid=7, memory used=9.10GB) was running was 15.18GB / 15.99GB (0.949375), "
        "which exceeds the memory usage threshold of 0.9. Ray killed this worker (ID: c3) because it was the most "
        "recently scheduled task.\nTop 10 memory users:\nPID\tMEM(GB)\tCOMMAND\n7\t9.10\tray::Buffer.add\n8\t0.02\tbash"
    )
    assert brief("OutOfMemoryError", before).message == (
        "killed by Ray's memory monitor; the node used 15.18 of 15.99 GiB, and 90 % are allowed; "
        "most by Buffer.add (pid 7: 9.10 GiB)"
    )
