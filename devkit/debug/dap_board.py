"""The breakpoints of a parent session: armed in the whole job through the hub, and told to the editor as they change.

Its children arm nothing: they answer from here, in the numbers that the parent has given.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from devkit.debug import dap_wanted
from devkit.debug.dap_cluster import DapHub
from devkit.debug.dap_loop import Loop
from devkit.debug.dap_wanted import Bounds, Wanted
from devkit.debug.inworker.records import Breakpoint
from devkit.debug.protocols import Document
from devkit.errors import DevkitError, UsageError

ARM_SECONDS = 2.0  # that a set of breakpoints waits for a worker that is busy; it arms it when it can
CLEAR_SECONDS = 3.0
COMMANDS = ("setBreakpoints", "setFunctionBreakpoints")
_AT_ONCE = 16
Result = TypeVar("Result")
Next = Callable[[], None]


@dataclass(frozen=True)
class Entry:
    """A breakpoint that the editor has, and what became of it."""

    point: Breakpoint | None = None
    problem: str = ""  # why there is no point, or why it could not be posted
    state: Document | None = None  # what the hub says of it

    def to_json(self, number: int, line: int) -> Document:
        document: Document = {"id": number, "verified": bool(self.state and self.state.get("armed"))}
        if line:
            document["line"] = line
        if self.problem:
            return document | {"verified": False, "message": self.problem}
        return document | {"message": words(self.state) if self.state else "it will be armed once the job has started"}


class Board:
    """Used in the loop of the parent's session. One change after the other goes to the hub, in the editor's order."""

    def __init__(self, loop: Loop, bounds: Bounds, tell: Callable[[Document], None]) -> None:
        self.bounds = bounds
        self.listeners: list[Callable[[Document], None]] = []  # of children: called when one is armed, or no more
        self._loop, self._tell = loop, tell
        self._hub: Callable[[], DapHub] | None = None  # none before there is a job
        self._entries: dict[Wanted, Entry] = {}
        self._groups: dict[str, list[Wanted]] = {}  # by file; "" are those by name
        self._numbers: dict[Wanted, int] = {}
        self._count = itertools.count(1)
        self._told: dict[int, Document] = {}
        self._is_checking = False
        self._unwanted: set[str] = set()  # taken away before the job had told of them
        self._changes: deque[Callable[[Next], None]] = deque()
        self._is_changing = False

    # ---- from the editor

    def set(self, command: str, arguments: Mapping[str, Any], done: Callable[[list[Document]], None]) -> None:
        """Replaces the breakpoints of a file, or those by name. Those that stay are not touched."""
        wanted = dap_wanted.read(command, arguments)
        group = str((arguments.get("source") or {}).get("path") or "") if command == COMMANDS[0] else ""

        def change(then: Next) -> None:
            before, bounds = dict(self._entries), self.bounds
            old = {each: before[each] for each in self._groups.get(group, ())}
            hub = self._hub() if self._hub else None

            def finish(entries: dict[Wanted, Entry]) -> None:
                self._groups[group] = list(entries)
                rest = {each: entry for each, entry in self._entries.items() if each not in old}
                self._entries = rest | {each: _newer(self._entries.get(each), entry) for each, entry in entries.items()}
                documents = [self._document(each) for each in wanted]
                self._told |= {document["id"]: document for document in documents}
                done(documents)
                self._tell_children(documents)
                self._tell_changes()
                then()

            # What can't be read or reached is said of each breakpoint; nothing is raised.
            self._loop.background(lambda: _replace(wanted, before, old, bounds, hub), finish, lambda error: then())

        self._add(change)

    def ask(self, command: str, arguments: Mapping[str, Any], done: Callable[[list[Document]], None]) -> None:
        """What there is of the breakpoints that a child was told of, after all that was asked before."""
        wanted = dap_wanted.read(command, arguments)

        def answer(then: Next) -> None:
            done([self._document(each) for each in wanted])
            then()

        self._add(answer)

    def numbers_of(self, name: str) -> list[int]:
        """The editor's numbers of a breakpoint that was hit."""
        hit = [each for each, entry in self._entries.items() if entry.point and entry.point.id == name]
        return [self._numbers[each] for each in hit]

    def points(self) -> list[Breakpoint]:
        return [entry.point for entry in self._entries.values() if entry.point]

    def when_settled(self, call: Callable[[list[Breakpoint]], None]) -> None:
        """Calls with the breakpoints that there are, after all that was asked before."""

        def change(then: Next) -> None:
            call(self.points())
            then()

        self._add(change)

    # ---- the job

    def join(self, hub: Callable[[], DapHub], given: Sequence[str] = (), job: str | None = None) -> None:
        """From now on there is a job; the breakpoints of these ids came with it, the others are posted."""
        self._hub = hub
        if job is not None:
            self.bounds = replace(self.bounds, job=job)
        self.post(given)

    def post(self, given: Sequence[str] = ()) -> None:
        """Tells the hub of all but these: one that is new may have heard of none."""

        def change(then: Next) -> None:
            assert self._hub is not None
            hub, job = self._hub(), self.bounds.job
            self._unwanted |= set(given) - {point.id for point in self.points()}
            entries = {
                each: replace(entry, point=replace(entry.point, job_id=job))
                for each, entry in self._entries.items()
                if entry.point and entry.point.id not in given
            }

            def finish(posted: list[Entry]) -> None:
                self._entries |= dict(zip(entries, posted, strict=True))
                self._tell_changes()
                then()

            self._loop.background(
                lambda: together([lambda entry=entry: _posted(entry, hub) for entry in entries.values()]),  # type: ignore[misc]
                finish,
                lambda error: then(),
            )

        self._add(change)

    def on_ps(self, ps: Document) -> None:
        """How the breakpoints stand now."""
        if self._hub is None:
            return
        states = _states(ps)
        if self._note(states) and not self._is_checking:
            self._is_checking = True
            self._add(self._check)
        if late := self._unwanted & states.keys():
            self._unwanted -= late
            self._clear(list(late))
        if not self._is_changing:
            self._tell_changes()

    def _note(self, states: Mapping[str, Document]) -> list[Wanted]:
        """Takes what the hub says. Returns the breakpoints of which it says nothing, though it was told of them."""
        for each, entry in self._entries.items():
            if entry.point is not None and entry.point.id in states:
                self._entries[each] = replace(entry, state=states[entry.point.id], problem="")
        posted = ((each, entry) for each, entry in self._entries.items() if entry.state is not None and entry.point)
        return [each for each, entry in posted if entry.point and entry.point.id not in states]

    def _check(self, then: Next) -> None:
        """Those that are missing were posted after the news were written, or somebody has removed them: it is asked."""
        assert self._hub is not None
        hub = self._hub()

        def finish(ps: Document) -> None:
            self._is_checking = False
            for each in self._note(_states(ps)) if ps else ():
                self._entries[each] = Entry(problem="it was removed elsewhere (devkit break --clear)")
            self._tell_changes()
            then()

        self._loop.background(lambda: hub.call("ps"), finish, lambda error: finish({}))

    def close(self, done: Callable[[], None]) -> None:
        """Takes all of them away from the job; what others set stays."""
        names = [point.id for point in self.points()]
        self._entries, self._groups = {}, {}
        self._clear(names)

        def last(then: Next) -> None:
            done()
            then()

        self._add(last)

    def _clear(self, names: Sequence[str]) -> None:
        hub = self._hub
        if not names or hub is None:
            return

        def change(then: Next) -> None:
            there = hub()
            calls = [lambda name=name: _cleared(name, there) for name in names]
            self._loop.background(lambda: together(calls), lambda _: then(), lambda error: then())

        self._add(change)

    def _add(self, change: Callable[[Next], None]) -> None:
        self._changes.append(change)
        if not self._is_changing:
            self._next()

    def _next(self) -> None:
        self._is_changing = bool(self._changes)
        if self._changes:
            self._changes.popleft()(self._next)

    # ---- what is told

    def _document(self, wanted: Wanted) -> Document:
        number = self._numbers.get(wanted) or self._numbers.setdefault(wanted, next(self._count))
        entry = self._entries.get(wanted, Entry(problem="the session of the job does not have it"))
        return entry.to_json(number, wanted.line)

    def _tell_changes(self) -> None:
        documents = [self._document(each) for each in self._entries]
        changed = [each for each in documents if self._told.get(each["id"], each) != each]
        for document in changed:
            self._tell(document)
        self._tell_children(changed)
        self._told |= {document["id"]: document for document in changed}

    def _tell_children(self, documents: Sequence[Document]) -> None:
        for document in documents:
            for listener in list(self.listeners):
                listener(document)


