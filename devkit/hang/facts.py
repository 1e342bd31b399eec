"""What is known of a job at one moment: every process, what was asked of the cluster, what failed. Pure records.

`Sample.read` makes them of what the hub's `hang` answers (`debug/inworker/progress.py`) and of Ray's tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from devkit.debug.naming import Who
from devkit.debug.object_stores import Stores
from devkit.debug.stack_groups import Frame, Process, read

Document = Mapping[str, Any]
FROZEN = "Tt"  # states of a process as `ps` shows them: stopped by a signal, or by a tracer
DEAD = "ZX"
_ANY_ADDRESS = ("0.0.0.0", "::", "[::]")


class Entry(NamedTuple):
    """One collective, as torch's flight recorder has it. There are tens of thousands in a large job."""

    seq: int
    p2p: bool
    op: str
    sizes: str  # "[8, 4]", or "[2], [3]" of two tensors
    dtypes: str
    done: bool
    age: float  # seconds since it was begun
    peer: int | None = None  # of a transfer: the rank at its other end, where the recorder tells

    @property
    def said(self) -> str:
        other = "" if self.peer is None else f"{'to' if self.op == 'send' else 'from'} rank {self.peer}"
        return " ".join(part for part in (self.op, other, self.sizes) if part)


@dataclass(frozen=True)
class GroupFacts:
    """One process group as one rank sees it; entries from the oldest to the newest."""

    name: str
    description: str
    backend: str  # one: a group of two is two
    world: str  # where its ranks met: tells groups of one name apart
    ranks: tuple[int, ...]  # none: torch.distributed does not know the group
    entries: tuple[Entry, ...]

    @property
    def place(self) -> tuple[str, str, str]:
        """The same for all of its ranks."""
        return self.name, self.world, self.backend

    @property
    def last(self) -> Entry | None:
        return next((entry for entry in reversed(self.entries) if not entry.p2p), None)

    @property
    def waiting(self) -> Entry | None:
        """The oldest one that is under way."""
        return next((entry for entry in self.entries if not entry.done), None)


@dataclass(frozen=True)
class ThreadFacts:
    """What the kernel says of one thread."""

    name: str
    state: str = ""  # R, S, D, T ...; empty: not known
    cpu: float = 0.0  # seconds computed
    call: str = ""  # the system call that it is in
    target: str = ""  # what that call is on


@dataclass(frozen=True)
class LockWait:
    """A thread that waits for a lock, and who holds it."""

    thread: str
    lock: str
    at: Frame
    holder: str | None
    held_at: Frame | None


@dataclass(frozen=True)
class CallWait:
    """A thread or a coroutine that waits for results of Ray."""

    thread: str
    call: str  # the outermost function of the program: the actor's method, the task
    at: Frame
    tasks: tuple[str, ...]  # whose results, by their ids
    needed: int  # how many of them end the wait
    ends: bool  # by itself: it has a time-out
    side: bool  # in a thread of the program's own, which takes no calls
    blocks: bool = False  # the event loop of an async actor, which begins no call meanwhile


@dataclass(frozen=True)
class Lookup:
    """A name of an actor that a process has asked for again and again, and not got."""

    name: str  # empty: it lists all names of the namespace, and they stay the same
    namespace: str
    count: int
    seconds: float  # from the first to the last time
    at: Frame


@dataclass(frozen=True)
class Ended:
    """A thread of a process that has ended, or an asyncio task that has failed and that nobody awaits."""

    kind: str  # thread, task
    name: str
    said: str = ""  # what it raised
    at: Frame | None = None


@dataclass(frozen=True)
class NamedActor:
    """An actor of Ray's table that has a name."""

    name: str
    namespace: str
    class_name: str
    state: str
    job_id: str


@dataclass(frozen=True)
class Call:
    """A task, as Ray's table has it."""

    id: str
    name: str  # "Node.ask"
    state: str
    worker: str = ""  # id of the process that runs it


