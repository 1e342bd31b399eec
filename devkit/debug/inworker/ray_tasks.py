"""Ray's own table of tasks, asked of the GCS: what a worker was at when it died."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from .identity import DRIVER

# A worker that dies has one that is in none of the other states; Ray learns of it within a second.
OPEN_STATES = ("RUNNING", "FAILED", "RUNNING_IN_RAY_GET", "RUNNING_IN_RAY_WAIT", "SUBMITTED_TO_WORKER")
MOST = 5000  # rows of one state
ASK_SECONDS = 3.0
REPORTED_SECONDS = 1.5  # workers report their tasks each second
LOOK_SECONDS = 0.3
NO_TASK = "f" * 16  # with this the id of a driver begins, which is no task

Document = dict[str, Any]


def of_worker(worker_id: str, job_id: str) -> Document | None:
    """{"task_id", "name", "attempt", "asked_by"} of the last task that a dead worker had and did not finish.

    None: it had none. `asked_by` is the name of the task that asked for it, or that of the driver.
    """
    end = time.monotonic() + REPORTED_SECONDS
    while True:
        found = [each for each in _unfinished(job_id) if each["worker_id"] == worker_id]
        if found or time.monotonic() > end:
            break
        time.sleep(LOOK_SECONDS)
    last = max(found, key=lambda each: float(each["began"]), default=None)
    if last is None:
        return None
    return {**{name: last[name] for name in ("task_id", "name", "attempt")}, "asked_by": asker_of(last)}


def asker_of(row: Document) -> str:
    """The name of the task that called this one; empty where Ray's table does not have it."""
    task_id = str(row["parent"])
    if task_id.startswith(NO_TASK):
        return DRIVER
    with _table() as ask:
        return next((str(each["name"]) for each in ask({"task_id": task_id})), "")


def of_ids(task_ids: Iterable[str]) -> list[Document]:
    """The tries of these tasks that failed, and who ran them: {"worker_id", "node_id", "pid"} beside the above."""
    with _table() as ask:
        return [each for task in task_ids for each in ask({"state": "FAILED", "task_id": task})]


def is_tried_again(task_id: str, attempt: int) -> bool:
    """Whether there is a later try of a task than this."""
    with _table() as ask:
        return any(int(each["attempt"]) > attempt for each in ask({"task_id": task_id}))


def _unfinished(job_id: str) -> Iterator[Document]:
    with _table() as ask:
        for state in OPEN_STATES:
            yield from ask({"state": state, "job_id": job_id})


@contextmanager
def _table() -> Iterator[Callable[[dict[str, str]], list[Document]]]:
    """What gives the rows of which all of these are true: `state`, `job_id`, `task_id`."""
    import ray
    from ray._private.gcs_utils import create_gcs_channel

    messages = importlib.import_module("ray.core.generated.gcs_service_pb2")
    services = importlib.import_module("ray.core.generated.gcs_service_pb2_grpc")
    equal = messages.FilterPredicate.EQUAL

    def ask(wanted: dict[str, str]) -> list[Document]:
        filters = messages.GetTaskEventsRequest.Filters(exclude_driver=True)
        if "state" in wanted:
            filters.state_filters.add(state=wanted["state"], predicate=equal)
        if "job_id" in wanted:
            filters.job_filters.add(job_id=bytes.fromhex(wanted["job_id"]), predicate=equal)
        if "task_id" in wanted:
            filters.task_filters.add(task_id=bytes.fromhex(wanted["task_id"]), predicate=equal)
        request = messages.GetTaskEventsRequest(limit=MOST, filters=filters)
        return [_row(event) for event in stub.GetTaskEvents(request, timeout=ASK_SECONDS).events_by_task]

    with create_gcs_channel(ray.get_runtime_context().gcs_address) as channel:
        stub = services.TaskInfoGcsServiceStub(channel)
        yield ask


def _row(event: Any) -> Document:
    ran = event.state_updates
    return {
        "task_id": event.task_id.hex(),
        "name": event.task_info.name or event.task_info.func_or_class_name,
        "parent": event.task_info.parent_task_id.hex(),
        "attempt": event.attempt_number,
        "worker_id": ran.worker_id.hex(),
        "node_id": ran.node_id.hex(),
        "pid": ran.worker_pid,
        "began": max(ran.state_ts_ns.values(), default=0),
    }
