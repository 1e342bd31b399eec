"""Rows of Ray's tables, as its dashboard gives them. What is not used here is left out; what a Ray lacks is empty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

AnyRow = TypeVar("AnyRow", bound="Row")
LogFiles = dict[str, list[str]]


@dataclass(frozen=True)
class Row:
    @classmethod
    def from_json(cls: type[AnyRow], document: Mapping[str, Any]) -> AnyRow:
        """Takes what it knows. A null, or what is of another type, is the same as nothing said.

        >>> WorkerRow.from_json({"worker_id": "ab", "pid": 7, "ip": None, "node_id": 3, "colour": "red"})
        WorkerRow(worker_id='ab', is_alive=False, worker_type='', node_id='', ip='', pid=7, ...)
        """
        kind: Any = cls
        hints = _hints(kind)
        values = {name: _value(hints[name], document[name]) for name in hints if name in document}
        return cls(**{name: value for name, value in values.items() if value is not None})


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _value(hint: Any, value: Any) -> Any:
    """None for what the hint does not say."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if hint in (int, float):
        return value if type(value) in (int, float) else None
    if origin is UnionType:
        return _value(arguments[0], value)
    if origin is tuple:
        rows = value if isinstance(value, list) else ()
        return tuple(each for each in rows if _value(arguments[0], each) is not None)
    if origin is Mapping:
        known = value.items() if isinstance(value, dict) else None
        return None if known is None else {name: one for name, one in known if _value(arguments[1], one) is not None}
    return value if type(value) is hint else None


@dataclass(frozen=True)
class Version(Row):
    ray_version: str = ""
    session_name: str = ""  # "session_<time>_<pid of the head's `ray start`>"


@dataclass(frozen=True)
class NodeRow(Row):
    node_id: str = ""
    node_ip: str = ""
    node_name: str = ""
    state: str = ""
    is_head_node: bool = False
    resources_total: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def alive(self) -> bool:
        return self.state == "ALIVE"

    @property
    def cpus(self) -> float:
        return float(self.resources_total.get("CPU", 0))

    @property
    def gpus(self) -> float:
        return float(self.resources_total.get("GPU", 0))


@dataclass(frozen=True)
class WorkerRow(Row):
    worker_id: str = ""
    is_alive: bool = False
    worker_type: str = ""
    node_id: str = ""
    ip: str = ""
    pid: int = 0
    exit_type: str = ""
    exit_detail: str = ""
    start_time_ms: int = 0
    end_time_ms: int = 0
    debugger_port: int = 0
    num_paused_threads: int = 0


@dataclass(frozen=True)
class TaskRow(Row):
    task_id: str = ""
    attempt_number: int = 0
    name: str = ""
    func_or_class_name: str = ""
    state: str = ""
    type: str = ""
    job_id: str = ""
    actor_id: str = ""
    node_id: str = ""
    worker_id: str = ""
    worker_pid: int = 0
    parent_task_id: str = ""
    error_type: str = ""
    error_message: str = ""
    end_time_ms: float = 0
    required_resources: Mapping[str, float] = field(default_factory=dict)
    placement_group_id: str = ""


@dataclass(frozen=True)
class PlacementGroupRow(Row):
    placement_group_id: str = ""
    name: str = ""
    creator_job_id: str = ""
    state: str = ""  # PENDING, PREPARED, CREATED, REMOVED, RESCHEDULING
    bundles: tuple[Mapping[str, Any], ...] = ()  # {"unit_resources", "node_id", ...}
    stats: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ActorRow(Row):
    actor_id: str = ""
    class_name: str = ""
    name: str = ""
    state: str = ""
    job_id: str = ""
    node_id: str = ""
    pid: int = 0
    ray_namespace: str = ""
    is_detached: bool = False
    required_resources: Mapping[str, float] = field(default_factory=dict)
    placement_group_id: str = ""
    death_cause: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class JobRow(Row):
    job_id: str = ""  # empty until the driver of a submitted job has connected
    submission_id: str = ""  # empty for a driver that nobody submitted
    type: str = ""
    status: str = ""
    entrypoint: str = ""
    message: str = ""
    error_type: str = ""
    start_time: int = 0  # milliseconds
    end_time: int = 0
    metadata: Mapping[str, str] = field(default_factory=dict)
    driver_node_id: str = ""
    driver_exit_code: int | None = None
    driver_info: Mapping[str, Any] = field(default_factory=dict)
    is_untold: bool = False  # nobody knows how its driver ended; Ray calls that a success

    @property
    def ending(self) -> str:
        """How it goes with it, as a person reads it."""
        return "ENDED" if self.is_untold else self.status

    @property
    def has_ended(self) -> bool:
        return self.status in ("STOPPED", "SUCCEEDED", "FAILED")
