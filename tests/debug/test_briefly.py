"""What Ray says at length is one sentence where crashes are listed, and stays whole in the snapshot."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from devkit.debug.briefly import Brief, brief
from devkit.debug.crash_page import crash_page
from devkit.debug.crash_table import crash_table
from devkit.debug.inworker import ownership
from devkit.debug.inworker.records import CrashRecord
from devkit.debug.inworker.words import plain
from devkit.logs.collect import of_crash
from devkit.logs.judge import with_causes
from devkit.logs.order import first_error
from tests.debug.hub_fake import printed
from tests.debug.test_crashes_view import take


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


SAVE = """ray::Rollout.save() (pid=16453, ip=192.0.2.2, actor_id=c26b, repr=<12_fd_leak.Rollout object at 0x7f5ca3>)
  File "/job/12_fd_leak.py", line 33, in save
    with open(path, "w") as handle:
OSError: [Errno 24] Too many open files: '/tmp/tmp087neyh9'"""


def test_an_error_that_ray_passes_on_is_the_tasks_own() -> None:
    found = brief("RayTaskError(OSError)", SAVE)
    assert found.said == "OSError: [Errno 24] Too many open files: '/tmp/tmp087neyh9'"
    assert (found.file, found.line, found.function) == ("/job/12_fd_leak.py", 33, "Rollout.save")


def test_of_nested_tasks_and_chains_the_innermost_raised_it() -> None:
    text = (
        "ray::outer() (pid=7, ip=10.0.0.1)\nray::pick() (pid=8, ip=10.0.0.2)\n"
        '  File "/job/boom.py", line 7, in pick\n    x[9]\nIndexError: first\n\n'
        "The above exception was the direct cause of the following exception:\n\nray::pick() (pid=8, ip=10.0.0.2)\n"
        '  File "/job/boom.py", line 9, in helper\n    raise ValueError("two") from error\n'
        '  File "/venv/lib/python3.11/site-packages/x.py", line 1, in inside\nValueError: two\nlines: of it'
    )
    found = brief("RayTaskError(ValueError)", text)
    assert found == Brief("ValueError", "two\nlines: of it", "/job/boom.py", 9, "helper")


def test_an_actor_whose_init_raised() -> None:
    text = f"The actor died because of an error raised in its creation task, {SAVE.replace('save', '__init__')}"
    found = brief("ActorDiedError", text)
    assert found.type == "OSError" and found.function == "Rollout.__init__"


@pytest.mark.parametrize(
    "text", ["", "ray::f() (pid=1)", "ray::f() (pid=1)\nValueError: no", "no section\nKeyError: 1"]
)
def test_what_does_not_tell_stays_as_it_is(text: str) -> None:
    assert brief("RayTaskError(OSError)", text) == Brief("RayTaskError(OSError)", text)


DEAD = """The actor died unexpectedly before finishing this task.
\tclass_name: Trainer
\tactor_id: cd24c14aa31f46c8f310101101000000
\tpid: 15587
\tname: trainer_1
\tnamespace: 185a5abf-0595-474c-aa59-fba7556a80ea
\tip: 192.0.2.2
The actor is dead because """


@pytest.mark.parametrize(
    ("why", "said"),
    [
        ("it was killed by `ray.kill`.", "Trainer trainer_1 (pid 15587) was killed by ray.kill"),
        (
            "its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker exits with an exit "
            "code 3. Traceback: and more",
            "Trainer trainer_1 (pid 15587) died: Worker exits with an exit code 3.",
        ),
        (
            "its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits "
            "with a connection error code 2. End of file. Some common causes include: OOM",
            "Trainer trainer_1 (pid 15587) died: without a message: by SIGKILL (as by the kernel's "
            "out-of-memory killer) or another signal, or by os._exit",
        ),
        (
            "all references to the actor were removed.",
            "Trainer trainer_1 (pid 15587) died: no handle was left that keeps it, as those of get_actor and "
            "get_if_exists do not; it is not detached",
        ),
        (
            "all references to it were removed.",
            "Trainer trainer_1 (pid 15587) died: all references to it were removed.",
        ),
    ],
)
def test_an_actors_death_is_a_sentence(why: str, said: str) -> None:
    assert brief("ActorDiedError", DEAD + why).said == f"ActorDiedError: {said}"
    passed_on = "ray::main() (pid=3, ip=10.0.0.5)\n" + '  File "/job/a.py", line 3, in main\n'
    assert brief("RayTaskError(ActorDiedError)", f"{passed_on}ActorDiedError: {DEAD}{why}").message == said


def test_rays_own_words_are_folded_on_the_page_and_in_the_list() -> None:
    passed_on = {"type": "RayTaskError(OSError)", "message": SAVE}
    document = take(exception=passed_on, chain=[], role="driver", rank=None)
    page = printed(crash_page(document, [], document["time"], cwd="/job"))
    said, raised, who = page.splitlines()[:3]
    assert said == "OSError: [Errno 24] Too many open files: '/tmp/tmp087neyh9'" and who.startswith("driver · ")
    assert raised == "raised at 12_fd_leak.py:33 in Rollout.save"
    assert "Ray's own words: --all shows them" in page
    whole = printed(crash_page(document, [], document["time"], everything=True))
    assert whole.startswith("RayTaskError(OSError): ray::Rollout.save() (pid=")
    row = printed(crash_table([CrashRecord.from_json(document)], document["time"], width=None, cwd="/job"))
    assert "12_fd_leak.py:33 in Rollout.save · awaited at " in row and "test_crashes_view.py" in row
    assert first_error([of_crash(document)]).cause.at.line == 33  # type: ignore[union-attr]


def test_a_line_of_another_class_s_method_of_the_same_name_is_not_said_to_be_of_the_one_that_ray_called() -> None:
    called = 'ray::RewardWorker.score() (pid=3, ip=10.0.0.5)\n  File "/job/c.py", line 53, in score\n'
    inner = '  File "/job/c.py", line 40, in score\n'
    words = brief("RayTaskError(ValueError)", f"{called}{inner}ValueError: no")
    assert (words.line, words.function) == (40, "score")
    words = brief("RayTaskError(ValueError)", f"{called}ValueError: no")
    assert (words.line, words.function) == (53, "RewardWorker.score")


def test_a_lost_object_is_told_by_its_owner_and_not_by_how_that_died() -> None:
    owner = {"who": "Loader pid 7", "reason": "the actor was killed by `ray.kill`.", "ago": 1.0}
    said = ownership.sentence("ab" * 14, owner, [])
    assert brief("OwnerDiedError", said).message == said and "is lost with its owner, Loader pid 7" in said


RAISED = """\
ray::task() (pid=9, ip=10.0.0.2)
  File "/job/a.py", line 17, in task
    raise Two(1, 2)