def _states(ps: Document) -> dict[str, Document]:
    return {state["id"]: state for state in ps.get("breakpoints", ())}


def words(state: Document) -> str:
    """How far a breakpoint has come.

    >>> words({"armed": 3, "workers": 8}), words({"armed": 0, "workers": 8, "note": "module not loaded yet"})
    ('armed in 3 of 8', 'module not loaded yet')
    """
    armed = int(state.get("armed", 0))
    text = f"armed in {armed} of {state.get('workers', 0)}"
    if state.get("error"):
        return f"{text}; its condition failed and was ignored: {state['error']}"
    return text if armed or not state.get("note") else str(state["note"])


def _replace(
    wanted: Sequence[Wanted],
    before: Mapping[Wanted, Entry],
    old: Mapping[Wanted, Entry],
    bounds: Bounds,
    hub: DapHub | None,
) -> dict[Wanted, Entry]:
    """Those that stay as they are, and new ones, made and posted; then the others are taken away. Blocks."""
    kept = {each: entry for each in wanted if (entry := _kept(each, before)) is not None}
    fresh = {each: _made(each, bounds) for each in dict.fromkeys(wanted) if each not in kept}
    if hub is not None:
        posts = [lambda entry=entry: _posted(entry, hub) for entry in fresh.values()]
        fresh = dict(zip(fresh, together(posts), strict=True))
        gone = [entry.point.id for each, entry in old.items() if entry.point and each not in kept]
        together([lambda name=name: _cleared(name, hub) for name in gone])  # type: ignore[misc]
    return {each: kept.get(each) or fresh[each] for each in wanted}


