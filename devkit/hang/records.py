"""What `devkit hang` found, and its document under `--json`. Field names are a promise: add, never rename."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

from devkit.debug.documents import StacksDocument

Kind = Literal[
    "moves",  # no hang
    "paused",  # a debugger has stopped a rank: no hang either
    "idle",  # nobody has anything to do
    "missing",  # a rank does not come to a collective that others are in
    "raised",  # a rank failed, and others wait for it in a collective
    "mismatch",  # ranks are in different collectives
    "dead",  # a process is gone that others wait for
    "frozen",  # a process is stopped by a signal
    "silent",  # a call holds a process's Python lock
    "unreachable",  # a rank's node does not answer
    "deadlock",  # threads wait for each other's locks, or actors for each other's calls
    "io",  # a wait for a file, a pipe, a connection or a child
    "slow",  # a rank is at work, and far behind
    "network",  # all ranks are in the same collective, and nothing comes through
    "resource",  # what was asked of the cluster can't be had, or is not free
    "failing",  # the same error comes again and again: something catches it, or tries again
    "livelock",  # a loop comes round and gets no further, though it computes, or those that it asks are at work
    "stuck",  # nothing moves, and the cause is none of these
]
NO_HANG: tuple[Kind, ...] = ("moves", "paused", "idle")


@dataclass(frozen=True)
class Culprit:
    """The first process that differs, and the line of the program that it stands at."""

    role: str
    rank: int | None
    node_ip: str
    pid: int
    file: str  # empty: no line of the program's
    line: int
    function: str


class NamedThread(NamedTuple):
    """A thread that a verdict names, in a process of which no thread is in a line of the program."""

    node_ip: str
    pid: int
    thread: str


@dataclass(frozen=True)
class Verdict:
    """One sentence, who it is about, and what it rests on."""

    kind: Kind
    sentence: str
    culprit: Culprit | None = None
    waited: float | None = None  # seconds that others have waited for it, as far as is known
    evidence: tuple[str, ...] = ()
    decided: bool = True  # false: it may be an ordinary wait, which is too young to tell
    threads: tuple[NamedThread, ...] = ()  # whose stacks are to be seen, too

    @property
    def hang(self) -> bool:
        return self.kind not in NO_HANG

    @property
    def exit_code(self) -> int:
        return 1 if self.hang else 0

    def to_json(self) -> dict[str, Any]:
        found = {name: value for name, value in asdict(self).items() if name not in ("decided", "threads")}
        return {"hang": self.hang, **found, "evidence": list(self.evidence)}


@dataclass(frozen=True)
class RankProgress:
    """How far one process has come."""

    role: str
    rank: int | None
    node_ip: str
    pid: int
    doing: str  # stopped, dead, frozen, silent, deadlock, collective, meeting, ray, lock, io, sleep, wait, busy, idle
    moved: bool  # between the two samples
    step: int | None
    phase: str
    collective: str  # the last one: "all_reduce #12 of default_pg"; empty: none is known
    file: str
    line: int
    function: str
    task: str = ""  # the Ray task that it is at; empty in an actor, and between tasks

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class HangDocument(TypedDict):
    """`devkit hang`."""

    hang: bool
    kind: Kind
    sentence: str
    culprit: Annotated[dict[str, Any], Culprit] | None
    waited: float | None
    evidence: list[str]
    seconds: float  # from the command to the verdict
    ranks: list[Annotated[dict[str, Any], RankProgress]]
    stacks: StacksDocument  # of that moment
