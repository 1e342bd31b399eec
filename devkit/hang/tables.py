"""What Ray's tables say of a job beside a sample of its processes: what is pending, held, called. Decides nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from devkit import patience
from devkit.debug import processes
from devkit.debug.inworker.hub_place import OWN
from devkit.debug.row_tables import RowTables
from devkit.debug.rows import ActorRow, NodeRow, PlacementGroupRow, TaskRow
from devkit.errors import DevkitError
from devkit.hang import deaths
from devkit.hang.calls import OWN_PART, QUEUED
from devkit.hang.facts import Call, Holder, NamedActor, NodeFacts, Pending, ProcessFacts, Room, Sample
from devkit.hang.resources import add

PENDING_STATES = ("PENDING_CREATION",)  # and not those that wait for an argument of their `__init__`
RUNNING_STATES = ("RUNNING", "RUNNING_IN_RAY_GET", "RUNNING_IN_RAY_WAIT")
DRIVER_TASK, ACTOR_TASK = "DRIVER_TASK", "ACTOR_TASK"
RAYLET_LOG, LOG_LINES, LOG_SECONDS = "raylet.err", 5, 3.0
LINE = 300  # characters
_GROUP = "placement group"
MOST_CALLS = 40  # that are looked up in Ray's table; a circle is short
MOST_DRIVERS = 8  # of the driver's, which may wait for thousands


def beside(sample: Sample, source: RowTables, job: str) -> Sample:
    """A sample with all that they tell. Raises UnreachableError where they stop telling."""
    pending, nodes = tables(source, job)
    held = holders(source) if pending else ()
    known, running = calls(source, sample)
    held_up = without_arguments(source, job)
    return replace(
        sample,
        pending=pending,
        nodes=nodes,
        holders=held,
        calls=known,
        running=running,
        queued=queued(source, job) if any(each.inner for each in sample.processes) else {},
        held_up=held_up,
        unsent=unsent(source, job) if held_up else {},
        named=named(source) if any(each.lookups for each in sample.processes) else (),
        tasks=running_tasks(source, job),
    )


def tables(source: RowTables, job: str) -> tuple[tuple[Pending, ...], tuple[NodeFacts, ...]]:
    """What the job has asked for and not got, and what the living nodes have."""
    groups = [_group(row) for row in source.placement_groups(("state", "=", "PENDING")) if row.creator_job_id == job]
    waiting = {each.id for each in groups}
    every = source.actors(("job_id", "=", job))
    wanted = [
        row
        for row in every
        if row.state in PENDING_STATES and not row.name.startswith(OWN) and row.placement_group_id not in waiting
    ]
    queued = [
        row
        for row in source.tasks(("job_id", "=", job), ("state", "=", "PENDING_NODE_ASSIGNMENT"))
        if row.type == "NORMAL_TASK" and row.placement_group_id not in waiting
    ]
    inside = any(row.placement_group_id for row in wanted) or any(row.placement_group_id for row in queued)
    rooms = _rooms(source, every) if inside else {}
    pending = (*groups, *(_actor(row, rooms) for row in wanted), *(_task(row, rooms) for row in queued))
    used = source.usage() if pending else {}
    nodes = (
        NodeFacts(
            row.node_id,
            row.node_ip,
            dict(row.resources_total),
            _free(row, used.get(row.node_id)),
            _raylet(source, row.node_id) if pending else (),
        )
        for row in source.nodes()
        if row.alive
    )
    return pending, tuple(nodes)


def _raylet(source: RowTables, node_id: str) -> tuple[str, ...]:
    """What it wrote last. Workers that end before they are Ray's write there, too."""
    try:
        data = source.log_file(node_id, RAYLET_LOG, timeout=patience.seconds(LOG_SECONDS), lines=LOG_LINES)
    except DevkitError:  # its agent does not answer the dashboard, or there is none
        data = on_this_machine(node_id)
    lines = data.decode(errors="replace").splitlines()
    return tuple(line.strip()[:LINE] for line in lines if line.strip())[-LOG_LINES:]


def on_this_machine(node_id: str) -> bytes:
    with suppress(OSError):
        if (path := processes.raylets_errors(node_id)) is not None:
            return path.read_bytes()[-LOG_LINES * LINE * 4 :]
    return b""


