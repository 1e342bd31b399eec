"""Who this process is, in the program's own terms. Nothing of the program has to tell us.

A rank is torch.distributed's, else Ray Train's, else the variable `RANK`, else the actor's attribute `rank`; never one
that an earlier task has left in the process of this one.
"""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import replace
from typing import Any

from . import begun
from .card import read
from .core import asking
from .who import Identity

DRIVER = "driver"
WORKER = "worker"  # between two tasks
RAYS_OWN = "_ray_internal_"  # with this, the names of Ray's own actors begin
ID_SHOWN = 12  # characters of an actor's id that stand for its name
PARENT = "DEVKIT_PARENT"  # where a worker has its card (`card.py`), for children that it spawns

STARTED_BY = os.getppid()  # of a process that was started with devkit in it, who did that

_last: Identity | None = None  # for who asks when Ray has ended


def _forked() -> None:
    """A forked child is who its parent was, but for what is its own."""
    global _last
    if _last is not None:
        parent, _, _ = _last.worker_id.partition("-")
        _last = replace(_last, pid=os.getpid(), worker_id=f"{parent}-{os.getpid()}", parent=_last.parent or _last.pid)


os.register_at_fork(after_in_child=_forked)


def identify() -> Identity:
    """Asked anew each time: a worker's role is known when its actor is made, its rank when its process group is."""
    with asking() as is_open:
        return _identify() if is_open else _last or _of_parent()


def _identify() -> Identity:
    global _last
    worker = _worker()
    if worker is None:
        return _of_parent()
    instance, actor_name, actor_id = _actor(worker)
    _last = Identity(
        # The supervisor of a submitted job, for one, is no process of a program.
        job_id="" if actor_name.startswith(RAYS_OWN) else job_id(worker),
        worker_id=worker_id(),
        node_id=_hex(worker, "current_node_id"),
        node_ip=str(worker.node_ip_address or ""),
        host=socket.gethostname(),
        pid=os.getpid(),
        role=_role(worker, instance),
        actor=actor_name or actor_id,
        rank=_rank(instance),
        python=".".join(map(str, sys.version_info[:3])),
    )
    return _last


def _of_parent() -> Identity:
    """Who a process without Ray is: the worker that spawned it, but for what is its own."""
    me = Identity("", worker_id(), "", "", socket.gethostname(), os.getpid(), WORKER)
    parent = read(os.environ.get(PARENT, ""))
    own = {
        "worker_id": me.worker_id,
        "pid": me.pid,
        "parent": parent.get("pid", 0),
        "python": ".".join(map(str, sys.version_info[:3])),
    }
    rank = _rank(None)
    return Identity.from_json({**me.to_json(), **parent, **own, "rank": parent.get("rank") if rank is None else rank})


def worker_id() -> str:
    """Ray's id of this worker; processes that Ray does not know (children of a worker) are named by their parent's."""
    from_parent = os.environ.get("DEVKIT_CHILD_OF")
    if from_parent and from_parent.split(":")[0] != str(os.getpid()):
        return f"{from_parent.split(':')[1]}-{os.getpid()}"
    return _hex(_worker(), "worker_id") or f"pid-{os.getpid()}"


def task_id() -> str:
    """The task that runs in this thread, or an empty text."""
    with asking() as is_open:
        worker = _worker() if is_open else None
        found = _hex(worker, "current_task_id") if job_id(worker) else ""
    return found if found.strip("f") else ""  # Ray's id of no task: a coroutine beside an actor's calls


def job_id(worker: Any) -> str:
    """The job that this worker works for. One that Ray started in advance has none yet, and an empty text here.

    Ray's core ends a process without a job that asks for its current task: everything about tasks asks this first.
    """
    found = _hex(worker, "current_job_id")
    return "" if found.strip("f") == "" else found


def has_job() -> bool:
    """Whether this worker works for a job yet; without one it can't make actors either."""
    return bool(job_id(_worker()))


def _worker() -> Any:
    """Ray's worker of this process; None without one, as before `ray.init` and in children that were spawned."""
    worker = getattr(sys.modules.get("ray._private.worker"), "global_worker", None)
    return worker if getattr(worker, "connected", False) else None


def _hex(worker: Any, name: str) -> str:
    """Ray's ids as text; it has bytes for some and objects for others, and raises when it is not connected."""
    try:
        value = getattr(worker, name)
        value = value() if callable(value) else value
        return str(value.hex())
    except Exception:  # noqa: BLE001 - asked of a Ray that is starting or ending: then there is no id, and no harm
        return ""


def _actor(worker: Any) -> tuple[Any, str, str]:
    """The actor that lives in this worker, its name and its id."""
    actor_id = _hex(worker, "actor_id") if job_id(worker) else ""
    actors = getattr(worker, "actors", None) or {}
    if not actor_id or not actors:
        return None, "", ""
    instance = next(iter(actors.values()))
    name = str(getattr(worker, "actor_name", "") or "")
    return instance, name, actor_id[:ID_SHOWN]


def _role(worker: Any, instance: Any) -> str:
    if instance is not None:
        return type(instance).__name__.removeprefix("ActorClass(").removesuffix(")")
    module = sys.modules.get("ray._private.worker")
    if module is not None and getattr(worker, "mode", None) == module.SCRIPT_MODE:
        return DRIVER
    return task_called(worker).rpartition(".")[2] or WORKER


def task_called(worker: Any = None) -> str:
    """What Ray calls the task that runs here, `Rollout.generate`; empty: none does."""
    worker = worker or _worker()
    with asking() as is_open:
        try:
            return str(worker.core_worker.get_current_task_name()) if is_open and job_id(worker) else ""
        except Exception:  # noqa: BLE001 - Ray raises between tasks: then there is no name, and no harm
            return ""


def _rank(instance: Any) -> int | None:
    for source in (_torch_rank, _train_rank, _environment_rank):
        rank = source()
        if rank is not None:
            return rank
    own = getattr(instance, "__dict__", {}).get("rank")
    return own if isinstance(own, int) and not isinstance(own, bool) else None


def _torch_rank() -> int | None:
    try:
        if begun.default_group() is not None and begun.left_group() is None:
            return int(sys.modules["torch.distributed"].get_rank())
    except Exception:  # noqa: BLE001 - torch may be half imported, or a group half built: the next source is asked
        pass
    return None


def _train_rank() -> int | None:
    context = sys.modules.get("ray.train.v2._internal.execution.context")
    try:
        return int(context.get_train_context().get_world_rank()) if context is not None else None
    except Exception:  # noqa: BLE001 - raised outside of a training function: the next source is asked
        return None


def _environment_rank() -> int | None:
    value = os.environ.get(begun.RANK, "")
    return int(value) if value.isdigit() and not begun.is_left_rank(value) else None
