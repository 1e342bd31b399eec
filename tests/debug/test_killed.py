"""A worker that was killed: what it did, by Ray's table and by its last look; and whose errors follow from its end."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from devkit.debug.crash_page import crash_page
from devkit.debug.crash_table import crash_table
from devkit.debug.crashes import all_crashes, complete
from devkit.debug.inworker import hub_after, settling
from devkit.debug.inworker.crash_files import list_folder
from devkit.debug.inworker.doing import place_of_work
from devkit.debug.inworker.hub import Hub
from devkit.debug.inworker.lineage import awaited, link
from devkit.debug.inworker.records import CrashRecord, Identity
from devkit.debug.inworker.vanished import vanished
from tests.debug.conftest import PROGRAMS, Cluster, Job, eventually, mark
from tests.debug.hub_fake import printed
from tests.debug.hubs import FakeAgent, RunningHub, Surroundings, identity, running_hub
from tests.pace import stretched

ACTOR = "c709e311d63217c235d3f4e702000000"
NIL = "f" * 24 + "02000000"
CRASHED = {"type": "WorkerCrashedError", "message": "The worker died unexpectedly while executing this task."}
DIED = {"type": "ActorDiedError", "message": "The actor died unexpectedly before finishing this task."}
KILLED = {"type": "ProcessDied", "message": "the process died: without a word"}
WHO = Identity("02", "w1", "n", "10.0.0.5", "h", 7, "worker")


def record(name: str, time: float, exception: dict[str, str], **facts: Any) -> CrashRecord:
    base = CrashRecord(name, "02", "load", None, "10.0.0.5", 7, time, exception, "", 0, "", None)  # type: ignore[arg-type]
    return replace(base, **{"kind": "exit" if exception is KILLED else "driver", **facts})


def roots(*records: CrashRecord) -> dict[str, str | None]:
    return {each.id: each.root for each in link(records)}


def test_who_waited_for_a_task_of_a_dead_worker_follows_it() -> None:
    first, second = "1" * 16 + NIL, "2" * 16 + NIL
    assert roots(
        record("one", 10.0, KILLED, task_id=first),
        record("two", 10.1, KILLED, task_id=second),
        record("driver", 9.5, CRASHED, waited=("3" * 16 + NIL, second)),  # it may be the first to know
    ) == {"one": None, "two": None, "driver": "two"}


def test_errors_of_coroutines_whose_task_ray_does_not_know_are_causes_of_their_own() -> None:
    limited = {"type": "RateLimited", "message": "429"}
    found = [record(name, at, limited, kind="actor", task_id="f" * 48) for name, at in (("one", 10.0), ("two", 10.1))]
    assert roots(*found) == {"one": None, "two": None}


def test_who_waited_for_another_call_of_a_dead_actor_follows_it() -> None:
    assert roots(
        record("other", 10.0, KILLED, task_id="1" * 16 + NIL),
        record("actor", 10.0, KILLED, task_id="1" * 16 + ACTOR),
        record("driver", 11.0, DIED, waited=("2" * 16 + ACTOR,)),
    ) == {"other": None, "actor": None, "driver": "actor"}


def test_who_is_told_of_an_error_of_a_new_instance_does_not_follow_the_old_ones_death() -> None:
    """Killed, started anew, and ended by its constructor: Ray says by which error."""
    cut = {"type": "UnpicklingError", "message": "pickle data was truncated"}
    died = DIED | {
        "message": "The actor died because of an error raised in its creation task, UnpicklingError: pickle data"
    }
    known = died | {"message": f"{died['message']} was truncated"}
    killed = record("killed", 10.0, KILLED, task_id="1" * 16 + ACTOR)
    failed = record("failed", 11.0, cut, kind="actor", task_id="f" * 16 + ACTOR)
    for said, root in ((known, "failed"), (died, "killed")):
        told = record("driver", 12.0, said, waited=("2" * 16 + ACTOR,))
        assert roots(killed, failed, told) == {"killed": None, "failed": None, "driver": root}


def test_a_death_of_which_the_task_is_not_known_is_the_nearest_one() -> None:
    unknown = record("early", 1.0, KILLED), record("late", 60.0, KILLED)
    follower = record("driver", 61.0, CRASHED, waited=("1" * 16 + NIL,))
    assert roots(*unknown, follower)["driver"] == "late"
    linked = link([*unknown, follower])
    assert [each.supposed for each in linked] == [False, False, True] == [each.supposed for each in link(linked)]
    other_job = record("driver", 61.0, CRASHED, waited=("1" * 16 + NIL,), job_id="03")
    assert roots(*unknown, other_job)["driver"] is None
    long_ago = record("driver", 600.0, CRASHED)
    assert roots(*unknown, long_ago)["driver"] is None  # that much later it is of another cause


def test_a_death_follows_from_no_other_process_than_the_one_that_ray_names() -> None:
    """An actor that has crashed and is not needed any more; then another one is killed by `ray.kill`."""
    named = {**DIED, "message": f"{DIED['message']}\n\tclass_name: Reader\n\tpid: 8\nThe actor is dead."}
    other, own = record("other", 10.0, KILLED, pid=7), record("own", 9.0, KILLED, pid=8)
    told = record("driver", 11.0, named)
    assert roots(other, told)["driver"] is None
    assert roots(other, own, told)["driver"] == "own"


def test_who_ends_because_it_was_told_of_a_death_follows_it() -> None:
    gone = {"type": "SystemExit", "message": "3"}
    assert roots(
        record("actor", 10.0, gone, kind="exit", task_id="1" * 16 + ACTOR),
        record("driver", 10.1, gone, waited=("2" * 16 + ACTOR,)),
    ) == {"actor": None, "driver": "actor"}


def test_errors_of_another_kind_follow_nobody() -> None:
    assert roots(record("one", 1.0, KILLED), record("driver", 1.1, {"type": "ValueError", "message": ""})) == {
        "one": None,
        "driver": None,
    }


def test_the_tries_of_a_task_that_kills_its_worker_are_one_cause() -> None:
    task = "1" * 16 + NIL
    assert roots(
        record("first", 1.0, KILLED, task_id=task),
        record("again", 3.0, KILLED, task_id=task),
        record("driver", 3.5, CRASHED, waited=(task,)),
    ) == {"first": None, "again": "first", "driver": "first"}


def test_what_was_waited_for_is_read_from_rays_frames() -> None:
    class Ref:
        def __init__(self, name: str) -> None:
            self.name = name

        def task_id(self) -> Any:
            return bytes.fromhex(self.name * 24)

    code = "def get(object_refs):\n    raise RuntimeError('dead')\n"
    ray: dict[str, Any] = {}
    exec(compile(code, "/v/site-packages/ray/_private/worker.py", "exec"), ray)
    with pytest.raises(RuntimeError) as caught:
        ray["get"]([Ref("ab"), Ref("cd"), "no ref"])
    assert awaited(caught.value) == ("ab" * 24, "cd" * 24)
    with pytest.raises(RuntimeError) as caught:
        ray["get"](Ref("ef"))
    assert awaited(caught.value) == ("ef" * 24,)
    assert awaited(ValueError("elsewhere")) == ()


def test_a_process_that_was_killed_is_called_after_its_task() -> None:
    seen = {"time": 95.5, "frames": [{"file": "/w/job.py", "line": 6, "function": "load"}]}
    task = {"task_id": "t1", "name": "load", "attempt": 1}
    document = vanished(WHO, None, "the process died: without a word", task=task, seen=seen, died=97.0)
    found = {name: document[name] for name in ("role", "function", "task_id", "attempt", "file", "line", "time")}
    assert found == {
        "role": "load", "function": "load", "task_id": "t1", "attempt": 1, "file": "/w/job.py", "line": 6, "time": 97.0,
    }  # fmt: skip
    assert document["seen"] == 1.5
    shown = printed(crash_page(complete(document, CrashRecord.from_json(document)), [], 100.0))
    assert (
        "load · end of the process" in shown
        and "as last seen, 1.5 s before its end" in shown
        and "job.py:6 in load" in shown
    )
    assert "in load; its arguments, if it had any, are not known here" in shown
    assert "load  ProcessDied" in printed(crash_table([CrashRecord.from_json(document)], 100.0, width=None))
    words = {"signal": "SIGSEGV", "message": "x", "frames": [{"file": "/w/a.py", "line": 2, "function": "f"}]}
    signal = vanished(WHO, words, "died", task=task, seen=seen)
    assert (signal["file"], signal["line"], signal["role"]) == ("/w/a.py", 2, "load") and "seen" not in signal
    before = vanished(WHO, None, "died", task={**task, "name": "other"}, seen=seen)
    assert (before["file"], before["function"]) == (
        "",
        "other",
    ) and "seen" not in before  # it looked at an earlier task
    actor = vanished(
        replace(WHO, role="Reader"), None, "died", task={"task_id": "t", "name": "Reader.read", "attempt": 0}
    )
    assert (actor["role"], actor["function"]) == ("Reader", "Reader.read")


def test_what_was_told_of_an_actor_while_it_lived_is_on_its_page() -> None:
    seen = {
        "time": 95.5,
        "frames": [{"file": "/w/job.py", "line": 6, "function": "Reader.read"}],
        "made": {"name": "Reader", "arguments": {"path": "/data", "rank": 3}},
        "call": {"name": "read", "arguments": {"how": "late"}},
        "memory": {"own": 187 << 20, "used": 3 << 30, "total": 4 << 30},
    }
    task = {"task_id": "1" * 16 + ACTOR, "name": "Reader.read", "attempt": 0, "asked_by": "driver"}
    who = replace(WHO, role="Reader", actor="reader-b")
    death = vanished(who, None, "the process died: without a word", task=task, seen=seen, died=97.0)
    driver = replace(
        record("d", 97.2, CRASHED, root=death["id"]), role="driver", file="/w/job.py", line=40, function="main"
    )
    page = crash_page(complete(death, CrashRecord.from_json(death)), [driver], 100.0)
    assert [line for line in printed(page).splitlines() if line.startswith(("actor", "in ", "memory", "asked"))] == [
        "actor reader-b: Reader(path='/data', rank=3)",
        "in read(how='late')",
        "memory when last reported: 187 MiB of its own; in use on its node: 3.0 GiB of 4.0 GiB",
        "asked for by the driver, which awaited it at /w/job.py:40 in main",
    ]
    earlier = vanished(who, None, "died", task={**task, "name": "Reader.other"}, seen=seen)
    assert "call" not in earlier and earlier["made"]["name"] == "Reader"


def test_where_a_process_works_is_told_by_its_frames_alone() -> None:
    """No variable of a frame that runs is touched: that would keep its tensors."""
    inside, go_on = threading.Event(), threading.Event()

    def task() -> None:
        inside.set()
        go_on.wait(stretched(20))

    thread = threading.Thread(target=task)
    thread.start()
    assert inside.wait(stretched(20))
    waits = task.__code__.co_firstlineno + 2

    def look() -> list[dict[str, Any]] | None:
        found = place_of_work(sys._current_frames()[thread.ident])  # type: ignore[index]
        return found if found[0]["line"] == waits else None

    frames = eventually(look)
    go_on.set()
    thread.join()
    assert frames[0]["function"].endswith("task")
    assert len(frames) < 8 and place_of_work(None) == []


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningHub]:
    monkeypatch.setattr("devkit.debug.inworker.hub.REJOIN_SECONDS", 0.1)
    with running_hub(tmp_path / "crashes") as running:
        yield running


def test_the_hub_keeps_the_last_look_of_a_worker_that_was_killed(hub: RunningHub) -> None:
    agent = FakeAgent(hub, {**identity("w1", job_id="02"), "role": "worker"})
    agent.connection.send(
        {"type": "doing", "time": 3.0, "frames": [{"file": "/w/job.py", "line": 6, "function": "load"}]}
    )
    fate = {"reason": "the process died: without a word", "crashed": True, "time": 4.0}
    hub.surroundings.fates["w1"] = {**fate, "task": {"task_id": "t1", "name": "load", "attempt": 0}}
    with hub.client() as client:
        eventually(lambda: client.call("ps")["workers"])
        agent.close()
        [crash] = eventually(lambda: client.call("crashes")["crashes"])
    assert (crash["role"], crash["line"], crash["task_id"], crash["time"]) == ("load", 6, "t1", 4.0)


@pytest.mark.parametrize(
    ("code", "pid", "crashes"),
    [
        (0, 11, 0),
        (-15, 99, 0),  # a script that ran the driver was asked to end, and passed it on
        (130, 11, 0),
        (0, 99, 1),  # a script goes on when its driver was killed
        (-9, 11, 1),
        (None, 0, 1),  # nobody tells: it was not started by devkit, or on a host that is gone
    ],
)
def test_a_driver_that_ended_as_it_was_to_is_no_crash(
    hub: RunningHub, monkeypatch: pytest.MonkeyPatch, code: int | None, pid: int, crashes: int
) -> None:
    """Ray misses the goodbye of one to which a signal comes while it leaves: `devkit run` knows better."""
    monkeypatch.setattr("devkit.debug.inworker.hub_after.TOLD_SECONDS", 0.5 if code is None else 20.0)
    hub.surroundings.fates["w1"] = {"reason": "the process died: without a word", "crashed": True, "time": 4.0}
    driver = FakeAgent(hub, {**identity("w1"), "role": "driver", "pid": 11})
    with hub.client() as client:
        eventually(lambda: client.call("ps")["workers"])
        driver.close()
        if code is not None:
            client.call("ended", job_id="01", code=code, pid=pid)
        eventually(lambda: not client.call("ps")["workers"])
        assert len(client.call("crashes")["crashes"]) == crashes


@pytest.mark.parametrize("known", [True, False])
def test_before_a_ray_ends_with_its_driver_a_death_is_kept(
    hub: RunningHub, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """By Ray's word on it if that comes in time, else by what the worker has told while it lived."""
    monkeypatch.setattr("devkit.debug.inworker.hub.REJOIN_SECONDS", 1000.0)
    monkeypatch.setattr("devkit.debug.inworker.hub_after.SETTLE_SECONDS", 1000.0 if known else 0.3)
    who = {**identity("w1", job_id="02"), "role": "Reader", "actor": "reader-b"}
    reader = FakeAgent(hub, who)
    frames = [{"file": "/w/job.py", "line": 6, "function": "Reader.read"}]
    made = {"name": "Reader", "arguments": {"path": "/data"}}
    reader.connection.send({"type": "doing", "time": 3.0, "frames": frames, "made": made})
    driver = FakeAgent(hub, {**identity("d1", job_id="02"), "role": "driver"})
    if known:
        hub.surroundings.fates["w1"] = {"reason": "the process died: without a word", "crashed": True, "time": 4.0}
    with hub.client() as client:
        eventually(lambda: len(client.call("ps")["workers"]) == 2)
        reader.close()
        eventually(lambda: not all(each["connected"] for each in client.call("ps")["workers"]))
        crash = record("c1", 5.0, DIED, waited=("1" * 16 + ACTOR,), worker_id="d1").to_json()
        driver.connection.send({"type": "crash", "document": {**crash, "frames": []}})
        driver.connection.send({"type": "leaving"})
        assert driver.settled.wait(stretched(20))
        [death] = [each for each in client.call("crashes")["crashes"] if each["kind"] == "exit"]
        document = client.call("crash", id=death["id"])
    assert (death["role"], death["line"]) == ("Reader", 6)
    assert (document["actor"], document["made"]) == ("reader-b", made)
    assert ("without a word" in death["exception"]["message"]) is known