def running_tasks(source: RowTables, job: str) -> dict[str, frozenset[str]]:
    """By process, the tasks that run in it; not those of devkit's own actors, and not the driver as a whole."""
    ours = {row.actor_id for row in source.actors(("job_id", "=", job)) if row.name.startswith(OWN)}
    found: dict[str, set[str]] = {}
    for state in RUNNING_STATES:
        for row in source.tasks(("job_id", "=", job), ("state", "=", state)):
            if row.type != DRIVER_TASK and (not row.actor_id or row.actor_id not in ours):
                found.setdefault(row.worker_id, set()).add(row.task_id)
    return {worker: frozenset(tasks) for worker, tasks in found.items()}


Names = dict[str, tuple[str, ...]]


def calls(source: RowTables, sample: Sample) -> tuple[dict[str, Call], Names]:
    """The tasks that workers wait for, and of actors that are waited for the calls that run: circles and chains are
    made of these.

    Of what only the driver waits for, which is in no circle, the first ones tell who is at it.
    """
    waiting = [each for each in sample.processes if each.waits and each.role != "driver"]
    drivers = _awaited(each for each in sample.processes if each.role == "driver")
    near = dict.fromkeys(task for each in sample.processes for wait in each.waits for _, task in wait.near)
    first = list(_awaited(waiting))[:MOST_CALLS]
    asked = dict.fromkeys([*first, *_ends(list(drivers), MOST_DRIVERS), *list(near)[:MOST_DRIVERS]])
    found: dict[str, Call] = {}
    for task_id in asked:
        rows = source.tasks(("task_id", "=", task_id))
        if rows:
            row = max(rows, key=lambda row: row.attempt_number)
            name = row.name or row.func_or_class_name
            found[task_id] = Call(row.task_id, name, row.state, row.worker_id, row.attempt_number)
    awaited = {task[OWN_PART:] for task in asked}
    actors = [each.actor_id for each in sample.processes if each.actor_id in awaited]
    return found, {each: _in_state(source, each, "RUNNING") for each in actors[:MOST_CALLS]}


def without_arguments(source: RowTables, job: str) -> Names:
    """By actor, its calls that wait for an argument; one that is to be tried again is listed so, too, and does not."""
    return _by_actor(source, job, "PENDING_ARGS_AVAIL")


def unsent(source: RowTables, job: str) -> Names:
    """By actor, its calls that have their arguments and were not sent yet: Ray sends those of a caller in turn."""
    return _by_actor(source, job, "PENDING_NODE_ASSIGNMENT")


def _by_actor(source: RowTables, job: str, state: str) -> Names:
    found: dict[str, list[str]] = {}
    for row in source.tasks(("job_id", "=", job), ("state", "=", state)):
        if row.type == ACTOR_TASK and not row.attempt_number:
            found.setdefault(row.actor_id, []).append(row.name or row.func_or_class_name)
    return {actor: tuple(names) for actor, names in found.items()}


def queued(source: RowTables, job: str) -> Names:
    """By actor, the calls that have come to it, and that it has not begun."""
    found: dict[str, list[str]] = {}
    for state in QUEUED:
        for row in source.tasks(("job_id", "=", job), ("state", "=", state)):
            if row.type == ACTOR_TASK:
                found.setdefault(row.actor_id, []).append(row.name or row.func_or_class_name)
    return {actor: tuple(names) for actor, names in found.items()}


