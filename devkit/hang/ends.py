"""Who is at the other end of the connection or the pipe that a process waits on, or holds the lock of a file. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from devkit.debug.stack_groups import CHILD
from devkit.hang import lines, words
from devkit.hang.case import Case
from devkit.hang.facts import FarEnd
from devkit.hang.records import NamedThread
from devkit.hang.states import ACCEPTS, OF_A_CHILD, State

MOST = 4  # hops that are told
_TCP = re.compile(r"TCP (?P<local>\S+) (?:to (?P<remote>\S+)|\(listening\))")
_LOCKS = ("flock", "fcntl")
_ANYWHERE = ("0.0.0.0", "[::]", "::")
_OF_THE_NODE = re.compile(r"127\.|\[?::1\]?$|\[?::ffff:127\.")  # the same address is another place on each node
_SILENT = ", which waits for data from it, too: what either has written may still lie in a buffer of its own"
_RUNS = re.compile(r"<(Popen|[A-Za-z]*Process)\b.* pid (?P<pid>\d+), running>$")
_LISTENS = re.compile(r"TCP \S+ \(listening\)")


class Hop(NamedTuple):
    """Who has the other end, or the lock, and the words for that."""

    state: State
    has: str  # with {} for who it is
    is_lock: bool = False
    does: str = ""  # where it is known better than by its state
    thread: str = ""  # which of its threads does that

    @property
    def owned(self) -> str:
        """With the name; that of a child has a comma in it, behind which `'s` could not be read."""
        who = words.name(self.state)
        if not who.startswith(CHILD):
            return self.has.format(who)
        has = self.has.replace(" is {}'s", " belongs to {}").replace("(and that of others)", "(and to others)")
        return has.format(f"a {who}")


class Line(NamedTuple):
    """From one who waits on somebody's I/O to who does not."""

    hops: tuple[Hop, ...]
    closed: bool = False  # the last one waits for who was first
    silent: bool = False  # the last one, at rest, waits for data from who waits for data from it
    knot: tuple[State, ...] = ()  # all who have the other end of the last one's pipe, where none of them can go on
    far: tuple[FarEnd, ...] = ()  # the processes, without devkit, that have the other end of the last one's pipe

    @property
    def last(self) -> State | None:
        """The last one that stands at a line of the program, and that is no server at rest."""
        standing = (hop.state for hop in reversed(self.hops) if hop.state.place and not is_server(hop.state))
        return next(standing, None)

    @property
    def threads(self) -> tuple[NamedThread, ...]:
        return tuple(
            NamedThread(hop.state.facts.node_ip, hop.state.facts.pid, hop.thread) for hop in self.hops if hop.thread
        )

    def __str__(self) -> str:
        hops = [f"{hop.owned}, {hop.does or f'which {_does(hop.state)}'}" for hop in self.hops]
        if self.silent:
            hops[-1] = self.hops[-1].owned + _SILENT
        closed = ": they wait for each other" if self.closed else ""
        return "".join(f"; {hop}" for hop in hops) + _knotted(self.knot) + closed + _far(self.far)

    def of(self, alike: Sequence[State], first: State) -> str:
        """Behind the names of several that wait for the like: whose other end that is."""
        text = str(self)
        if len(alike) == 1:
            return text
        who = words.name(first)
        text = text.replace("; that is ", f"; that of {who} is ", 1) if text.startswith("; that is ") else text
        return text.replace("; its other end", f"; of {who}, the other end", 1)


def _far(found: Sequence[FarEnd]) -> str:
    """
    >>> _far([FarEnd(7, "tail -c 9", True), FarEnd(8, "cat", False)])
    '; its other end is open in `tail -c 9` (pid 7), which lives on though its parent has ended, and in `cat` (pid 8)'
    """
    orphaned = ", which lives on though its parent has ended"
    told = [f"in `{each.command}` (pid {each.pid}){orphaned * each.orphan}" for each in found]
    return f"; its other end is open {', and '.join(told)}" if told else ""


def _knotted(found: Sequence[State]) -> str:
    """Where several have it, as forked children do that inherit what is open."""
    if not found:
        return ""
    who, one = words.named(found), len(found) == 1
    waits = f"{'waits' if one else 'wait'} {words.io(found[0])}{words.at(found[0])}"
    return f"; its other end is open only in {who}, which {waits}, and nobody else has the other end of that"