PUT, RESULT = "00668a65bda616c1" + ACTOR + "02e1f505", "00668a65bda616c1" + ACTOR + "01000000"


@pytest.mark.parametrize("reason", ["killed by `ray.kill`", "all references to the actor were removed"])
def test_who_killed_the_owner_of_a_lost_object_is_told_whatever_ray_says(hub: RunningHub, reason: str) -> None:
    """A handle that is let go of right behind `ray.kill` makes Ray name that."""
    owner = FakeAgent(hub, {**identity("w1", job_id="02"), "role": "Loader", "pid": 77})
    driver = FakeAgent(hub, {**identity("d1", job_id="02"), "role": "driver"})
    killed = {"actor": ACTOR, "file": "/w/job.py", "line": 64, "function": "main"}
    driver.connection.send({"type": "doing", "time": 3.0, "frames": [], "kills": [killed]})
    hub.surroundings.fates["w1"] = {"reason": f"the process died: {reason}", "crashed": False, "time": 3.0}
    said = {"type": "OwnerDiedError", "message": "Failed to retrieve object ..."}
    crash = record("c1", 5.0, said, worker_id="d1").to_json()
    lost = {
        "frames": [],
        "chain": [{**said, "relation": "raised", "frames": []}],
        "lost": {"object": PUT, "owner": "w1"},
    }
    with hub.client() as client:
        eventually(lambda: len(client.call("ps")["workers"]) == 2)
        owner.close()
        driver.connection.send({"type": "crash", "document": {**crash, **lost}})
        eventually(lambda: "lost with" in str(client.call("crashes")["crashes"]))
        [found] = client.call("crashes")["crashes"]
    killer = "Loader rank 0: it was killed by ray.kill, which the driver called at /w/job.py:64 in main, 2.0 s before"
    assert killer in found["exception"]["message"], found["exception"]


