"""The records that agents, hub and clients exchange. Their field names are a promise: add, never rename."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypedDict

from .who import Identity, Record

__all__ = ["Breakpoint", "CrashRecord", "Identity", "Raised", "Reason", "Record", "StopRecord"]

Reason = Literal["breakpoint", "exception", "step", "pause"]


class Raised(TypedDict):
    """An exception in words."""

    type: str
    message: str


@dataclass(frozen=True)
class StopRecord(Record):
    """One thread that is stopped."""

    id: str
    job_id: str
    actor: str
    role: str
    rank: int | None
    node_ip: str
    pid: int
    worker_id: str
    file: str
    line: int
    function: str
    reason: Reason
    exception: Raised | None
    since: float  # seconds since the epoch
    attached: int  # clients that look at it now
    thread: str = ""
    breakpoint: str = ""  # id of the breakpoint that was hit


@dataclass(frozen=True)
class Breakpoint(Record):
    """A breakpoint as it is posted to the workers.

    Either `paths` and `line`, or `module` and `qualname`, say where. `paths` are the ways in which the file may be
    named in a worker, best first: absolute, relative to the working folder, relative to a folder of `sys.path`.
    """

    id: str
    spec: str  # as the user wrote it
    paths: tuple[str, ...] = ()
    line: int = 0
    module: str = ""
    qualname: str = ""
    role: str = ""  # actor class or name; empty: any
    ranks: str = ""  # Python slice notation, "1,4:8"; empty: all
    condition: str = ""
    hits: str = ""  # "3" (the third hit), ">=3", ">3", "%3"
    log: str = ""  # an expression to print instead of stopping; a text with {expressions} is also taken
    source: str | None = None  # the file as the client has it, for workers that don't
    job_id: str = ""  # empty: every job
    timeout: float = 0.0  # seconds that a stop here may last; 0: without end


@dataclass(frozen=True)
class CrashRecord(Record):
    """One line of the list of crashes; the snapshot itself has more."""

    id: str
    job_id: str
    role: str
    rank: int | None
    node_ip: str
    pid: int
    time: float  # seconds since the epoch
    exception: Raised
    file: str
    line: int
    function: str
    root: str | None  # id of the snapshot that caused this one
    kind: str = "task"  # task, actor, thread, train, driver, exit
    worker_id: str = ""
    task_id: str = ""
