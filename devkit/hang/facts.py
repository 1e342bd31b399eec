"""What is known of a job at one moment: every process, what was asked of the cluster, what failed. Pure records.

`answers.py` makes them of what the hub's `hang` answers (`debug/inworker/progress.py`), `gather.py` of Ray's tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from devkit.debug.naming import Who
from devkit.debug.object_stores import Stores
from devkit.debug.stack_groups import MAIN, Frame, Process, task_role
from devkit.hang.conversing import EngineWait, EnvironmentWait, Search
from devkit.hang.model_facts import Model
from devkit.hang.standing import Growing, Standing, Turn, Values, quoted

Document = Mapping[str, Any]
FROZEN = "Tt"  # states of a process as `ps` shows them: stopped by a signal, or by a tracer
DEAD = "ZX"


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


class FarEnd(NamedTuple):
    """A process that has the other end of a pipe."""

    pid: int
    command: str
    orphan: bool  # its parent has ended


@dataclass(frozen=True)
class ThreadFacts:
    """What the kernel says of one thread."""

    name: str
    state: str = ""  # R, S, D, T ...; empty: not known
    cpu: float = 0.0  # seconds that it has wanted a core
    call: str = ""  # the system call that it is in
    target: str = ""  # what that call is on
    pipes: tuple[str, ...] = ()  # the same pipe has the same word in each process of the node
    far: tuple[FarEnd, ...] = ()  # who has the other ends of those
    side: bool = False  # started by the program, so no calls of Ray come to it
    turns: int = 0  # how often it was given a core
    ran: float | None = None  # seconds that it had one; None: not known
    serves: bool = False  # a server's only one, in which each connection is served after the other


@dataclass(frozen=True)
class LockWait:
    """A thread that waits for a lock, and who holds it."""

    thread: str
    lock: str
    at: Frame
    holder: str | None
    held_at: Frame | None
    call: str = ""  # the outermost function of the program
    then: tuple[str, Frame] | None = None  # the thread of the process that this one was forked from, which holds it
    kept_at: Frame | None = None  # where a coroutine of its own event loop, which holds it, awaits something
    what: str = ""  # of one that is no lock of the program's: "the import of module m, which thread t has begun"


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
    what: str = ""  # in place of a result: what it waits for in its own process, such as a lock
    holder: str = ""  # the thread or the task of its process that has that
    near: Values = ()  # other references that its function has: the variable, and the task whose result that is
    takes: tuple[tuple[str, Frame], ...] = ()  # queues of Ray from which it takes elsewhere: their actors, and where


@dataclass(frozen=True)
class InnerWait:
    """What threads or asyncio tasks of a process wait for among themselves."""

    thread: str
    call: str  # the outermost function of the program
    at: Frame
    what: str  # "an asyncio.Lock"
    count: int  # so many wait for it at that line
    free: bool  # a lock or a semaphore that nobody who is there holds
    holder: str = ""  # the thread or the task that holds it
    holder_call: str = ""
    held_at: Frame | None = None  # where the holder is now
    blocks: bool = False  # a thread's event loop, which does nothing meanwhile
    side: int = 0  # so many of them are threads of the program's own, and no calls
    shared: bool = False  # a semaphore of which others than the holder may give back a permit
    joins: str = ""  # the thread for whose end it waits
    closes: bool = False  # an executor, at the end of its `with`


@dataclass(frozen=True)
class Poll:
    """A thread or a task that sleeps in a loop."""

    at: Frame  # the program's line
    by: Frame  # the line in the loop, which may be a library's
    loop: str  # "while not self.ready", "until done"
    values: Values  # of the names in that
    sums: str = ""  # a digest of what the loop adds up; empty: nothing

    @property
    def said(self) -> str:
        values = ", ".join(f"{name} = {value}" for name, value in self.values)
        return quoted(self.loop) + (f" ({values})" if values else "")


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
    """A thread of a process that has ended, or an asyncio task that has failed and that nobody awaits, or not yet."""

    kind: str  # thread, task, cancelled, part: of an `asyncio.gather` that waits for other parts
    name: str
    said: str = ""  # what it raised
    at: Frame | None = None  # of a cancelled task: where it was made
    count: int = 1  # tasks of that name that failed there
    alike: bool = True  # whether all of them raised just that
    open: int = 0  # tasks of that name that are not done
    file: str = ""  # of a task's coroutine, if it is known what of that file it may come to
    reaches: frozenset[str] = frozenset()  # the last names of those functions


@dataclass(frozen=True)
class Caught:
    """What a process has raised at one line, and caught again."""

    said: str  # "KeyError: 'x'"
    at: Frame  # where it was raised
    by: Frame  # who caught it: the handler's line, if that is known, else the line of its `try` that it came from
    count: int
    seconds: float  # from the first to the last time
    ago: float  # from the last time to the sample
    how: str = ""  # as `swallowing` has it


class Halt(NamedTuple):
    """A process of the same node that was sent a signal which stops it, and where."""

    pid: int
    signal: str
    at: Frame


@dataclass(frozen=True)
class Fork:
    """What is known of a forked child."""

    at: Frame | None  # where it was forked


class Wrote(NamedTuple):
    """A line that a process wrote."""

    line: str
    last: bool = False  # nothing else after it, or between it and the others of the same output


@dataclass(frozen=True)
class NamedActor:
    """An actor of Ray's table that has a name."""

    name: str
    namespace: str
    class_name: str
    state: str
    job_id: str
    why: str = ""  # it has ended