@pytest.mark.parametrize("name", [PUT, RESULT])
def test_an_object_that_is_lost_is_told_by_its_owner_and_where_it_was_put(hub: RunningHub, name: str) -> None:
    who = {**identity("w1", job_id="02"), "role": "Loader", "pid": 77, "rank": 3}
    owner = FakeAgent(hub, who)
    sites = [{"file": "/w/job.py", "line": 16, "function": "Loader.load", "objects": [PUT]}]
    owner.connection.send({"type": "doing", "time": 3.0, "frames": [], "puts": sites})
    asker = FakeAgent(hub, identity("w2", job_id="02"))
    hub.surroundings.fates["w1"] = {"reason": "the process died: killed by ray.kill", "crashed": False, "time": 3.0}
    said = {"type": "OwnerDiedError", "message": "Failed to retrieve object ..."}
    crash = record("c1", 5.0, said, worker_id="w2", kind="task").to_json()
    with hub.client() as client:
        eventually(lambda: len(client.call("ps")["workers"]) == 2)
        owner.close()
        chain = [{**said, "relation": "raised", "frames": []}]
        document = {**crash, "frames": [], "chain": chain, "lost": {"object": name, "owner": "w1"}}
        asker.connection.send({"type": "crash", "document": document})

        def told() -> dict[str, Any] | None:
            return next((each for each in client.call("crashes")["crashes"] if "lost with" in str(each)), None)

        found = eventually(told)
        kept = client.call("crash", id="c1")
    end = "it was put at /w/job.py:16 in Loader.load" if name == PUT else "it is the result of a task that its owner"
    number = 100_000_002 if name == PUT else 1
    died = "the process died: killed by ray.kill"
    head = f"the object 00668a65bda6 #{number} is lost with its owner, Loader rank 3: {died}"
    message = found["exception"]["message"]
    assert message.startswith(f"{head}, 2.0 s before; {end}"), message
    assert kept["exception"]["message"] == message and kept["chain"][0]["message"] == said["message"]