@dataclass(frozen=True)
class ProcessFacts:
    """One process of the job."""

    id: str
    role: str
    rank: int | None
    node_ip: str
    pid: int
    stack: Process  # its threads reduced to what tells
    answers: bool = True
    seen: bool = True  # by itself or by somebody on its node; False: nobody there answers
    problem: str = ""  # why it does not answer, or why it ended
    state: str = ""  # of the process, as `ps` shows it
    dead: bool = False
    cpu: float = 0.0  # seconds that it and its children have computed
    io: int = 0  # bytes that it has read and written
    step: int | None = None
    phase: str = ""
    threads: tuple[ThreadFacts, ...] = ()
    groups: tuple[GroupFacts, ...] = ()
    call: Document = field(default_factory=dict)  # the call of torch.distributed that it is in
    locks: tuple[LockWait, ...] = ()
    waits: tuple[CallWait, ...] = ()
    lookups: tuple[Lookup, ...] = ()
    ended: tuple[Ended, ...] = ()
    actor_id: str = ""  # empty: it is no actor
    concurrency: int = 0  # how many calls its actor takes at once; 0: not known
    stopped: bool = False  # by a debugger
    unanswered: tuple[tuple[str, int], ...] = ()  # addresses that do not acknowledge what is sent, and the tries

    @property
    def who(self) -> Who:
        return Who(self.role, self.rank, self.id)

    @property
    def unlisted(self) -> GroupFacts | None:
        """The group that it waits in with others of which torch.distributed does not tell who they are."""
        return next((group for group in self.groups if not group.ranks and group.waiting), None)

    @property
    def thread(self) -> ThreadFacts | None:
        """The one that works."""
        name = self.stack.thread.partition(" #")[0]
        return next((each for each in self.threads if each.name == name), None)


@dataclass(frozen=True)
class Room:
    """What a placement group has, and who of its own is there."""

    group: str
    total: Mapping[str, float]
    held: tuple[tuple[str, Mapping[str, float]], ...]  # "actor p0", and what it holds

    @property
    def free(self) -> dict[str, float]:
        return {name: value - sum(own.get(name, 0.0) for _, own in self.held) for name, value in self.total.items()}


@dataclass(frozen=True)
class Pending:
    """Something that Ray was asked for and has not given."""

    kind: str  # placement group, actor, task
    name: str
    id: str
    bundles: tuple[Mapping[str, float], ...]
    strategy: str = ""
    detail: str = ""
    inside: Room | None = None  # of a placement group that is there, where it may run alone


@dataclass(frozen=True)
class Holder:
    """A living actor or a task that runs, and what it holds while others wait."""

    name: str
    job_id: str
    ended: bool  # its job has: a detached actor outlives it
    resources: Mapping[str, float]
    kind: str = "actor"
    place: str = ""  # the actor's id, or that of the process that runs the task


@dataclass(frozen=True)
class NodeFacts:
    """What one living node has."""

    node_id: str
    ip: str
    total: Mapping[str, float]
    free: Mapping[str, float] | None = None  # None: not known
    said: tuple[str, ...] = ()  # the last lines of its raylet's standard error: what a worker that did not start wrote


@dataclass(frozen=True)
class CrashFacts:
    """One crash snapshot."""

    id: str
    worker_id: str
    role: str
    rank: int | None
    said: str
    at: Frame | None
    time: float
    root: str | None


@dataclass(frozen=True)
class Sample:
    """A job at one moment."""

    time: float
    processes: tuple[ProcessFacts, ...]
    left: tuple[ProcessFacts, ...] = ()  # those that are gone
    pending: tuple[Pending, ...] = ()
    nodes: tuple[NodeFacts, ...] = ()
    holders: tuple[Holder, ...] = ()  # where something is pending
    crashes: tuple[CrashFacts, ...] = ()
    stores: Stores = field(default_factory=Stores)
    named: tuple[NamedActor, ...] = ()  # where somebody looks for a name in vain
    calls: Mapping[str, Call] = field(default_factory=dict)  # by id: those that somebody waits for
    running: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by actor: its calls that have begun

    @classmethod
    def of(cls, answer: Document, crashes: Sequence[CrashFacts] = (), **tables: Any) -> Sample:
        """Of the hub's answer."""
        read_all = [read_process(each) for each in answer["ranks"]]
        left = tuple(_left(each) for each in answer["left"])
        return cls(float(answer["time"]), tuple(read_all), left, crashes=tuple(crashes), **tables)