Two: 1 and 2
note: of both"""
UNREAD = "Failed to deserialize exception. Refer to https://docs.ray.io for more information.\nOriginal exception:\n"


@pytest.mark.parametrize(
    ("kind", "message", "own"),
    [
        ("RayTaskError", RAISED, []),
        ("UnserializableException", f"{UNREAD}ray.exceptions.RayTaskError: {RAISED}", ["c2"]),
    ],
)
def test_an_error_that_cannot_be_pickled_is_the_workers_and_that_it_cannot_is_one_too(
    kind: str, message: str, own: list[str]
) -> None:
    """Whoever expects the one, and catches it, is hit by the other."""
    words = brief(kind, message)
    assert "Two" in words.said and "1 and 2 note: of both" in words.said and "File" not in words.said
    assert (words.file, words.line, words.function) == ("/job/a.py", 17, "task")
    workers = {**crash("c1", "Two", "1 and 2\nnote: of both", "a.py", 17), "pid": 9, "node_ip": "10.0.0.2"}
    told = {**crash("c2", kind, message, "driver.py", 3), "time": 2.0, "pid": 1}
    found = first_error([of_crash(workers), of_crash(told)])
    assert found.cause is not None and found.cause.best.id == "c1" and not found.followed
    assert [each.best.id for each in found.others] == own
    both = [CrashRecord.from_json(each) for each in (workers, told)]
    assert [each.root for each in with_causes(both, lambda name: {"c1": workers, "c2": told}[name])] == [
        None,
        None if own else "c1",
    ]


def test_what_only_by_its_kind_may_follow_from_another_crash_is_not_known_to() -> None:
    """A task's error that was handled, and an hour later a child that closes its pipe."""
    handled, later = crash("c1", "ValueError", "no row", "a.py", 3), crash("c2", "BrokenPipeError", "", "b.py", 5)
    documents = {"c1": handled, "c2": {**later, "time": 3600.0, "pid": 9}}
    found = with_causes([CrashRecord.from_json(each) for each in documents.values()], documents.__getitem__)
    assert [(each.root, each.supposed) for each in found] == [(None, False), ("c1", True)]


def crash(name: str, kind: str, message: str, file: str, line: int) -> dict[str, object]:
    place = {"file": f"/job/{file}", "line": line, "function": "task"}
    base = CrashRecord(
        name, "01", "task", None, "10.0.0.1", 1, 1.0, {"type": kind, "message": message}, "", 0, "", None
    )
    return {**base.to_json(), **place, "frames": [{**place, "source": None}], "at": 0}


def test_an_object_that_cannot_be_read_is_told_without_rays_traceback() -> None:
    text = (
        "System error: No module named 'reward_plugin'\ntraceback: Traceback (most recent call last):\n"
        '  File "/v/ray/_private/serialization.py", line 595, in deserialize_objects\n    obj = self._read(\n'
        "ModuleNotFoundError: No module named 'reward_plugin'\n"
    )
    found = brief("RaySystemError", text)
    assert str(found.message) == (
        "an object could not be unpickled: ModuleNotFoundError: No module named 'reward_plugin'"
    )


def test_an_object_that_cannot_be_read_is_told_with_the_programs_own_line() -> None:
    text = (
        "System error: maximum recursion depth exceeded\ntraceback: Traceback (most recent call last):\n"
        '  File "/v/lib/python3.11/site-packages/ray/_private/serialization.py", line 595, in deserialize_objects\n'
        '  File "/job/tokens.py", line 32, in __getattr__\n    return getattr(self._tokenizer, name)\n'
        "  [Previous line repeated 989 more times]\nRecursionError: maximum recursion depth exceeded\n"
    )
    found = brief("RaySystemError", text)
    assert (found.file, found.line, found.function) == ("/job/tokens.py", 32, "__getattr__")
    rays = CrashRecord.from_json(crash("c1", "RaySystemError", text, "a.py", 1))
    rays = replace(rays, file="python/ray/_raylet.pyx", line=864, function="raise_if_dependency_failed")
    table = crash_table([rays], 2.0, width=None, cwd="/job").plain
    assert "tokens.py:32 in __getattr__" in table and "raylet" not in table


def test_rays_guesses_of_why_an_actor_is_not_found_are_left_out() -> None:
    text = (
        "Failed to look up actor with name 'weights'. This could because 1. You are trying to look up a named actor "
        "you didn't create. 2. The named actor died. 3. You did not use a namespace matching that of the actor."
    )
    assert brief("ValueError", text).said == "ValueError: Failed to look up actor with name 'weights'"
    assert brief("ValueError", "Failed to look up actor").said == "ValueError: Failed to look up actor"
