"""What a job's processes left behind: Ray's tables, their logs on all nodes, devkit's snapshots. Decides nothing.

It needs the dashboard and nothing else, so it works for a job that ran without devkit, and after its end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from devkit.debug.crashes import all_crashes, complete, reading
from devkit.debug.dashboard import Dashboard
from devkit.debug.inworker.hub_place import DRIVER_NOTES, LOG_FOLDER, OWN, OWN_CLASSES
from devkit.debug.inworker.identity import DRIVER
from devkit.debug.inworker.records import DIED
from devkit.debug.inworker.words import in_short
from devkit.debug.job_ends import of_run
from devkit.debug.jobs import command_of
from devkit.debug.kept import EndedRun, KeptHub
from devkit.debug.protocols import Answers
from devkit.debug.row_tables import Filter
from devkit.debug.rows import ActorRow, JobRow, NodeRow, TaskRow, WorkerRow
from devkit.debug.stack_groups import Frame
from devkit.errors import DevkitError
from devkit.logs import parse
from devkit.logs.events import Event, Raised

TAIL_LINES = 5000  # of one log; the error of a process is near its end
MOST_FILES = 400  # logs that are read; of more, those of processes that failed come first
THREADS = 8
EXPECTED = frozenset({"INTENDED_USER_EXIT", "INTENDED_SYSTEM_EXIT", "USER_ERROR", ""})
_FILE = re.compile(r"^worker-(?P<worker>[0-9a-f]+)-(?P<job>[0-9a-f]+)-(?P<pid>\d+)\.(?:out|err)$")
_ACTOR = re.compile(r"^:actor_name:(.+)$", re.MULTILINE)
_OWN_BEGINS = re.compile(rf"^:actor_name:(?:{'|'.join(OWN_CLASSES)})$", re.MULTILINE)
_TASK = re.compile(r"^:task_name:(.+)$", re.MULTILINE)
_OF_RAY = ("raylet", "autoscaler", "gcs_server")  # what the lines in a driver's log begin with that are theirs
_NO_CAUSE = re.compile(r"Failed to (get|delete)|No such actor", re.IGNORECASE)


@dataclass(frozen=True)
class LogFile:
    """One log, as far as it was read."""

    node_id: str
    node_ip: str
    name: str
    text: str = field(repr=False)


@dataclass(frozen=True)
class Left:
    """All that there is of a job."""

    job: JobRow
    events: tuple[Event, ...]
    files: tuple[LogFile, ...]
    notes: tuple[str, ...]  # what could not be read
    nodes: tuple[NodeRow, ...] = ()
    tasks: tuple[TaskRow, ...] = ()
    actors: tuple[ActorRow, ...] = ()
    workers: tuple[WorkerRow, ...] = ()
    crashes: tuple[Mapping[str, Any], ...] = ()  # devkit's snapshots in full
    caught: tuple[Mapping[str, Any], ...] = ()  # its processes that have caught something, as `ps` has them
    is_uncounted: bool = False  # what it caught is known to be counted in part at most


def collect(
    dashboard: Dashboard,
    job: JobRow,
    crashes: Sequence[Mapping[str, Any]] = (),
    missed: tuple[str, ...] = (),
    caught: Sequence[Mapping[str, Any]] = (),
) -> Left:
    """`crashes` are devkit's snapshots of this job, where it had devkit in it, and `caught` is what its processes have
    caught; `missed`: what could not be had.
    """
    nodes = dashboard.nodes()
    ips = {node.node_id: node.node_ip for node in nodes}
    of_job = (("job_id", "=", job.job_id),) if job.job_id else ()
    tasks = dashboard.tasks(*of_job, ("state", "=", "FAILED")) if of_job else ()
    actors = dashboard.actors(*of_job, ("state", "=", "DEAD")) if of_job else ()
    files, unread = _files(dashboard, job, nodes)
    own = _own(dashboard, files, of_job)
    tasks = tuple(row for row in tasks if row.actor_id not in own)
    actors = tuple(row for row in actors if row.actor_id not in own)
    mine = {_worker_of(file) for file in files} - {""} - own
    files = tuple(_before_own(file) for file in files)
    notes = missed + unread
    workers = tuple(row for row in dashboard.workers() if row.worker_id in mine)
    dead = [node for node in nodes if not node.alive]
    notes += tuple(f"node {node.node_ip} is dead: its logs can't be read" for node in dead)
    died = {str(each["worker_id"]): of_crash(each).raised for each in crashes if each["kind"] == "exit"}
    events = [
        *(of_crash(each) for each in crashes if not _is_outlived(each, job)),
        *_of_tasks(tasks, ips),
        *(event for row in actors if (event := _of_actor(row, ips))),
        *(event for row in workers if (event := _of_worker(row, died.get(row.worker_id)))),
        *(event for file in files for event in of_log(file)),
    ]
    events += word_on(job) if job.submission_id or not events else ()  # else it only says that the others were
    roles = {row.pid: row.class_name for row in actors if row.pid}
    return Left(
        job, tuple(_named(events, roles)), files, notes, nodes, tasks, actors, workers, tuple(crashes), tuple(caught)
    )


def _own(dashboard: Dashboard, files: Sequence[LogFile], of_job: Sequence[Filter]) -> set[str]:
    """devkit's own actors that a job has brought along, and the workers in which they lived, the dead ones too.

    Ray's table of tasks forgets the oldest, and of very many logs some are not read: either may be the one that knows.
    """
    actors = {row.actor_id for row in dashboard.actors(*of_job) if row.name.startswith(OWN)} if of_job else set()
    lived = {row.worker_id for each in actors for row in dashboard.tasks(("actor_id", "=", each))}
    wrote = {_worker_of(file) for file in files if _OWN_BEGINS.search(file.text)}
    return (actors | lived | wrote) - {""}


def _before_own(file: LogFile) -> LogFile:
    """Without the words of an actor of devkit's. Its worker may have run tasks of the program before."""
    begun = _OWN_BEGINS.search(file.text)
    return replace(file, text=file.text[: begun.start()]) if begun else file


