"""A session of `devkit attach`: the ranks in it, who is spoken to, and what the workers tell by themselves.

What the commands do stands in `terminal_look.py` and `terminal_move.py`; this keeps the state that they share.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from devkit.debug.dap_peer import Peers, Reply, Request
from devkit.debug.grouping import group
from devkit.debug.inworker.records import StopRecord
from devkit.debug.naming import Who, label, name_members
from devkit.debug.protocols import Document, Hub
from devkit.debug.targets import select
from devkit.errors import DeadlineError, DevkitError, UsageError
from devkit.reading import read_source

if TYPE_CHECKING:
    from rich.text import Text

    from devkit.debug.terminal_screen import Screen

ANSWER_SECONDS = 10.0
REASON_SECONDS = 4.0
HELLO = {
    "adapterID": "devkit",
    "clientID": "devkit",
    "clientName": "devkit attach",
    "pathFormat": "path",
    "linesStartAt1": True,
    "columnsStartAt1": True,
}
Key = TypeVar("Key", bound=Hashable)
State = Literal["stopped", "running", "gone"]


@dataclass(frozen=True)
class Frame:
    """One frame of a stopped thread."""

    id: int
    function: str
    path: str
    line: int
    source_reference: int = 0
    subtle: bool = False  # what started the program's code, and not the code itself


@dataclass
class Member:
    """One stopped thread that this session looks at."""

    record: StopRecord
    peer: str
    thread_id: int
    state: State = "stopped"
    reason: str = ""
    frames: tuple[Frame, ...] = ()  # innermost first; empty until asked for
    index: int = 0  # the frame that is looked at
    lost: bool = False  # its process went away while it was stopped

    @property
    def who(self) -> Who:
        return Who(self.record.role, self.record.rank, self.record.id)

    @property
    def frame(self) -> Frame:
        return self.frames[self.index]


@dataclass
class Session:
    """State of one debugger in one terminal. Every method that waits has a deadline.

    Each stop has a channel of its own, which is narrowed to it; `control` gives one of a whole worker.
    """

    hub: Hub
    screen: Screen
    follows: Callable[[StopRecord], bool] = lambda _: False  # whether a stop that is new joins
    seconds: float = ANSWER_SECONDS
    members: list[Member] = field(default_factory=list)
    selected: set[str] | None = None  # peers; None: all
    newcomers: dict[str, StopRecord] = field(default_factory=dict)  # stops that may join
    breakpoints: list[Document] = field(default_factory=list)  # {number, path, line, function, condition, once}
    listed: dict[tuple[str, int], int] = field(default_factory=dict)  # path and line looked at -> last line shown
    ended: Callable[[], bool] = lambda: False  # whether nobody can type any more

    def __post_init__(self) -> None:
        self.peers = Peers(self._on_event, self._on_gone)
        self._expected: dict[str, StopRecord] = {}  # peer -> the stop that it is for, until that is told
        self._known: set[str] = set()  # ids of stops
        self._sources: dict[tuple[str, str], list[str]] = {}
        self._reasons: dict[str, str] = {}  # why stops have ended, by their ids
        self._explained: set[str] = set()

    # ---- beginning and end

    def open(self, records: Sequence[StopRecord]) -> None:
        """Attaches to these stops, all at once. Raises DeadlineError when none of them answers."""
        threading.Thread(target=_watch, args=(self.hub, self.peers), daemon=True).start()
        self._join(records)
        if not self.members:
            raise DeadlineError("no stopped rank answered", hint="devkit ps shows what became of them")

    def admit(self) -> list[Member]:
        """Lets those join that have stopped since."""
        records, self.newcomers = list(self.newcomers.values()), {}
        before = len(self.members)
        self._join(records)
        joined = self.members[before:]
        if joined:
            self.screen.notice(f"{self.name(joined)} stopped too")
        self.members.sort(key=lambda one: (one.record.role, -1 if one.record.rank is None else one.record.rank))
        return joined

    def _join(self, records: Sequence[StopRecord]) -> None:
        for record in records:
            self._known.add(record.id)
            try:
                self.peers.add(record.id, self.hub.channel(record.worker_id, only=record.id))
            except DevkitError as error:
                self.screen.notice(f"{_label(record)}: {error.message}")
            else:
                self._expected[record.id] = record
        here = [record.id for record in records if record.id in self._expected]
        self._greet(here, "configurationDone")
        self.peers.wait(lambda: not self.peers.alive.intersection(self._expected), self.seconds)
        for record in self._expected.values():
            self.screen.notice(f"{_label(record)} {record.id} has not answered")
        self._expected.clear()

    def _greet(self, peers: Sequence[str], *then: str) -> None:
        """The words that begin a session of the protocol."""
        self._demand({peer: Request(peer, "initialize", HELLO) for peer in peers})
        words = {(peer, "attach"): Request(peer, "attach", {"justMyCode": False}) for peer in peers if then}
        self._demand(words | {(peer, word): Request(peer, word) for peer in peers for word in then})

    def _demand(self, requests: Mapping[Key, Request]) -> None:
        for key, reply in self.peers.gather(requests, self.seconds).items():
            if reply.error is not None and requests[key].peer in self._expected:
                self.screen.notice(f"{_label(self._expected[requests[key].peer])}: {reply.error}")

    def controls(self) -> dict[str, str]:
        """A peer for each whole worker: for its threads, and for breakpoints, which live as long as the session."""
        workers = {one.record.worker_id for one in self.members if one.state != "gone"}
        names = {worker: f"worker {worker}" for worker in sorted(workers)}
        new = {worker: name for worker, name in names.items() if name not in self.peers.alive}
        for worker, name in new.items():
            self.peers.add(name, self.hub.channel(worker))
        self._greet(list(new.values()))
        return names

    def wait_for_reasons(self) -> None:
        """The hub needs a moment to find out why a process is gone."""
        lost = {one.record.id for one in self.members if one.lost}
        self.peers.wait(lambda: lost <= self._explained, REASON_SECONDS)

    def is_over(self) -> bool:
        return all(one.state == "gone" for one in self.members)

    def close(self) -> None:
        """Leaves; what is stopped stays stopped."""
        self.peers.close()

    # ---- who is spoken to

    def everyone(self) -> list[Who]:
        return [member.who for member in self.members]

    def chosen(self) -> list[Member]:
        """Those who are spoken to, and are still there."""
        picked = [one for one in self.members if self.selected is None or one.peer in self.selected]
        return [one for one in picked if one.state != "gone"]

    def stopped(self) -> list[Member]:
        """Those who can be asked now; a word about the others. Raises UsageError when that is nobody."""
        chosen = self.chosen()
        running = [one for one in chosen if one.state == "running"]
        stopped = [one for one in chosen if one.state == "stopped"]
        if running and not stopped:
            raise UsageError(f"{self.name(running)} runs", hint="type wait for the next stop, or q to quit")
        if running:
            self.screen.notice(f"{self.name(running)} still running: type wait to wait for it")
        return stopped

    def narrow(self, text: str) -> None:
        """`ranks 0,2:4`, or all."""
        if not text or text == "all":
            self.selected = None
        else:
            peers = {one.record.id: one.peer for one in self.members if one.state != "gone"}
            here = [one.record for one in self.members if one.state != "gone"]
            self.selected = {peers[record.id] for record in select(here, text)}

    def name(self, members: Iterable[Member]) -> str:
        return name_members([one.who for one in members], self.everyone())

    def prompt(self) -> str:
        chosen = self.chosen()
        return f"(devkit {self.name(chosen)}) " if chosen else "(devkit) "

    # ---- asking

    def ask(
        self, members: Sequence[Member], command: str, arguments: Callable[[Member], Mapping[str, Any]]
    ) -> list[tuple[Member, Reply]]:
        """One request to each, and all the answers."""
        requests = {number: Request(one.peer, command, arguments(one)) for number, one in enumerate(members)}
        replies = self.peers.gather(requests, self.seconds)
        return [(one, replies[number]) for number, one in enumerate(members)]

    def with_frames(self, members: Sequence[Member]) -> list[Member]:
        """Those whose stack is known, after asking for what is missing."""
        missing = [one for one in members if not one.frames]
        for one, reply in self.ask(missing, "stackTrace", lambda one: {"threadId": one.thread_id}):
            one.frames = tuple(_frame(document) for document in reply.body.get("stackFrames", ()))
            if not one.frames:
                self.screen.notice(f"{self.name([one])}: no stack: {reply.error or 'it has ended'}")
        return [one for one in members if one.frames]

    def source(self, member: Member, frame: Frame) -> list[str]:
        """The lines of a frame's file: as the worker has it, else as it is here; empty when nobody has it."""
        name = (member.record.worker_id, frame.path)
        if name not in self._sources:
            source = {"path": frame.path, "sourceReference": frame.source_reference}
            arguments = {"source": source, "sourceReference": frame.source_reference}
            [(_, reply)] = self.ask([member], "source", lambda _: arguments)
            self._sources[name] = str(reply.body.get("content") or _local_text(frame.path)).splitlines()
        return self._sources[name]

    def answer(self, answers: Iterable[tuple[Member, Text]]) -> None:
        """Prints what each said, equal answers once."""
        told = list(answers)
        texts = {text.plain: text for _, text in reversed(told)}
        groups = group((one.who, text.plain) for one, text in told)
        alone = len(self.members) == 1
        names = [name_members(each.members, self.everyone()) for each in groups]
        for each, name in zip(groups, names, strict=True):
            self.screen.answer("" if alone else name, texts[each.key], column=max(map(len, names)))

    # ---- what the workers and the hub tell

    def _on_event(self, peer: str, message: Document) -> None:
        body = message.get("body") or {}
        event = message.get("event")
        if event == "stopped":
            self._on_stopped(peer, body)
        elif event == "continued":
            self._on_ran_on(peer, body)
        elif event == "news":
            self._on_news(body)
        elif event == "output" and body.get("output"):
            named = [one for one in self.members if one.peer == peer]
            self.screen.notice(f"{self.name(named) or peer}: {str(body['output']).rstrip()}")
        elif event in ("terminated", "exited"):
            self._on_gone(peer)

    def _on_stopped(self, peer: str, body: Document) -> None:
        thread = int(body.get("threadId", 0))
        reason = str(body.get("text") or body.get("description") or body.get("reason") or "")
        record = self._expected.pop(peer, None)
        member = self._find(peer, thread)
        if record is not None:
            self.members.append(Member(record, peer, thread, reason=reason))
        elif member is not None:
            member.state, member.reason, member.frames, member.index = "stopped", reason, (), 0

    def _on_ran_on(self, peer: str, body: Document) -> None:
        member = self._find(peer, int(body.get("threadId", 0)))
        if member is not None and member.state == "stopped":
            member.state = "running"
            self.screen.notice(f"{self.name([member])} was resumed, elsewhere or by its timeout")

    def _on_gone(self, peer: str) -> None:
        lost = [one for one in self.members if one.peer == peer and one.state != "gone"]
        name = self.name(lost)
        for one in lost:
            one.lost, one.state = one.state == "stopped", "gone"
        if lost:
            self.screen.notice(f"{name} is gone: its process ended, or the connection to it broke")
            self._explain()

    def _on_news(self, document: Document) -> None:
        """What the hub lists now: stops that may join, new ids of those that are here, and why others are gone."""
        stops = [StopRecord.from_json(stop) for stop in document.get("stops", ())]
        new = [stop for stop in stops if stop.id not in self._known and not self._is_of_member(stop)]
        self.newcomers = {stop.id: stop for stop in new if self.follows(stop)}
        self._reasons = {end["id"]: end["reason"] for end in document.get("gone", ())}
        self._explain()

    def _explain(self) -> None:
        """Why those are gone that were stopped; the hub may know it earlier or later than we see it."""
        for one in self.members:
            name = one.record.id
            if one.lost and name in self._reasons and name not in self._explained:
                self._explained.add(name)
                self.screen.notice(f"{self.name([one])}: {self._reasons[name]}")

    def _is_of_member(self, stop: StopRecord) -> bool:
        """Whether a stop is the next one of a thread that is here: its channel shows it already."""
        for one in self.members:
            if one.state != "gone" and (one.record.worker_id, one.record.thread) == (stop.worker_id, stop.thread):
                one.record = stop
                self._known.add(stop.id)
                return True
        return False

    def _find(self, peer: str, thread: int) -> Member | None:
        return next((one for one in self.members if one.peer == peer and one.thread_id == thread), None)


def _watch(hub: Hub, peers: Peers) -> None:
    """The hub's news, on a thread of their own, until it or the client is gone."""
    try:
        for document in hub.watch():
            peers.post("news", document)
    except (OSError, DevkitError):
        return  # the channels end too, and the session says so


def _label(record: StopRecord) -> str:
    return label(Who(record.role, record.rank, record.id))


def _frame(document: Document) -> Frame:
    source = document.get("source") or {}
    return Frame(
        id=int(document["id"]),
        function=str(document.get("name") or "?"),
        path=str(source.get("path") or source.get("name") or ""),
        line=int(document.get("line") or 0),
        source_reference=int(source.get("sourceReference") or 0),
        subtle=document.get("presentationHint") == "subtle",
    )


def _local_text(path: str) -> str:
    return read_source(path) or ""  # not here, or not Python: there is no source to show
