"""The documents that the hub answers with, as typed dictionaries. Field names are a promise: add, never rename.

They are for who reads and checks the code: no process imports this to run. `Annotated[Document, X]` is the document
that `X.to_json()` gives.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from .records import CrashRecord, StopRecord
from .who import Identity

Document = dict[str, Any]


class Missing(TypedDict):
    """A process that a breakpoint is meant for, and that has not armed it."""

    role: str
    rank: int | None


class BreakpointState(TypedDict):
    """A breakpoint, and how many of the processes that it is meant for have armed it."""

    id: str
    spec: str  # as the user wrote it
    armed: int
    workers: int  # processes that it is meant for
    hits: int  # of all processes together
    note: str  # why it isn't armed, where it isn't
    error: str  # what its condition raised; empty: nothing
    job_id: str  # the only job that it is for; empty: every one
    missing: NotRequired[list[Missing]]  # who has not armed it; an older devkit's hub does not say


class GoneRecord(TypedDict):
    """A stop that is over, and why."""

    id: str
    job_id: str
    role: str
    rank: int | None
    node_ip: str
    pid: int
    file: str
    line: int
    function: str
    reason: str  # "continued", "timeout", "the node was lost", ...
    time: float  # seconds since the epoch


class StackFrame(TypedDict):
    """Where a frame stands."""

    file: str
    line: int
    function: str


class CaughtRecord(TypedDict):
    """What a process has raised at one line, and caught again."""

    kind: str  # the exception's type
    text: str  # its message, the last time; empty: it has none that is plain text
    at: StackFrame  # the line that raised it
    by: StackFrame  # the handler's line, if that is known; else the line, in the function that caught it, it came from
    count: int
    seconds: float  # from the first to the last time
    ago: float  # from the last time to the report
    how: NotRequired[str]  # "any": by a handler of whatever comes; "named"; "kept" in a Future; empty: not looked at


class Connection(TypedDict):
    """Whether a process can be asked, and what it has caught, where that is counted."""

    connected: bool
    caught: NotRequired[list[CaughtRecord]]


WorkerRecord = Annotated[Document, Identity, Connection]  # one process with the debugger in it


class PsDocument(TypedDict):
    """`devkit ps`; with `--watch`, one at each change."""

    stops: list[Annotated[Document, StopRecord]]  # the oldest first
    breakpoints: list[BreakpointState]
    crashes: int
    gone: list[GoneRecord]  # the newest last
    workers: list[WorkerRecord]


class EvalResult(TypedDict):
    """What an expression gave at one stop: a value, or an error."""

    id: str  # of the stop
    role: str
    rank: int | None
    value: str | None
    error: str | None


class ContinueDocument(TypedDict):
    """`devkit continue`: the stops that go on, and what kept the others."""

    continued: list[str]
    failed: dict[str, str]


class ThreadStack(TypedDict):
    """One thread, or one asyncio task that waits."""

    name: str
    frames: list[StackFrame]  # innermost first
    stopped: bool  # by the debugger
    gil: NotRequired[bool]  # it holds the interpreter's lock; known of a process that does not answer itself


class StackProcess(TypedDict):
    """The stacks of one process; `error` says why there are none."""

    role: str
    rank: int | None
    node_ip: str
    pid: int
    worker_id: str
    job_id: str
    threads: list[ThreadStack]
    error: str | None
    task: NotRequired[str]  # the Ray task that it is at; empty in an actor, and between tasks
    call: NotRequired[str]  # the same, or the actor's method, as Ray has it; empty: none
    parent: int  # pid of the worker or the driver that it is a child of; 0: of none
    untold: NotRequired[int]  # children that did not say in time what they do


class CrashesDocument(TypedDict):
    """`devkit crashes`."""

    crashes: list[Annotated[Document, CrashRecord]]  # the oldest first


class SourceLines(TypedDict):
    """The source around a line."""

    first: int  # number of the first one
    lines: list[str]


class CrashFrame(StackFrame):
    """A frame as it was when the exception left it."""

    user: bool  # not a library's
    source: SourceLines | None
    locals: dict[str, Any]  # as JSON; tensors {"tensor": facts}, others {"type", "attributes"|"items"|"text"}


class ChainedFrame(StackFrame):
    """A frame of another exception of the chain; without variables where `frames` of the crash has it."""

    user: NotRequired[bool]
    source: NotRequired[SourceLines | None]
    locals: NotRequired[dict[str, Any]]


class ChainedException(TypedDict):
    """One exception of a chain."""

    type: str
    message: str
    relation: Literal["raised", "cause", "context", "member"]
    frames: list[ChainedFrame]
    attributes: NotRequired[dict[str, Any]]  # what it keeps in itself, beside its text


class CallFacts(TypedDict):
    """A call of an actor's method; the class stands for the making of the actor."""

    name: str
    arguments: dict[str, Any]