def of_ended(run: EndedRun) -> Left:
    """The same, of what was kept of a run whose Ray is gone: without Ray's tables."""
    job = of_run(run)
    found, missed = snapshots(KeptHub([run]), None)
    ip = next((str(each["node_ip"]) for each in found), "")
    files = tuple(LogFile("", ip, name, text) for name, text in run.texts())
    told = [of_crash(each) for each in found if not _is_outlived(each, job)]
    events = [*told, *(event for file in files for event in of_log(file))]
    events += () if events else word_on(job)
    caught = run.caught
    workers = tuple(each for each in caught.get("workers", ()) if isinstance(each, dict) and each.get("caught"))
    uncounted = caught.get("counted") is False
    return Left(job, tuple(_named(events, {})), files, missed, crashes=found, caught=workers, is_uncounted=uncounted)


def _is_outlived(crash: Mapping[str, Any], job: JobRow) -> bool:
    """Whether it is a `sys.exit` with a failure, of a driver that ended well: it has caught that itself."""
    left = crash["kind"] == DRIVER and crash["exception"]["type"] == "SystemExit"
    return left and job.status == "SUCCEEDED" and job.driver_exit_code == 0


def snapshots(
    hub: Answers, job_id: str | None, settle: float = 0.0
) -> tuple[tuple[Mapping[str, Any], ...], tuple[str, ...]]:
    """devkit's snapshots of a job in full, and why some could not be had. `job_id` None: whatever the hub has."""
    found: list[Mapping[str, Any]] = []
    missed: list[str] = []
    for record in all_crashes(hub, settle=settle):
        if job_id is None or (job_id and record.job_id == job_id):
            try:
                with reading(record.id):
                    found.append(complete(hub.call("crash", id=record.id), record))
            except DevkitError as error:
                missed.append(error.message)
    return tuple(found), tuple(missed)


def _named(events: Sequence[Event], actors: Mapping[int, str]) -> Iterator[Event]:
    """Who a process is, where another table says it: the log knows the actor's name, the snapshot its rank."""
    logs = {event.pid: event.role for event in events if event.pid and event.role and event.source == "log"}
    roles = {**actors, **logs}
    ranks = {event.pid: event.rank for event in events if event.pid and event.rank is not None}
    for event in events:
        pid = event.raised.pid or event.pid
        yield replace(
            event, role=event.role or roles.get(pid, ""), rank=ranks.get(pid) if event.rank is None else event.rank
        )


# ---- logs


def _files(dashboard: Dashboard, job: JobRow, nodes: Sequence[NodeRow]) -> tuple[tuple[LogFile, ...], tuple[str, ...]]:
    """The logs of the job's workers and of its driver, from all nodes that live."""
    alive = [node for node in nodes if node.alive]
    names: list[tuple[NodeRow, str]] = []
    notes: list[str] = []
    for node in alive:
        try:
            names += [(node, name) for name in _names(dashboard, node, job)]
        except DevkitError as error:
            notes.append(f"node {node.node_ip}: {error.message}")
    if len(names) > MOST_FILES:
        notes.append(f"{len(names) - MOST_FILES} of {len(names)} logs were not read")
    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(lambda one: _read(dashboard, *one), names[:MOST_FILES]))
    notes += [each for each in found if isinstance(each, str)]
    return tuple(each for each in found if isinstance(each, LogFile)), tuple(notes)


