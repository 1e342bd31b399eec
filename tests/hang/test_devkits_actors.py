"""devkit's own actors are brought along by the first job: how they end, and what they write, is none of its errors."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, cast

import pytest

from devkit.debug.dashboard import Dashboard
from devkit.debug.inworker import fates, hub_place
from devkit.debug.inworker.hub_actor import DevkitHub
from devkit.debug.inworker.onlooker import DevkitOnlooker
from devkit.debug.row_tables import Filter
from devkit.debug.rows import ActorRow, JobRow, NodeRow, TaskRow, WorkerRow
from devkit.logs import view
from devkit.logs.collect import Left, collect
from devkit.logs.order import first_error

JOB = JobRow(job_id="01000000", status="SUCCEEDED", entrypoint="python train.py")
HUBS, OTHERS = "ab" * 28, "cd" * 28
BEGUN = ":job_id:01000000\n:actor_name:DevkitHub\n"
RAISED = 'Traceback (most recent call last):\n  File "/job/{0}.py", line 7, in {0}\n    {0}()\n{1}\n'
HUB = ActorRow("h", class_name="DevkitHub", name="devkit-hub-1", state="ALIVE", job_id=JOB.job_id)


@dataclass
class Tables:
    """A dashboard of one node."""

    logs: dict[str, str]
    dead: tuple[tuple[str, int], ...] = ((HUBS, 77),)
    actors_: tuple[ActorRow, ...] = ()
    tasks_: tuple[TaskRow, ...] = ()

    def nodes(self) -> tuple[NodeRow, ...]:
        return (NodeRow("n1", "10.0.0.1", state="ALIVE"),)

    def workers(self) -> tuple[WorkerRow, ...]:
        return tuple(
            WorkerRow(each, ip="10.0.0.1", pid=pid, exit_type="SYSTEM_ERROR", exit_detail="End of file. Gone.")
            for each, pid in self.dead
        )

    def actors(self, *filters: Filter) -> tuple[ActorRow, ...]:
        return tuple(row for row in self.actors_ if fits(row, filters))

    def tasks(self, *filters: Filter) -> tuple[TaskRow, ...]:
        return tuple(row for row in self.tasks_ if fits(row, filters))

    def list_logs(self, _: str, glob: str) -> dict[str, list[str]]:
        return {"any": [name for name in self.logs if fnmatchcase(name, glob)]}

    def log_file(self, _: str, name: str, lines: int) -> bytes:
        return self.logs[name].encode()


def fits(row: Any, filters: tuple[Filter, ...]) -> bool:
    return all(getattr(row, column) == value for column, _, value in filters)


def left(tables: Tables, job: JobRow = JOB) -> Left:
    return collect(cast(Dashboard, tables), job)


def errors(found: Left) -> list[str]:
    return [event.raised.said for event in found.events]


def log_of(worker: str, pid: int) -> str:
    return f"worker-{worker}-01000000-{pid}.err"


def test_a_killed_hub_is_no_error_of_the_job_that_brought_it() -> None:
    found = left(Tables({log_of(HUBS, 77): BEGUN + RAISED.format("serve", "OSError: its own")}))
    assert errors(found) == []
    assert view.page(found, first_error(found.events)).plain.startswith("no error was found in job 01000000")


def test_a_worker_of_the_program_that_was_killed_is_one() -> None:
    logs = {log_of(HUBS, 77): BEGUN, log_of(OTHERS, 78): ":job_id:01000000\n:actor_name:Rank\n"}
    found = left(Tables(logs, dead=((HUBS, 77), (OTHERS, 78))))
    assert [event.pid for event in found.events] == [78]


def test_so_is_what_a_task_raised_before_its_worker_became_the_hubs() -> None:
    before = ":task_name:load\n" + RAISED.format("load", "KeyError: 'response'")
    found = left(Tables({log_of(HUBS, 77): before + BEGUN + RAISED.format("serve", "OSError: its own")}))
    assert errors(found) == ["KeyError: 'response'"] and found.events[0].role == "load"


def test_where_its_log_does_not_tell_the_table_of_tasks_does() -> None:
    calls = (
        TaskRow("t", name="DevkitHub.__init__", job_id=JOB.job_id, actor_id="h", worker_id=HUBS, state="FINISHED"),
    )
    logs = {log_of(HUBS, 77): "the last lines of many\n"}
    assert errors(left(Tables(logs, actors_=(HUB,), tasks_=calls))) == []
    assert len(errors(left(Tables(logs)))) == 1, "and of nobody's it is not known"


def test_a_call_of_the_hub_that_failed_with_it_is_no_error_either() -> None:
    failed = TaskRow(
        "t", name="DevkitHub.place", job_id=JOB.job_id, actor_id="h", state="FAILED", error_type="ACTOR_DIED"
    )
    mine = TaskRow("u", name="load", job_id=JOB.job_id, state="FAILED", error_type="WORKER_DIED")
    found = left(Tables({}, actors_=(HUB,), tasks_=(failed, mine)))
    assert errors(found) == ["WorkerCrashedError"]


def test_what_it_says_through_the_drivers_log_is_left_out() -> None:
    lines = RAISED.format("serve", "OSError: its own").splitlines()
    text = "".join(f"(DevkitHub pid=77) {line}\n" for line in lines)
    job = JobRow(job_id=JOB.job_id, submission_id="raysubmit_1", status="SUCCEEDED")
    logs = {"job-driver-raysubmit_1.log": text + RAISED.format("main", "KeyError: 'mine'")}
    assert errors(left(Tables(logs), job)) == ["KeyError: 'mine'"]


def test_they_are_called_as_ray_calls_them() -> None:
    assert {each.__name__ for each in (DevkitHub, DevkitOnlooker)} == set(hub_place.OWN_CLASSES)
    made = [inspect.getsource(inspect.getmodule(each)) for each in (DevkitHub, DevkitOnlooker)]  # type: ignore[arg-type]
    assert all("OWN" in source or "HUB_NAME" in source for source in made)


def test_those_that_ended_with_the_hub_are_no_orphans_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    class Id:
        def __init__(self, name: str) -> None:
            self.hex = lambda: name

    class Actor:
        def __init__(self, name: str, kind: str) -> None:
            context = type("C", (), {"error_message": "its owner has died. Owner Id: 0ab1"})
            self.name, self.class_name, self.pid, self.end_time, self.job_id = name, kind, 7, 1000, Id("01")
            self.address = type("A", (), {"worker_id": Id("ff")})
            self.death_cause = type("D", (), {"actor_died_error_context": context})

    actors = [Actor("devkit-onlooker-0a", "DevkitOnlooker"), Actor("", "Rank")]
    monkeypatch.setattr(fates, "_actors", lambda: actors)
    assert [each["class"] for each in fates.orphaned("01")] == ["Rank"]