class MemoryFacts(TypedDict):
    """Bytes."""

    own: int  # of the process
    used: int  # on its node, or in its container
    total: int


class OtherCopy(TypedDict):
    """A module of which a worker has another copy than its driver: the two files."""

    module: str
    here: str
    there: str


class OtherVersion(TypedDict):
    """A package, or Python, of which the process that failed has another version than one that sends it something."""

    package: str
    here: str | None  # in the process that failed; null: it has none
    there: str
    whose: str  # the role of one that has that: "driver", an actor's class


class PortHolder(TypedDict):
    """Who has a port that the program wanted."""

    port: int
    pid: int  # 0: a process of another user
    command: str


class CrashDetails(TypedDict):
    """What a snapshot has beside its line in the list."""

    frames: list[CrashFrame]  # of the exception that the crash is named after, innermost first
    at: int  # index in `frames` of the innermost one that is the user's
    chain: list[ChainedException]  # what was raised, then its causes
    threads: list[ThreadStack]
    versions: dict[str, str]
    host: str
    attempt: int
    light: bool  # another attempt or an outer level of a crash that is kept elsewhere
    cut: list[str]  # what was left out for size or time, in words
    wrote: NotRequired[list[str]]  # the last lines of its error output and of its output, where these are files
    reason: NotRequired[str]  # why a process ended that left no exception
    none: NotRequired[str]  # the name that the line called, and that is None
    ran: NotRequired[list[str]]  # remote functions of which the process of a task has run other tasks before
    left: NotRequired[str]  # that its process had a process group before the task began
    outside: NotRequired[dict[str, int]]  # calls of other tasks that a failed call had made, and how often
    again: NotRequired[str]  # that Ray tries the call again, and what stays done
    anew: NotRequired[str]  # that Ray has started the actor anew, and what is gone
    unasked: NotRequired[list[str]]  # errors in its process for whose results nobody had asked
    cancelled: NotRequired[list[str]]  # where a task was cancelled, and the handler that does not catch that
    dropped: NotRequired[list[str]]  # each `finally` of the failing code that drops what is raised
    remote: NotRequired[str]  # where another process raised it, which passed it on through a pool
    hidden: NotRequired[str]  # the exception that `raise ... from None` leaves out
    late: NotRequired[str]  # that it may have failed before its line
    misfits: NotRequired[list[str]]  # the key, index, ids, array or file that did not fit
    loops: NotRequired[list[str]]  # the lock or queue of asyncio that belongs to another event loop
    changed: NotRequired[list[str]]  # variables that may have been written to after the error
    earlier: NotRequired[list[str]]  # variables that are of an earlier round of a loop
    remade: NotRequired[str]  # why an exception of a task could not be unpickled
    way: NotRequired[str]  # to what could not be pickled, from what was to be sent
    modules: NotRequired[dict[str, dict[str, str]]]  # of the program, in which it failed: the file and its digest
    differs: NotRequired[list[OtherCopy]]
    packages: NotRequired[dict[str, dict[str, Any]]]  # that the error may be about: which version this process has
    unpickled: NotRequired[bool]  # it failed while an object was unpickled
    arriving: NotRequired[str]  # the call of which it was an argument, "Rollout.generate"
    objects: NotRequired[list[str]]  # the program's classes of which objects were in that
    other_versions: NotRequired[list[OtherVersion]]
    ports: NotRequired[list[PortHolder]]  # of an address that was in use
    actor: NotRequired[str]  # its name, or its id, of a process that ended without an exception
    made: NotRequired[CallFacts]  # with what that actor was made
    call: NotRequired[CallFacts]  # which method it was at when it was last looked at
    called: NotRequired[str]  # the function of the task that it was at
    timed: NotRequired[str]  # the function of the call in which the timer was set that ended it
    asked_by: NotRequired[str]  # the task that asked for what it was at, or "driver"
    memory: NotRequired[MemoryFacts]  # as it was last told
    seen: NotRequired[float]  # seconds between the last look at such a process, which the frames are of, and its end


CrashDocument = Annotated[Document, CrashRecord, CrashDetails]  # `devkit crashes show`
