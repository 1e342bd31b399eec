"""The document of `devkit logs --first-error --json`. Field names are a promise: add, never rename."""

from __future__ import annotations

from typing import TypedDict

from devkit.debug.inworker.documents import StackFrame


class ErrorCause(TypedDict):
    """One error, and where it was found."""

    type: str
    message: str
    file: str  # of the innermost frame of the program's own; empty: no line is known
    line: int
    function: str
    frames: list[StackFrame]  # innermost first
    role: str
    rank: int | None
    node_ip: str
    pid: int
    time: float | None  # seconds since the epoch, by its node's clock
    seen: list[str]  # in which logs and tables
    known: list[str]  # of a process that ended without a word: its actor, what it was at, its memory
    clues: list[str]  # what devkit's snapshot says beside its frames, such as another version of a package
    crash: str  # id of devkit's snapshot; empty: there is none


class FollowedError(TypedDict):
    """Errors of one kind that came from the cause."""

    said: str
    why: str
    count: int
    roles: list[str]


class GivenWarning(TypedDict):
    """A warning of a line of the program's own, or devkit's word of the whole run."""

    kind: str  # empty: devkit's, as of calls that the driver's end has cut off
    message: str
    file: str  # empty, and `line` 0, where it is of no line
    line: int
    who: list[str]  # roles and pids


class SwallowedError(TypedDict):
    """What the program raised and caught itself many times, by a handler of whatever comes."""

    said: str  # its type and message, the last time
    count: int  # at least, where a process was killed: as far as it told before
    at: str  # FILE:LINE that raised it
    by: str  # FILE:LINE of the handler, or of the line in its `try` from which it came; or of who keeps it
    who: list[str]


class FirstErrorDocument(TypedDict):
    """`devkit logs --first-error`."""

    job_id: str
    submission_id: str
    status: str
    cause: ErrorCause | None  # null: no error was found
    sure: bool  # false: all that was found usually follows from something, and of that nothing was found
    others: list[ErrorCause]  # as likely, at the same time
    followed: list[FollowedError]
    logged: list[ErrorCause]  # in logs of workers alone: the program has caught it, and may have got over it
    ended: ErrorCause | None  # what the driver failed by, if that is another error than the cause and its others
    warned: list[GivenWarning]  # in any process of the job
    caught: list[SwallowedError]  # the most frequent first
    notes: list[str]  # what could not be read
    bundle: str  # the file that was written; empty: none
