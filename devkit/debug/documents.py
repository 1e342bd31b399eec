"""The documents that the debugger's verbs print under `--json`. Field names are a promise: add, never rename.

The extension's types are generated from these, from what the hub answers (`inworker/documents.py`) and from the
records that know their own JSON (`devkit/records.py`, `cluster_records.py`): scripts/generate_vscode_types.py.
"""

from __future__ import annotations

from typing import Annotated, Any, NotRequired, TypedDict

from devkit.debug.cluster_records import DebugCluster, Stopped
from devkit.debug.inworker.documents import BreakpointState, EvalResult, StackFrame, StackProcess

Document = dict[str, Any]


class BreakDocument(TypedDict):
    """`devkit break`: the one that was set, all of them with `--list`, none after `--clear`."""

    breakpoints: list[BreakpointState]


class EvalGroup(TypedDict):
    """Stops at which an expression has the same value."""

    value: str
    ranks: list[int]
    ids: list[str]


class FurtherEval(TypedDict):
    """The second of several expressions, or one behind it."""

    expression: str
    results: list[EvalResult]
    groups: list[EvalGroup]
    odd: list[int]


class EvalDocument(TypedDict):
    """`devkit eval`: of the first expression."""

    results: list[EvalResult]
    groups: list[EvalGroup]  # the largest first; errors are in `results` alone
    odd: list[int]  # ranks that differ from the rest
    further: NotRequired[list[FurtherEval]]  # of the other expressions, where there are some


class StackGroup(TypedDict):
    """Processes of one role whose working threads stand at the same place."""

    role: str
    ranks: list[int]
    pids: list[int]
    frames: list[StackFrame]  # the program's own, innermost first
    stopped: bool  # by the debugger


class StacksDocument(TypedDict):
    """`devkit stacks`."""

    ranks: list[StackProcess]
    groups: list[StackGroup]
    odd: list[int]  # ranks that differ from the rest of their role


class ClustersDocument(TypedDict):
    """`devkit debug-cluster status`; `devkit debug-cluster` itself prints one of them."""

    clusters: list[Annotated[Document, DebugCluster]]


class StoppedDocument(TypedDict):
    """`devkit debug-cluster stop`."""

    stopped: list[Annotated[Document, Stopped]]


class RunDocument(TypedDict):
    """`devkit run`, when the command has ended."""

    command: list[str]
    returncode: int  # negative: the number of the signal that ended it


class SubmitDocument(TypedDict):
    """`devkit submit`."""

    submission_id: str
    status: str


class JobRecord(TypedDict):
    """One job of a cluster."""

    job_id: str  # empty until the driver of a submitted job has connected
    submission_id: str  # empty for a driver that nobody submitted
    status: str
    command: str
    start_time: float  # seconds since the epoch
    end_time: float | None
    message: str
    exit_code: int | None  # of the driver, where it is known; negative: the number of the signal that ended it


class StopJobDocument(TypedDict):
    """`devkit stop`."""

    submission_id: str
    stopped: bool  # false: it had ended already


class JobsDocument(TypedDict):
    """`devkit jobs`."""

    jobs: list[JobRecord]  # the newest first
