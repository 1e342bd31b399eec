"""How processes have ended, as Ray's tables have it: asked by the hub, and by a driver whose hub is not there yet."""

from __future__ import annotations

import importlib
from typing import Any

from . import orphans
from .hub_place import OWN
from .identity import ID_SHOWN, WORKER
from .records import Identity
from .words import in_short, say

ENDED_BY_RAY = "SIGTERM"  # in Ray's words on a worker's end
# Ends that nobody needs to hear of: the job is over, the worker was idle, ray.kill, exit_actor.
EXPECTED_EXITS = frozenset({"INTENDED_SYSTEM_EXIT", "INTENDED_USER_EXIT"})

Document = dict[str, Any]


def fate(worker_id: str, node_id: str, job_id: str) -> Document | None:
    """How a worker ended, as Ray has it; None while Ray thinks that it lives."""
    import ray

    if not any(node["NodeID"] == node_id and node["Alive"] for node in ray.nodes()):
        return {"reason": "the node was lost"}
    info = _worker_info(worker_id)
    if info is None or info.is_alive:
        return None
    kind = _generated("common_pb2").WorkerExitType.Name(info.exit_type)
    detail = in_short(str(info.exit_detail))
    ended = info.end_time_ms / 1000 if info.end_time_ms else None
    actor = _actor_of(worker_id)
    known = {
        "reason": f"the process died: {detail}",
        "kind": kind,
        "crashed": False,
        "role": actor.class_name if actor else "",
        "actor": actor.name if actor else "",
        "pid": info.pid,
        "time": ended,
    }
    if kind in EXPECTED_EXITS or (ENDED_BY_RAY in detail and is_over(job_id)):
        return known
    return {**known, "crashed": True, "task": _task_of(worker_id, job_id)}


def _task_of(worker_id: str, job_id: str) -> Document | None:
    """What it was at; None where Ray's table does not tell."""
    from .ray_tasks import of_worker

    try:
        return of_worker(worker_id, job_id) if job_id else None
    except Exception as error:  # noqa: BLE001 - a GCS that fails, or another Ray's: the crash is kept without a task
        say(f"the task of worker {worker_id} is not known: {error!r}")
        return None


def is_over(job_id: str) -> bool:
    """Whether a job's driver has ended. Ray then ends its workers, and calls that unexpected now and then."""
    import ray

    return any(job["JobID"] == job_id and job["IsDead"] for job in ray._private.state.state.job_table())


def _actors() -> list[Any]:
    """Ray's records of all actors."""
    import ray

    accessor = ray._private.state.state._connect_and_get_accessor()
    actor_data = _generated("gcs_pb2").ActorTableData
    return [actor_data.FromString(serialized) for serialized in accessor.get_actor_table(None, None)]


def _actor_of(worker_id: str) -> Any:
    """That of the actor that lived in a worker; it may have died before its agent could tell."""
    return next((actor for actor in _actors() if actor.address.worker_id.hex() == worker_id), None)


def _why(actor: Any) -> str:
    """It ended, in Ray's words."""
    return str(actor.death_cause.actor_died_error_context.error_message)


def orphaned(job_id: str) -> list[Document]:
    """{"class", "pid", "ended", "owner": {"class", "pid", "why", "actor"}} of a job's actors that ended with their
    owner.
    """
    actors = [each for each in _actors() if each.job_id.hex() == job_id and not each.name.startswith(OWN)]
    by_worker = {each.address.worker_id.hex(): each for each in actors}
    found = ((each, by_worker.get(owner)) for each in actors if (owner := orphans.owner_in(_why(each))))
    return [
        {
            "class": each.class_name,
            "pid": each.pid,
            "ended": each.end_time / 1000 if each.end_time else None,
            "owner": _owner(own) if own is not None else None,
        }
        for each, own in found
    ]


def _owner(own: Any) -> Document:
    return {"class": own.class_name, "pid": own.pid, "why": _why(own), "actor": own.actor_id.hex()}


def instance(actor: str, job_id: str) -> Document | None:
    """{"state", "pid", "worker_id", "restarts": whether Ray makes it anew} of an actor of a job, by its name or id.

    None where a job has had several of that name: the program has made another one itself.
    """
    found = [each for each in _actors() if each.job_id.hex() == job_id and _is_called(each, actor)]
    if len(found) != 1:
        return None
    state = _generated("gcs_pb2").ActorTableData.ActorState.Name(found[0].state)
    worker_id = found[0].address.worker_id.hex()
    restarts = found[0].max_restarts != 0 and state != "DEAD"
    return {"state": state, "pid": found[0].pid, "worker_id": worker_id, "restarts": restarts}


def _is_called(each: Any, actor: str) -> bool:
    """By its name, its id or the beginning of that; a name as short as "1" begins many an id."""
    return actor == each.name or (len(actor) >= ID_SHOWN and each.actor_id.hex().startswith(actor))


def named(name: str) -> list[Document]:
    """{"class", "namespace", "state", "pid", "why", "ended"} of the actors of that name, the oldest first."""
    state_of = _generated("gcs_pb2").ActorTableData.ActorState.Name
    return [
        {
            "class": each.class_name,
            "namespace": each.ray_namespace,
            "state": state_of(each.state),
            "pid": each.pid,
            "why": in_short(_why(each)),
            "ended": each.end_time / 1000 if each.end_time else None,
        }
        for each in sorted((each for each in _actors() if each.name == name), key=lambda one: one.start_time)
    ]


def deaths(task_ids: list[str], job_id: str) -> list[Document]:
    """Workers that died at one of these tasks: {"identity"} beside their fate."""
    import ray

    from .ray_tasks import asker_of, of_ids

    ips = {node["NodeID"]: str(node["NodeManagerAddress"]) for node in ray.nodes()}
    found = []
    for row in of_ids(task_ids):
        known = fate(row["worker_id"], row["node_id"], job_id) if row["worker_id"] else None
        if known is not None and known.get("crashed"):
            ip = ips.get(row["node_id"], "")
            role, pid = known.get("role") or WORKER, row["pid"] or known["pid"]
            who = Identity(job_id, row["worker_id"], row["node_id"], ip, "", pid, role, actor=known["actor"])
            task = {**row, "asked_by": asker_of(row)}
            found.append({**known, "identity": who.to_json(), "task": task})
    return found


def _worker_info(worker_id: str) -> Any:
    """Ray's record of a worker; None for a process that Ray does not know, such as a child of a worker."""
    import ray

    accessor = ray._private.state.state._connect_and_get_accessor()
    try:
        serialized = accessor.get_worker_info(ray.WorkerID.from_hex(worker_id))
    except ValueError:
        return None
    return _generated("gcs_pb2").WorkerTableData.FromString(serialized) if serialized else None


def _generated(name: str) -> Any:
    """A module of Ray's messages; they have no types."""
    return importlib.import_module(f"ray.core.generated.{name}")