def is_server(state: State) -> bool:
    """Whether it waits for others to connect, which is a server's rest and seldom a cause."""
    return state.doing == "io" and (state.about.startswith(ACCEPTS) or bool(_LISTENS.search(state.about)))


def follow(case: Case, state: State) -> Line:
    """Who is at the other end, at the other end of what that one waits on, and so on; empty where that is not known."""
    hops: list[Hop] = []
    seen, at = [state], state
    while len(hops) < MOST and (hop := _hop(case, at)) is not None:
        if hop.state in seen:
            return Line(tuple(hops), closed=hop.state is state)
        hops.append(hop)
        seen.append(hop.state)
        if _reads(at) and hop.state.doing == "idle" and _reads(hop.state) and _at_its_pipes(case, hop.state) is at:
            return Line(tuple(hops), silent=True)
        at = hop.state
    if knot := _knot(case, at):
        return Line(tuple(hops), closed=at is state, knot=knot)
    return Line(tuple(hops), far=_without_devkit(case, at))


def _knot(case: Case, state: State) -> tuple[State, ...]:
    """Who has the other end of a pipe, if each of these waits on a pipe, too, of which nobody has the other end who is
    not one of them, or that one itself: nothing can come from outside.
    """
    first = _others_at(case, state)
    inside, waiting = {state.facts.id}, list(first)
    while waiting:
        each = waiting.pop()
        if each.facts.id in inside:
            continue
        inside.add(each.facts.id)
        ends = _others_at(case, each)
        if not ends:
            return ()
        waiting += ends
    return first


def _others_at(case: Case, state: State) -> tuple[State, ...]:
    """All who could give to a pipe that a process waits to read from, or take from one that it waits to write to; empty
    where a process without devkit could as well, or where that is not known.
    """
    thread = state.facts.thread
    if state.doing != "io" or state.moved or state.works_beside or thread is None:
        return ()
    wanted = {"read": "w", "write": "r"}.get(thread.call) if len(thread.pipes) == 1 else None
    near = [] if _without_devkit(case, state) else _neighbours(case, state)
    return tuple(each for each in near if wanted and wanted in each.facts.pipes.get(thread.pipes[0], ""))


def _without_devkit(case: Case, state: State) -> tuple[FarEnd, ...]:
    thread = state.facts.thread
    if state.doing != "io" or state.moved or thread is None:
        return ()
    known = {each.facts.pid for each in _neighbours(case, state)}
    return tuple(each for each in thread.far if each.pid not in known)


def _reads(state: State) -> bool:
    thread = state.facts.thread
    return thread is not None and thread.call == "read" and bool(thread.pipes)


def _hop(case: Case, state: State) -> Hop | None:
    if state.doing != "io" or state.moved or is_server(state):
        return None
    if (child := _child(case, state)) is not None:
        return Hop(child, "that is {}")
    if (found := _TCP.search(state.about)) and found["remote"]:
        owner = _owner(case, state, found["remote"])
        if owner is None:
            return None
        server, does = _serves(case, owner, found["remote"], state)
        return Hop(owner, f"{found['remote']} is {{}}'s", does=does, thread=server)
    thread = state.facts.thread
    if thread is not None and thread.call in _LOCKS:
        holder = _only([each for each in _neighbours(case, state) if thread.target in each.facts.files])
        return Hop(holder, "{} holds it", is_lock=True) if holder else None
    end = _at_its_pipes(case, state)
    alone = end is not None and not _without_devkit(case, state) and len(_who_may(case, state)) < 2
    return Hop(end, f"its other end is {{}}'s{'' if alone else ' (and that of others)'}") if end else None


def _child(case: Case, state: State) -> State | None:
    """For whose end it waits, where the line at which it stands shows just one process, and that one stands."""
    if not state.about.endswith(OF_A_CHILD):
        return None
    values = (value for stack in lines.at_place(state) for _, value in stack.lines[0].values)
    pids = {int(found["pid"]) for value in values if (found := _RUNS.match(value))}
    child = _only([each for each in _neighbours(case, state) if {each.facts.pid} == pids and case.is_child(each)])
    return child if child is not None and child.place and not child.moved else None