def _names(dashboard: Dashboard, node: NodeRow, job: JobRow) -> Iterator[str]:
    globs = [f"worker-*-{job.job_id}-*"] if job.job_id else []
    globs += [f"{LOG_FOLDER}/{DRIVER_NOTES}{job.job_id}*"] if job.job_id else []
    globs += [f"job-driver-{job.submission_id}*"] if job.submission_id else []
    for glob in globs:
        for names in dashboard.list_logs(node.node_id, glob).values():
            yield from names


def _read(dashboard: Dashboard, node: NodeRow, name: str) -> LogFile | str:
    lines = -1 if name.startswith("job-driver-") else TAIL_LINES
    try:
        data = dashboard.log_file(node.node_id, name, lines=lines)
    except DevkitError as error:
        return f"{name}: {error.message}"
    return LogFile(node.node_id, node.node_ip, name, data.decode("utf-8", "replace"))


def _worker_of(file: LogFile) -> str:
    """Whose log it is; empty for a driver's."""
    named = _FILE.match(file.name)
    return named["worker"] if named else ""


def writer(file: LogFile) -> tuple[str, int]:
    """The role and the pid of who wrote it, as far as it tells."""
    named = _FILE.match(file.name)
    actor, task = _ACTOR.search(file.text), _TASK.search(file.text)
    role = "driver" if named is None else (actor or task)[1].strip() if actor or task else ""  # type: ignore[index]
    return role.rpartition(".")[2] if named else role, int(named["pid"]) if named else 0


def of_log(file: LogFile) -> Iterator[Event]:
    """The errors of one log."""
    named = _FILE.match(file.name)
    role, pid = writer(file)
    tasks = [] if _ACTOR.search(file.text) or not named else list(_tasks(file.text))
    for found in parse.find(file.text):
        if found.raised.who.startswith((*_OF_RAY, *OWN_CLASSES)) or _NO_CAUSE.search(found.raised.message):
            continue
        yield Event(
            source="log",
            raised=found.raised,
            time=found.time,
            role=next((task for line, task in reversed(tasks) if line <= found.line), role if not tasks else ""),
            node_ip=file.node_ip,
            pid=pid,
            worker_id=named["worker"] if named else "",
            where=f"{file.name}:{found.line + 1}",
            text=found.text,
            order=found.line,
        )


def _tasks(text: str) -> Iterator[tuple[int, str]]:
    """From which line on a worker runs which task: it runs many, one after the other.

    >>> list(_tasks(":task_name:fetch\\n...\\n:task_name:job.work\\n"))
    [(0, 'fetch'), (2, 'work')]
    """
    for number, line in enumerate(text.splitlines()):
        if found := _TASK.match(line):
            yield number, found[1].strip().rpartition(".")[2]


# ---- Ray's tables and devkit's snapshots


def of_crash(document: Mapping[str, Any]) -> Event:
    said = document["exception"]
    frames = [
        Frame(str(each["file"]), int(each["line"] or 0), str(each["function"])) for each in document.get("frames") or ()
    ]
    own = Frame(str(document["file"]), int(document["line"] or 0), str(document["function"]))
    innermost = frames or ([own] if own.file else [])
    kind, message = str(said["type"]).rpartition(".")[2], str(said["message"])
    raised = Raised(kind, message, tuple(innermost), own=_is_own(document, innermost))
    return Event(
        source="crash",
        raised=(None if document.get("root") else _of_another(kind, message)) or raised,
        time=float(document["time"]),
        role=str(document["role"]),
        rank=document["rank"],
        node_ip=str(document["node_ip"]),
        pid=int(document["pid"]),
        worker_id=str(document.get("worker_id") or ""),
        where=f"devkit's snapshot {document['id']}",
        root=str(document.get("root") or ""),
        id=str(document["id"]),
        kind=str(document.get("kind") or ""),
    )


def _of_another(kind: str, message: str) -> Raised | None:
    """What a task raised of which nothing is kept but what Ray told who asked for it."""
    inner = parse.last_of_innermost(f"{kind}: {message}") if kind.startswith("RayTaskError") else None
    return inner if inner and inner.who and inner.frames else None


def _is_own(document: Mapping[str, Any], frames: Sequence[Frame]) -> bool:
    """Whether the program raised it itself; so counts an object that was lost with an owner that did not crash, and an
    actor that the program has killed.
    """
    explained = (document.get("lost") or document.get("killed") or {}).get("known")
    if explained and not document.get("root"):
        return True
    return parse.is_own(list(frames), _code(document))