def test_a_driver_of_which_no_worker_is_missing_is_not_held_up(
    hub: RunningHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("devkit.debug.inworker.hub_after.SETTLE_SECONDS", 1000.0)
    FakeAgent(hub, identity("w1"))
    driver = FakeAgent(hub, {**identity("d1"), "role": "driver"})
    driver.connection.send({"type": "leaving"})
    assert driver.settled.wait(stretched(20))


def test_a_worker_that_is_dead_and_not_yet_missed_is_waited_for(
    hub: RunningHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its driver caught the error, and ends at once: before the hub has heard that the worker's connection is over."""
    monkeypatch.setattr("devkit.debug.inworker.hub_after.SETTLE_SECONDS", 1000.0)
    reader = FakeAgent(hub, {**identity("w1", job_id="02"), "role": "Reader"})
    driver = FakeAgent(hub, {**identity("d1", job_id="02"), "role": "driver"})
    hub.surroundings.gone = {"w1"}
    hub.surroundings.fates["w1"] = {"reason": "the process died: without a word", "crashed": True, "time": 4.0}
    with hub.client() as client:
        eventually(lambda: len(client.call("ps")["workers"]) == 2)
        driver.connection.send({"type": "leaving"})
        client.call("ps")  # the hub has had time to hear that
        reader.close()
        assert driver.settled.wait(stretched(20))
        [death] = client.call("crashes")["crashes"]
    assert (death["kind"], death["role"]) == ("exit", "Reader")


def test_a_death_that_is_found_behind_an_error_has_what_the_worker_told_of_itself(
    hub: RunningHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray knows no ranks, and may be asked before the connection is missed."""
    monkeypatch.setattr("devkit.debug.inworker.hub_after.BEHIND_SECONDS", [0.0] * 6)
    who = {**identity("w8", job_id="02"), "role": "Reader", "rank": 3}
    reader = FakeAgent(hub, who)
    frames = [{"file": "/w/job.py", "line": 6, "function": "Reader.read"}]
    reader.connection.send({"type": "doing", "time": 3.0, "frames": frames})
    task = {"task_id": "1" * 16 + NIL, "name": "Reader.read", "attempt": 0}
    of_ray = replace(WHO, worker_id="w8", role="Reader").to_json()
    death = {"identity": of_ray, "reason": "the process died", "crashed": True, "task": task}
    driver = FakeAgent(hub, {**identity("w1", job_id="02"), "role": "driver"})
    with hub.client() as client:
        eventually(lambda: len(client.call("ps")["workers"]) == 2)
        hub.surroundings.died.append((0, death))
        crash = record("d1", 5.0, CRASHED, waited=(task["task_id"],), worker_id="w1").to_json()
        driver.connection.send({"type": "crash", "document": {**crash, "frames": []}})
        found = eventually(lambda: [each for each in all_crashes(client) if each.kind == "exit"])
    assert [(each.rank, each.line) for each in found] == [(3, 6)]


@pytest.mark.parametrize("late", [0, 3])
def test_workers_that_died_before_they_could_join_are_looked_for_behind_the_error(
    hub: RunningHub, monkeypatch: pytest.MonkeyPatch, late: int
) -> None:
    """Of both tries, though Ray's tables are filled late, and one row after the other."""
    monkeypatch.setattr("devkit.debug.inworker.hub_after.BEHIND_SECONDS", [0.0] * 6)
    hub.surroundings.late = {1}
    task = {"task_id": "1" * 16 + NIL, "name": "Reader.read", "attempt": 0}
    for number in range(2):
        who = replace(WHO, worker_id=f"w{number + 8}", role="Reader").to_json()
        death = {"identity": who, "reason": "the process died", "crashed": True, "task": {**task, "attempt": number}}
        hub.surroundings.died.append((late + number, death))
    driver = FakeAgent(hub, {**identity("w1", job_id="02"), "role": "driver"})
    crash = record("d1", 5.0, CRASHED, waited=(task["task_id"],), worker_id="w1").to_json()
    driver.connection.send({"type": "crash", "document": {**crash, "frames": []}})
    with hub.client() as client:
        found = eventually(lambda: len(all_crashes(client)) == 3 and all_crashes(client))
    cause = next(each.id for each in found if each.root is None)
    assert {(each.role, each.function, each.root) for each in found} == {
        ("Reader", "Reader.read", None),
        ("Reader", "Reader.read", cause),
        ("load", "", cause),
    }


def test_a_death_that_is_found_in_two_ways_at_once_is_one_crash(tmp_path: Path) -> None:
    class Slow(Surroundings):
        async def last_words(self, identity: dict[str, Any]) -> dict[str, Any] | None:
            await both.wait()
            return {"message": "killed"}

    async def twice() -> None:
        fate = {"reason": "the process died", "crashed": True}
        await asyncio.gather(*(hub_after.keep_death(hub, WHO.to_json(), fate) for _ in range(2)))

    both, hub = asyncio.Barrier(2), Hub(b"key", tmp_path, Slow())
    asyncio.run(twice())
    assert [crash["worker_id"] for crash in hub.table.crashes] == [WHO.worker_id]


NONE_OF_THE_PROGRAM = {"reason": "the process died: out of memory", "crashed": True, "kind": "NODE_OUT_OF_MEMORY"}


def test_the_hub_itself_is_no_crash_of_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hubs = replace(WHO, role="DevkitHub", actor="devkit-hub-1")
    # given a memory monitor that killed the hub and an actor before the hub could say so
    told = [{"identity": each.to_json(), "seen": None} for each in (hubs, replace(WHO, worker_id="w2", role="Buffer"))]
    monkeypatch.setattr(settling.unmet, "found", lambda: told)
    monkeypatch.setattr(settling.fates, "fate", lambda *_: NONE_OF_THE_PROGRAM)
    monkeypatch.setattr(settling, "crash_folder", lambda: tmp_path)
    monkeypatch.setattr(settling, "error_log", lambda _: tmp_path / "none")
    settling.alone((), 0.0)
    assert [each.role for each in list_folder(tmp_path)] == ["Buffer"]

    async def missed_by_another_hub() -> list[Any]:
        hub = Hub(b"key", tmp_path, Surroundings())
        await hub_after.keep_death(hub, hubs.to_json(), NONE_OF_THE_PROGRAM)
        return list(hub.table.crashes)

    assert asyncio.run(missed_by_another_hub()) == []


# ---- with a real Ray


@pytest.fixture(scope="module")
def killed(cluster: Cluster) -> Iterator[Callable[[str], Job]]:
    """Each of the programs, all at once: they take seconds."""
    cluster.connect_to_any().close()  # before there is a hub, one that fails at once ends without a word of devkit's
    kinds = ("task", "retried", "actor", "nested")
    jobs = {kind: Job(cluster, "--", sys.executable, str(PROGRAMS / "crash_killed.py"), kind) for kind in kinds}
    try:
        for job in jobs.values():
            job.joined().end(stretched(100))
        yield jobs.__getitem__
    finally:
        for job in jobs.values():
            job.kill()


@pytest.mark.verdicts
@pytest.mark.parametrize(
    ("kind", "role", "function", "followers"),
    [
        ("task", "load", "work", {"driver"}),
        ("retried", "again", "again", {"again", "driver"}),
        ("actor", "Reader", "Reader.read", {"driver"}),
        ("nested", "load", "load", {"outer", "driver"}),
    ],
)
def test_one_cause_and_its_followers_under_it(
    cluster: Cluster, killed: Callable[[str], Job], kind: str, role: str, function: str, followers: set[str]
) -> None:
    job = killed(kind)

    found: list[dict[str, Any]] = []

    def are_there() -> bool:
        found[:] = [each for each in cluster.json("crashes")["crashes"] if each["job_id"] == job.id]
        return len(found) > len(followers)

    eventually(are_there, lambda: f"{found} of {job.out}")
    [cause] = [each for each in found if each["root"] is None]
    assert (cause["role"], cause["function"], cause["kind"]) == (role, function, "exit"), found
    assert cause["exception"]["type"] == "ProcessDied" and cause["task_id"]
    assert {each["role"] for each in found if each["root"] == cause["id"]} == followers
    page = cluster.devkit("crashes", "show", cause["id"])
    assert f"asked for by {'outer' if kind == 'nested' else 'the driver'}, which awaited it at " in page, page
    if kind == "task":  # which ran for some seconds
        assert cause["line"] == mark("crash_killed.py", "works")
        assert "as last seen" in page and "memory when last reported" in page
    error = cluster.json("logs", job.id, "--first-error", check=1)
    assert (error["cause"]["crash"], error["sure"], error["status"]) == (cause["id"], True, "FAILED"), (error, found)
    assert error["cause"]["role"] == role and not any("JobFailed" in each["said"] for each in error["followed"])