@dataclass(frozen=True)
class Call:
    """A task, as Ray's table has it."""

    id: str
    name: str  # "Node.ask"
    state: str
    worker: str = ""  # id of the process that runs it
    attempt: int = 0  # how often it was tried before


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
    heard: float | None = None  # of one that does not answer: so many seconds ago it said something, late
    problem: str = ""  # why it does not answer, or why it ended
    state: str = ""  # of the process, as `ps` shows it
    dead: bool = False
    cpu: float = 0.0  # seconds that it and its children have computed
    io: int = 0  # bytes that it has read and written
    step: int | None = None
    phase: str = ""
    task: str = ""  # the Ray task that it is at, if it is no actor
    threads: tuple[ThreadFacts, ...] = ()
    groups: tuple[GroupFacts, ...] = ()
    call: Document = field(default_factory=dict)  # the call of torch.distributed that it is in
    locks: tuple[LockWait, ...] = ()
    waits: tuple[CallWait, ...] = ()
    lookups: tuple[Lookup, ...] = ()
    ended: tuple[Ended, ...] = ()
    caught: tuple[Caught, ...] = ()
    inner: tuple[InnerWait, ...] = ()
    polls: tuple[Poll, ...] = ()
    environments: tuple[EnvironmentWait, ...] = ()  # the oldest first
    engine: EngineWait | None = None
    searches: tuple[Search, ...] = ()  # the oldest first
    standing: tuple[Standing, ...] = ()
    turning: tuple[Turn, ...] = ()
    keeps: Values = ()  # the attributes of its actor
    growing: Mapping[str, Growing] = field(default_factory=dict)  # by method of its actor
    models: tuple[Model, ...] = ()  # among them
    wrote: tuple[Wrote, ...] = ()  # at the end of its outputs
    coroutines: int = 0  # asyncio tasks of the program that wait for something
    running: tuple[str, ...] = ()  # names of those that are at work right now: a new one is another call
    actor_id: str = ""  # empty: it is no actor
    concurrency: int = 0  # how many calls its actor takes at once; 0: not known
    grouped: bool = False  # calls of some of its methods take slots of their own
    method_groups: Mapping[str, str] = field(default_factory=dict)  # the concurrency groups of those, by their names
    stopped: bool = False  # by a debugger
    parent: int = 0  # pid of the process of the job that it descends from; 0: of none
    age: float | None = None  # of a child: seconds since it was begun, where that is known
    orphaned: bool = False  # who started it, a shell for one, has ended
    fork: Fork | None = None  # it was forked, and has executed no other program since
    command: str = ""  # of another program
    unanswered: tuple[tuple[str, int], ...] = ()  # addresses that do not acknowledge what is sent, and the tries
    pipes: Mapping[str, str] = field(default_factory=dict)  # whose ends it has: "r", "w" or "rw"
    sockets: frozenset[str] = frozenset()  # its TCP addresses
    files: frozenset[str] = frozenset()  # that are locked through it
    halts: tuple[Halt, ...] = ()  # the processes that it has stopped by a signal

    @property
    def title(self) -> str:
        """What it is called in a sentence: its role, or the task that it is at."""
        return task_role(self.role, self.task)

    @property
    def who(self) -> Who:
        return Who(self.title, self.rank, self.id)

    @property
    def unlisted(self) -> GroupFacts | None:
        """The group that it waits in with others of which torch.distributed does not tell who they are."""
        return next((group for group in self.groups if not group.ranks and group.waiting), None)

    @property
    def thread(self) -> ThreadFacts | None:
        """The one that works; of a program that is not ours to look into, its main one."""
        name = self.stack.thread.partition(" #")[0] or (MAIN if self.command else "")
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
    parent: str = ""  # of a task, the id of the one that started it


@dataclass(frozen=True)
class Holder:
    """A living actor or a task that runs, and what it holds while others wait."""

    name: str
    job_id: str
    ended: bool  # its job has: a detached actor outlives it
    resources: Mapping[str, float]
    kind: str = "actor"
    place: str = ""  # the actor's id, or that of the process that runs the task
    task: str = ""  # the task's id
    empty: bool = False  # a placement group in which no actor and no task is


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
    kind: str = ""  # "exit": the end of a process
    misfit: str = ""  # what did not fit in its line


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
    held_up: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by actor: calls without their arguments
    unsent: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict
    )  # by actor with such: calls that are not sent yet
    queued: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by actor: calls that it has not begun
    tasks: Mapping[str, frozenset[str]] = field(default_factory=dict)  # by process: tasks of Ray that run in it
    untold: bool = False  # Ray's tables did not answer: of calls and of what is pending nothing is known