def _code(document: Mapping[str, Any]) -> str:
    """The line of code at which the innermost frame of a snapshot stands."""
    frame: Mapping[str, Any] = next(iter(document.get("frames") or ()), {})
    source = frame.get("source") or {"first": 0, "lines": []}
    at = int(frame.get("line") or 0) - int(source["first"])
    return str(source["lines"][at]) if 0 <= at < len(source["lines"]) else ""


def _of_tasks(rows: Sequence[TaskRow], ips: Mapping[str, str]) -> Iterator[Event]:
    """A task that failed by what a task of its own raised is a sighting of that one's error.

    Ray's table has the last few hundred characters of an error only, so the text does not tell it.
    """
    events = {row.task_id: _of_task(row, ips) for row in rows if row.error_message or row.error_type}
    children: dict[str, list[str]] = {}
    for row in rows:
        children.setdefault(row.parent_task_id, []).append(row.task_id)
    for task_id, event in events.items():
        found, below = event, [task_id]
        inner: Event | None = event
        while inner is not None:
            found = inner
            below = [child for parent in below for child in children.get(parent, ()) if child in events]
            inner = next((events[each] for each in below if events[each].raised.said == event.raised.said), None)
        ip, pid = found.process
        yield replace(event, raised=replace(event.raised, who=found.raised.who or found.role, pid=pid, node_ip=ip))


def _of_task(row: TaskRow, ips: Mapping[str, str]) -> Event:
    raised = parse.innermost(row.error_message) if row.error_message else Raised(row.error_type, "")
    if not raised.frames and row.error_type and row.error_type not in ("TASK_EXECUTION_EXCEPTION",):
        kinds = {"WORKER_DIED": "WorkerCrashedError", "ACTOR_DIED": "ActorDiedError", "NODE_DIED": "NodeDiedError"}
        kinds |= {"OUT_OF_MEMORY": "OutOfMemoryError", "TASK_CANCELLED": "TaskCancelledError"}
        raised = replace(
            raised, type=kinds.get(row.error_type, raised.type), message=row.error_message or raised.message
        )
    return Event(
        source="task",
        raised=raised,
        time=row.end_time_ms / 1000 if row.end_time_ms else None,
        role=row.name,
        node_ip=ips.get(row.node_id, ""),
        pid=row.worker_pid,
        worker_id=row.worker_id,
        where=f"task {row.name} ({row.task_id[:16]}, attempt {row.attempt_number})",
        text=row.error_message,
    )


def _of_actor(row: ActorRow, ips: Mapping[str, str]) -> Event | None:
    """How an actor died, where it was not the end of its job or of its handle."""
    context = next((value for value in row.death_cause.values() if isinstance(value, dict)), {})
    text = str(context.get("formatted_exception_string") or context.get("error_message") or "")
    if not text or str(context.get("reason") or "") in ("RAY_KILL", "OUT_OF_SCOPE", "REF_DELETED", "OWNER_DIED"):
        return None
    raised = parse.innermost(text)
    if not raised.frames:
        raised = Raised("ActorDiedError", " ".join(text.split()))
    return Event(
        "actor",
        raised,
        None,
        row.class_name,
        None,
        ips.get(row.node_id, ""),
        row.pid,
        where=f"actor {row.class_name}",
        text=text,
    )


def _of_worker(row: WorkerRow, told: Raised | None = None) -> Event | None:
    """A process that ended otherwise than Ray and the program meant it to; `told`: what devkit found out about it."""
    if row.is_alive or row.exit_type in EXPECTED:
        return None
    detail = in_short(row.exit_detail)
    kind = "OutOfMemory" if "OUT_OF_MEMORY" in row.exit_type else DIED
    raised = told or Raised(kind, f"the process died: {detail}")
    time = row.end_time_ms / 1000 if row.end_time_ms else None
    return Event("worker", raised, time, "", None, row.ip, row.pid, row.worker_id, "Ray's table of workers", detail)


def word_on(job: JobRow) -> Iterator[Event]:
    """What Ray says of a job that failed; most often the last lines of its driver."""
    if job.status == "FAILED" and job.message:
        raised = parse.innermost(job.message)
        if not raised.frames:
            kind = "JobFailed" if job.submission_id else ""
            raised = Raised(kind, " ".join(job.message.split())[:500])
        time = job.end_time / 1000 if job.end_time else None
        where = "Ray's status of the job" if job.job_id or job.submission_id else "its exit code"
        yield Event("job", raised, time, "driver", where=where, text=job.message)


def title(job: JobRow) -> str:
    """`job raysubmit_1 (FAILED): python train.py`; of one that came to no Ray, `run (FAILED): ...`."""
    name = job.submission_id or job.job_id
    return f"{f'job {name}' if name else 'run'} ({job.ending}): {command_of(job)}"
