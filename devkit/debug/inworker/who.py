"""Who a process is. The one record that every process makes at its start: making a class of it takes a millisecond."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

AnyRecord = TypeVar("AnyRecord", bound="Record")


@dataclass(frozen=True)
class Record:
    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls: type[AnyRecord], document: dict[str, Any]) -> AnyRecord:
        """Reads what `to_json` wrote, by this version or by a newer one that knows more fields."""
        known = {field.name for field in fields(cls)}
        frozen = {name: tuple(value) if isinstance(value, list) else value for name, value in document.items()}
        return cls(**{name: value for name, value in frozen.items() if name in known})


@dataclass(frozen=True)
class Identity(Record):
    """Who a process is, in the program's own terms."""

    job_id: str
    worker_id: str
    node_id: str
    node_ip: str
    host: str
    pid: int
    role: str  # the actor's class, the task's function, or "driver"
    actor: str = ""  # the actor's name, else its id; empty for a task
    rank: int | None = None
    python: str = ""  # "3.11.7"
    parent: int = 0  # pid of the worker or the driver that this is a child of; 0: of none