def _ends(tasks: Sequence[str], most: int) -> list[str]:
    """The first and the last of them: of many, those that were asked for first have ended, as a rule.

    >>> _ends(["a", "b", "c", "d", "e"], 4), _ends(["a", "b"], 4)
    (['a', 'b', 'd', 'e'], ['a', 'b'])
    """
    return list(tasks) if len(tasks) <= most else [*tasks[: most // 2], *tasks[-(most // 2) :]]


def _in_state(source: RowTables, actor: str, state: str) -> tuple[str, ...]:
    """The names of an actor's calls in that state."""
    rows = source.tasks(("actor_id", "=", actor), ("state", "=", state))
    return tuple(row.name or row.func_or_class_name for row in rows)


def _awaited(processes: Iterable[ProcessFacts]) -> dict[str, None]:
    """The tasks that these wait for, each once."""
    return dict.fromkeys(task for each in processes for wait in each.waits for task in wait.tasks)


def named(source: RowTables) -> tuple[NamedActor, ...]:
    """All actors that have or had a name."""
    return tuple(
        NamedActor(row.name, row.ray_namespace, row.class_name, row.state, row.job_id, deaths.why(row.death_cause))
        for row in source.actors()
        if row.name and not row.name.startswith(OWN)
    )


def holders(source: RowTables) -> tuple[Holder, ...]:
    """Living actors and tasks that hold something; those of jobs that have ended come first: nobody waits for these."""
    ended = {row.job_id for row in source.jobs() if row.has_ended}
    found = [
        Holder(row.name or row.class_name, row.job_id, row.job_id in ended, own, "actor", row.actor_id)
        for row in source.actors(("state", "=", "ALIVE"))
        if (own := _own(row.required_resources)) and not row.name.startswith(OWN)
    ]
    found += [
        Holder(row.name, row.job_id, row.job_id in ended, own, "task", row.worker_id, row.task_id)
        for state in RUNNING_STATES
        for row in source.tasks(("state", "=", state))
        if row.type == "NORMAL_TASK" and (own := _kept(row))
    ]
    used = _used_groups(source)
    found += [
        _group_holder(row, kept, row.creator_job_id in ended, row.placement_group_id not in used)
        for row in source.placement_groups(("state", "=", "CREATED"))
        if (kept := _own(add(_bundles(row))))
    ]
    return tuple(sorted(found, key=lambda each: (not each.ended, not each.empty, each.job_id, each.name)))


def _used_groups(source: RowTables) -> set[str]:
    """The placement groups in which an actor lives or is made, or a task runs or waits."""
    actors = (row.placement_group_id for row in source.actors() if row.state != "DEAD")
    states = (*RUNNING_STATES, *QUEUED, "PENDING_NODE_ASSIGNMENT")
    tasks = (row.placement_group_id for state in states for row in source.tasks(("state", "=", state)))
    return {*actors, *tasks}


def _group_holder(row: PlacementGroupRow, kept: Mapping[str, float], ended: bool, empty: bool) -> Holder:
    name = row.name or row.placement_group_id[:12]
    return Holder(name, row.creator_job_id, ended, kept, _GROUP, empty=empty)


def _kept(row: TaskRow) -> dict[str, float]:
    """What a task holds: while it waits in `ray.get` Ray lends its CPUs to others, and nothing else."""
    own = _own(row.required_resources)
    return {name: value for name, value in own.items() if name != "CPU" or row.state == "RUNNING"}


def _free(row: NodeRow, used: Mapping[str, tuple[float, float]] | None) -> dict[str, float] | None:
    """What a node has left. Names that Ray has spelled anew are taken to be free."""
    if used is None:
        return None
    return {name: total - used.get(name, (0.0, 0.0))[0] for name, total in row.resources_total.items()}


def _group(row: PlacementGroupRow) -> Pending:
    detail = str(row.stats.get("scheduling_state") or "")
    return Pending(_GROUP, row.name, row.placement_group_id, _bundles(row), detail=detail)


def _bundles(row: PlacementGroupRow) -> tuple[dict[str, float], ...]:
    return tuple(dict(bundle.get("unit_resources") or {}) for bundle in row.bundles)


def _actor(row: ActorRow, rooms: Mapping[str, Room]) -> Pending:
    inside = rooms.get(row.placement_group_id)
    asked = _in_group(row.required_resources) if inside else _own(row.required_resources)
    return Pending("actor", row.name or row.class_name, row.actor_id, (asked,), inside=inside)


def _rooms(source: RowTables, actors: Sequence[ActorRow]) -> dict[str, Room]:
    """The placement groups that are there, by their ids, and which actors are in them."""
    found = {}
    for row in source.placement_groups(("state", "=", "CREATED")):
        members = (each for each in actors if each.placement_group_id == row.placement_group_id)
        held = tuple(
            (f"actor {each.name or each.class_name}", _in_group(each.required_resources))
            for each in members
            if each.state == "ALIVE"
        )
        name = row.name or row.placement_group_id[:12]
        found[row.placement_group_id] = Room(name, add(_bundles(row)), held)
    return found


def _in_group(resources: Mapping[str, float]) -> dict[str, float]:
    """What is asked of a placement group, by the plain names: Ray's are `CPU_group_0_ID` and `CPU_group_ID`."""
    found: dict[str, float] = {}
    for name, value in resources.items():
        plain, group, _ = name.partition("_group_")
        if group and plain != "bundle":
            found[plain] = max(found.get(plain, 0.0), float(value))
    return found


def _task(row: TaskRow, rooms: Mapping[str, Room]) -> Pending:
    """One that an actor in a placement group starts is in that group, too, where the group takes its children."""
    inside = rooms.get(row.placement_group_id)
    asked = _in_group(row.required_resources) if inside else _own(row.required_resources)
    return Pending("task", row.name, row.task_id, (asked,), inside=inside, parent=row.parent_task_id)


def _own(resources: Mapping[str, float]) -> dict[str, float]:
    """Without the names that Ray makes for the bundles of a placement group."""
    return {name: float(value) for name, value in resources.items() if "_group_" not in name}