def _serves(case: Case, owner: State, address: str, asks: State) -> tuple[str, str]:
    """Of a server without a line of the program, which of its threads hears somebody else just then, and whom."""
    if owner.doing != "idle":
        return "", ""
    for thread in owner.facts.threads:
        found = _TCP.search(thread.target)
        if found and found["remote"] and _is_one(found["local"], address, owner.facts.node_ip):
            near = [each for each in case.states if each is not owner and _is_near(found["remote"], owner, each)]
            heard = _only([each for each in near if _has(each, found["remote"])])
            if heard is not None and heard is not asks:
                alone = ", and serves no other connection meanwhile" if thread.serves else ""
                return thread.name, f"whose thread {thread.name} waits for data from {words.name(heard)}{alone}"
    return "", ""


def _neighbours(case: Case, state: State) -> list[State]:
    """Other processes of its node."""
    return [each for each in case.states if each is not state and each.facts.node_ip == state.facts.node_ip]


def _owner(case: Case, state: State, address: str) -> State | None:
    """Whose an address is: of those who have it, forked children among them, the one that waits there."""
    near = [each for each in case.states if each is not state and _is_near(address, state, each)]
    waiting = [each for each in near if _waits_at(each, address)]
    return _only(waiting) or _only([each for each in near if _has(each, address)])


def _at_its_pipes(case: Case, state: State) -> State | None:
    """Who is at the other end of a pipe that it waits on."""
    thread = state.facts.thread
    return next((end for pipe in (thread.pipes if thread else ()) if (end := _at_pipe(case, state, pipe))), None)


def _who_may(case: Case, state: State) -> list[State]:
    """All who have the other end of a pipe that it waits on, forked children that inherited it among them."""
    pipes = state.facts.thread.pipes if state.facts.thread else ()
    wanted = {pipe: {"r": "w", "w": "r"}.get(state.facts.pipes.get(pipe, ""), "") for pipe in pipes}
    has = (
        (one, one.facts.pipes.get(pipe, ""), end) for one in _neighbours(case, state) for pipe, end in wanted.items()
    )
    return list({one.facts.id: one for one, mode, end in has if mode and end in mode}.values())


def _at_pipe(case: Case, state: State, pipe: str) -> State | None:
    """Who has the end that a process does not have, or may have as well."""
    mine = state.facts.pipes.get(pipe, "")
    wanted = {"r": "w", "w": "r"}.get(mine, "")
    others = _neighbours(case, state)
    return _only([each for each in others if wanted in (mode := each.facts.pipes.get(pipe, "")) and mode])


def _only(states: list[State]) -> State | None:
    """The one; of several the one that has something to do. None where several may be meant."""
    busy = [each for each in states if each.doing != "idle"]
    return states[0] if len(states) == 1 else busy[0] if len(busy) == 1 else None


def _is_near(address: str, state: State, other: State) -> bool:
    """Whether both mean the same place by an address."""
    return state.facts.node_ip == other.facts.node_ip or not _OF_THE_NODE.match(address)


def _waits_at(owner: State, address: str) -> bool:
    targets = (_TCP.search(thread.target) for thread in owner.facts.threads)
    return any(found is not None and _is_one(found["local"], address, owner.facts.node_ip) for found in targets)


def _has(owner: State, address: str) -> bool:
    return any(_is_one(own, address, owner.facts.node_ip) for own in owner.facts.sockets)


def _is_one(own: str, address: str, node_ip: str) -> bool:
    """Whether a process's socket is at this address: its own, or at all addresses of its node.

    >>> _is_one("0.0.0.0:80", "10.0.0.1:80", "10.0.0.1"), _is_one("127.0.0.1:80", "10.0.0.1:80", "10.0.0.1")
    (True, False)
    """
    host, _, port = own.rpartition(":")
    wanted, _, number = address.rpartition(":")
    here = host == wanted or (host in _ANYWHERE and (wanted == node_ip or bool(_OF_THE_NODE.match(wanted))))
    return port == number and here


def _does(state: State) -> str:
    if state.is_late:
        return words.LATE
    if state.moved or state.doing == "busy":
        return "is working"
    if state.doing == "io":
        return f"waits {words.io(state)}{words.at(state)}"
    if state.doing == "collective":
        return f"waits in {state.facts.call.get('op') or 'a collective'}{words.at(state)}"
    return f"{words.rests(state) if state.doing == 'idle' else words.does(state)}{words.at(state)}"