def read_process(document: Document) -> ProcessFacts:
    """One process as the hub has it: from inside, or as a neighbour sees it."""
    who, facts = document["identity"], document.get("facts") or {}
    known = facts or document
    threads = known.get("threads") or []
    kernel = known.get("process") or {}
    rank = facts.get("rank") if facts else who.get("rank")
    gone = bool(document.get("fate")) or ("process" in document and document["process"] is None)
    return ProcessFacts(
        id=str(who["worker_id"]),
        role=str(who.get("role") or ""),
        rank=rank,
        node_ip=str(who.get("node_ip") or ""),
        pid=int(who["pid"]),
        stack=read({**who, "rank": rank, "threads": threads}),
        answers=bool(facts),
        seen=bool(facts) or gone or "process" in document,
        problem=str(document.get("fate") or document.get("error") or ""),
        state=str(kernel.get("state") or ""),
        dead=gone or str(kernel.get("state") or "S") in DEAD,
        cpu=float(kernel.get("cpu") or 0) + float(kernel.get("children_cpu") or 0),
        io=int(kernel.get("io") or 0),
        step=facts.get("step"),
        phase=str(facts.get("phase") or ""),
        threads=tuple(_thread(each) for each in threads),
        groups=tuple(_group(each, str(who.get("node_ip") or "")) for each in facts.get("groups") or ()),
        call=facts.get("call") or {},
        locks=tuple(_lock(each) for each in facts.get("locks") or ()),
        waits=tuple(_call_wait(each) for each in facts.get("waits") or ()),
        lookups=tuple(_lookup(each) for each in facts.get("lookups") or ()),
        ended=tuple(_ended(each) for each in facts.get("ended") or ()),
        actor_id=str(facts.get("actor_id") or ""),
        concurrency=int(facts.get("concurrency") or 0),
        stopped=bool(facts.get("stops")),
        unanswered=tuple((str(each["peer"]), int(each["tries"])) for each in facts.get("unanswered") or ()),
    )


def _left(document: Document) -> ProcessFacts:
    return read_process({"identity": document["identity"], "fate": document["reason"]})


def _thread(document: Document) -> ThreadFacts:
    wait = document.get("wait") or {}
    return ThreadFacts(
        str(document.get("name") or ""),
        str(document.get("state") or ""),
        float(document.get("cpu") or 0.0),
        str(wait.get("call") or ""),
        str(wait.get("target") or ""),
    )


def _group(document: Document, node_ip: str) -> GroupFacts:
    """As a rank on that node has it."""
    entries = tuple(
        Entry(
            each["seq"],
            each["p2p"],
            each["op"],
            str(each["sizes"])[1:-1],
            str(each["dtypes"]),
            each["done"],
            each["age"],
            each.get("peer"),
        )
        for each in document["entries"]
    )
    return GroupFacts(
        str(document["name"]),
        str(document.get("description") or ""),
        str(document.get("backend") or ""),
        _met_at(str(document.get("world") or ""), node_ip),
        tuple(document["ranks"]),
        entries,
    )


def _met_at(world: str, node_ip: str) -> str:
    """The place as other nodes call it, also for the rank that opened it at all addresses of its own.

    >>> _met_at("0.0.0.0:4711", "10.0.0.2"), _met_at("10.0.0.2:4711", "10.0.0.3")
    ('10.0.0.2:4711', '10.0.0.2:4711')
    """
    host, _, port = world.rpartition(":")
    return f"{node_ip}:{port}" if host in _ANY_ADDRESS and node_ip else world


def _call_wait(document: Document) -> CallWait:
    return CallWait(
        str(document["thread"]),
        str(document["call"]),
        frame(document["at"]),
        tuple(document["tasks"]),
        int(document["needed"]),
        bool(document["ends"]),
        bool(document["side"]),
        bool(document.get("blocks")),
    )


def _lookup(document: Document) -> Lookup:
    name, namespace = str(document["name"]), str(document["namespace"])
    return Lookup(name, namespace, int(document["count"]), float(document["seconds"]), frame(document["at"]))


def _ended(document: Document) -> Ended:
    at = document.get("at")
    return Ended(str(document["kind"]), str(document["name"]), str(document["said"]), frame(at) if at else None)


def _lock(document: Document) -> LockWait:
    held = document.get("held_at")
    return LockWait(
        str(document["thread"]),
        str(document["lock"]),
        frame(document["at"]),
        document.get("holder"),
        frame(held) if held else None,
    )


def frame(document: Document) -> Frame:
    return Frame(str(document["file"]), int(document.get("line") or 0), str(document["function"]))