def _newer(known: Entry | None, entry: Entry) -> Entry:
    """News may have come of one that stays."""
    same = (
        known is not None and known.point is not None and entry.point is not None and known.point.id == entry.point.id
    )
    return known if known is not None and same else entry


def _kept(wanted: Wanted, before: Mapping[Wanted, Entry]) -> Entry | None:
    entry = before.get(wanted)
    is_good = entry is not None and entry.point is not None and not entry.problem
    if not is_good or entry is None or entry.point is None:
        return None
    return entry if not wanted.path or dap_wanted.same_text(entry.point, wanted.path) else None


def _made(wanted: Wanted, bounds: Bounds) -> Entry:
    try:
        return Entry(dap_wanted.make(wanted, bounds))
    except UsageError as error:
        return Entry(problem=f"{error.message} ({error.hint})" if error.hint else error.message)
    except (ValueError, RecursionError) as error:  # of a file that Python's parser gives up at
        return Entry(problem=f"{wanted.path or wanted.name} can't be read: {error}")


def _posted(entry: Entry, hub: DapHub) -> Entry:
    if entry.point is None:
        return entry
    try:
        state = hub.call("break", breakpoint=entry.point.to_json(), wait=ARM_SECONDS, timeout=ARM_SECONDS + 2.0)
    except DevkitError as error:
        return replace(entry, problem=f"it could not be armed: {error.message}", state=None)
    return replace(entry, problem="", state=state)


def _cleared(name: str, hub: DapHub) -> None:
    with suppress(DevkitError):  # somebody else was faster, or there is no hub: then there is nobody to tell
        hub.call("clear", id=name, timeout=CLEAR_SECONDS)


def together(calls: Sequence[Callable[[], Result]]) -> list[Result]:
    """The results of calls that wait, all at once."""
    if not calls:
        return []
    with ThreadPoolExecutor(min(len(calls), _AT_ONCE), thread_name_prefix="devkit-dap-call") as pool:
        return list(pool.map(lambda call: call(), calls))
