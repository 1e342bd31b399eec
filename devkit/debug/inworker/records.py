"""The records that agents, hub and clients exchange. Their field names are a promise: add, never rename."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any, Literal, TypedDict

from .who import Identity, Record

__all__ = [
    "DIED",
    "Breakpoint",
    "CrashRecord",
    "Identity",
    "Raised",
    "Reason",
    "Record",
    "StopRecord",
    "breakpoint_of",
    "crash_of",
    "is_breakpoint",
]

DIED = "ProcessDied"  # the type of an end of which nothing else is known
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
    breakpoints: tuple[str, ...] = ()  # ids of all those of its place that were hit


@dataclass(frozen=True)
class Breakpoint(Record):
    """A breakpoint as it is posted to the workers.

    Either `paths` and `line`, or `module` and `qualname`, say where, or `raises` at which exceptions. `paths` are the
    ways in which the file may be named in a worker, best first: absolute, relative to the working folder, relative to a
    folder of `sys.path`.
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
    raises: str = ""  # the type of an exception: it stops where one of that type, or of a kind of it, is raised


def breakpoint_of(document: Any) -> Breakpoint:
    """What was posted, before others are told of it. Raises ValueError for what not everybody could read."""
    from .specs import SpecError, check_hits, check_ranks

    try:
        point = Breakpoint.from_json(document)
        check_types(point)
        check_ranks(point.ranks)
        check_hits(point.hits)
    except (TypeError, AttributeError, SpecError) as error:
        raise ValueError(f"no breakpoint: {error}") from None
    return point


def is_breakpoint(document: Any) -> bool:
    try:
        return bool(breakpoint_of(document))
    except ValueError:
        return False


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
    waited: tuple[str, ...] = ()  # tasks whose results it asked for, where it was told of a death
    supposed: bool = False  # whether its root is supposed, by kind and time alone
    handled: str = ""  # of a SystemExit: what was being handled when the program left, with its place
    misfits: tuple[str, ...] = ()  # the key, index, ids, array or file that did not fit


def crash_of(document: Any) -> CrashRecord:
    """A snapshot's line in the list. Raises ValueError for what is none: it may be damaged, or name another file."""
    try:
        record = CrashRecord.from_json(document)
        check_types(record)
        said = [record.exception[name] for name in ("type", "message")]
    except (TypeError, AttributeError, KeyError) as error:
        raise ValueError(f"no crash: {error!r}") from None
    if not all(type(each) is str for each in said) or _NAME.fullmatch(record.id) is None:
        raise ValueError(f"no crash: {record.id!r:.40}")
    return record


_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")  # of a crash, and so of its file
_KINDS: dict[Any, tuple[type, ...]] = {
    "str": (str,),
    "str | None": (str, type(None)),
    "int": (int,),
    "int | None": (int, type(None)),
    "float": (int, float),
    "bool": (bool,),
    "tuple[str, ...]": (tuple,),
    "Raised": (dict,),
    "Raised | None": (dict, type(None)),
    "Reason": (str,),
}
LARGEST = 2**53  # of a number that every reader of JSON has as it is; times and ids are far below


def is_number(value: Any) -> bool:
    """Whether it is one that can be told, counted with and shown.

    >>> [is_number(each) for each in (1, 1.5, float("nan"), 10**400, True, "1")]
    [True, True, False, False, False, False]
    """
    return type(value) in (int, float) and -LARGEST <= value <= LARGEST


def check_types(record: Record) -> None:
    """Raises TypeError: JSON has the right names, perhaps, and anything behind them."""
    for each in fields(record):
        value = getattr(record, each.name)
        inner = value if type(value) is tuple else ()
        right = type(value) in _KINDS[each.type] and all(type(one) is str for one in inner)
        if not right or (type(value) in (int, float) and not is_number(value)):
            raise TypeError(f"{each.name} is {value!r:.40}")
