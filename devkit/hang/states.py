"""What one process does, from two samples of it: at work, in a wait and for what, or unable to run. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from devkit.debug.inworker.words import ASLEEP
from devkit.debug.naming import is_library
from devkit.debug.stack_groups import Frame
from devkit.hang.facts import FROZEN, GroupFacts, InnerWait, LockWait, ProcessFacts, ThreadFacts
from devkit.hang.standing import Standing

Doing = Literal[
    "stopped",  # by a debugger
    "dead",
    "frozen",  # by a signal: it cannot run
    "silent",  # it runs, but its Python does not: a call holds Python's lock
    "unreachable",  # neither it nor anybody else on its node answers
    "deadlock",  # threads of it wait for each other
    "collective",  # in a collective that is not through
    "meeting",  # where a process group is made
    "ray",  # for results of others
    "lock",  # for a lock, without a circle
    "io",  # for a file, a pipe, a connection, another process
    "sleep",
    "wait",  # for a condition or an event of its own
    "busy",  # it computes, or has come to another place
    "idle",  # it is idle
]

BEGUN = "has begun a call, in no line of the program"
BUSY_SHARE = 0.1  # of a core, between the two samples: more than that is computing, and no wait
SHORT_TURN = 125e-6  # seconds on a core: beside busy ones, who looks around has 10 to 50 µs, who computes 300 and more
MANY_TURNS = 10  # between the samples
TOLD_SECONDS = 10.0  # that a sample may take
BUSY_BYTES = 1 << 19  # a second: more than what Ray and we ourselves write
IO_CALLS = frozenset(
    {
        *("read", "pread64", "readv", "write", "openat", "flock", "fcntl", "fsync"),
        *("recvfrom", "recvmsg", "sendto", "sendmsg", "accept", "accept4", "connect"),
        *("poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait", "wait4", "waitid"),
    }
)
_READ, _WRITE, ACCEPTS, _LOCK = "for data from", "to write to", "for a peer to connect to", "for the lock of"
_IO_WORDS = {  # behind "waits"
    **dict.fromkeys(("read", "pread64", "readv", "recvfrom", "recvmsg"), _READ),
    **dict.fromkeys(("write", "sendto", "sendmsg"), _WRITE),
    **dict.fromkeys(("accept", "accept4"), ACCEPTS),
    **dict.fromkeys(("flock", "fcntl"), _LOCK),
    **{"connect": "to connect over", "openat": "to open", "fsync": "for the disk to take"},
}  # of the others, such as `poll`, nobody knows what they wait for
_UNKNOWN = {"openat": "a file", "connect": "a socket"}
_WRITES = frozenset({"write", "sendto", "sendmsg"})
SLEEP_CALLS = frozenset({"nanosleep", "clock_nanosleep"})
_LOOPS = frozenset({"epoll_wait", "epoll_pwait"})  # of asyncio, which also waits for threads in them
CHILD_CALLS = frozenset({"wait4", "waitid"})
IN_C = (
    "something within a call of C"  # the innermost frame is the program's own: Python's waits have frames of their own
)
OF_A_CHILD = "the end of a child process"
MEETINGS = frozenset(
    {"init_process_group", "new_group", "new_subgroups", "split_group", "rendezvous", "tcp_rendezvous"}
)
_GATHERS = "asyncio.gather"
_RAY_WAIT = re.compile(r"(^|\.)(get|wait|get_objects|ready|get_gcs_objects|iter|gather)$")


@dataclass(frozen=True)
class State:
    """One process, between two samples."""

    facts: ProcessFacts
    doing: Doing
    moved: bool  # a counter, its place or its step changed
    advanced: bool  # a collective ended or a step was made: the job goes on
    place: Frame | None  # where it is in the program's own code
    about: str = ""  # of an I/O wait: what for, or on what, "for data from a pipe"; of others: for what
    circle: tuple[LockWait, ...] = ()
    beside: str = ""  # threads of the program that compute while the one that works waits for somebody else
    works_beside: bool = False  # one of them in the program's own code: it may be what the others wait for
    asks: str = ""  # the loop in which it asks Ray again and again, and nothing changes
    side: tuple[Standing, ...] = ()  # of one at work: its threads that compute, where the one that works only waits

    @property
    def waits_for_others(self) -> bool:
        return self.doing in ("collective", "meeting", "ray") or bool(self.asks)

    @property
    def works_at(self) -> Frame | None:
        """Where the work is done: a thread that waits for another one of its process stands at a line of its own."""
        return self.side[0].lines[0].at if self.side else self.place

    @property
    def is_late(self) -> bool:
        """Whether it did not answer this time, as it did before: that is no sign of work."""
        return self.doing in ("silent", "unreachable") and self.moved


def state_of(before: ProcessFacts | None, now: ProcessFacts, seconds: float) -> State:
    """`before` is the same process in the earlier sample, `seconds` before; None if it was not there."""
    advanced = before is not None and has_advanced(before, now)
    moved = advanced or _has_come_on(before, now) if before is not None else _is_new(now, seconds)
    state = State(now, "idle", moved, advanced, _place(now))
    if now.dead:
        return replace(state, doing="dead", moved=False)
    if now.stopped or now.stack.stopped:
        return replace(state, doing="stopped")
    if now.state in FROZEN and now.state:
        return replace(state, doing="frozen", moved=False)
    if circle := lock_circle(now.locks):
        return replace(state, doing="deadlock", circle=circle, place=circle[0].at)
    computes = _works(before, now, seconds) if before is not None and seconds > 0 else False
    if not now.answers:
        # Once may be a busy machine's fault: it is silent when it said nothing before, either.
        again = before is not None and not before.answers
        mute: Doing = "silent" if now.seen else "unreachable"
        return replace(state, doing="busy" if computes else mute, moved=not again or moved)
    state = replace(state, moved=moved)
    if computes and before is not None and (beside := _beside(before, now, seconds)):
        waits = _waiting(state, computes=False, wants=False)
        if _is_for_others(waits, beside):
            return replace(waits, beside=", ".join(beside), works_beside=not _telling(now).isdisjoint(beside))
    found = _waiting(state, computes, wants=_wants_to(before, now))
    return replace(found, side=_side(before, found, seconds)) if before is not None and computes else found


def _is_new(now: ProcessFacts, seconds: float) -> bool:
    """Whether it was begun between the samples, to do something.

    One that is idle yet is no sign of progress: Ray starts some in advance. A child may have been there before, untold.
    """
    return bool(now.stack.stack) and (now.age is None or now.age < seconds + TOLD_SECONDS)


def _wants_to(before: ProcessFacts | None, now: ProcessFacts) -> bool:
    """Whether its thread runs, or waits for a core: at both looks, since who polls is seen at it for a moment.

    On a busy machine that moment is long: who polls has had many short turns in between.
    """
    threads = [each.thread for each in (before, now) if each is not None and each.thread is not None]
    polls = len(threads) == 2 and _looks_around(*threads) and threads[1].turns - threads[0].turns >= MANY_TURNS
    return bool(threads) and not polls and all(each.state == "R" and each.call not in IO_CALLS for each in threads)


def _works(before: ProcessFacts, now: ProcessFacts, seconds: float) -> bool:
    """Whether it or its children compute, one of its threads wants to, or it reads or writes.

    Wanting to counts where there is something to do: on a busy machine, Ray's idle loop waits for a core each time that
    it looks around. What a process says of itself and what is seen of it from outside are counted in different ways.
    """
    threads = _computed(before, now).values() if now.stack.stack else ()
    alike = now.answers == before.answers
    computed = max([now.cpu - before.cpu if alike else 0.0, *threads])
    return computed >= BUSY_SHARE * seconds or (alike and now.io - before.io >= BUSY_BYTES * seconds)


def _computed(before: ProcessFacts, now: ProcessFacts) -> dict[str, float]:
    """Seconds, by thread."""
    earlier = {each.name: each for each in before.threads}
    return {each.name: _wanted(earlier[each.name], each) for each in now.threads if each.name in earlier}


def _wanted(before: ThreadFacts, now: ThreadFacts) -> float:
    """Seconds for which a thread wanted a core, as far as it was to compute.

    One that only looks around waits for a core, too, where others have them all: Ray's main thread each hundredth of a
    second, and then for longer than it runs. Who computes is not done in so short a turn.
    """
    return (now.ran or 0.0) - (before.ran or 0.0) if _looks_around(before, now) else now.cpu - before.cpu


def _looks_around(before: ThreadFacts, now: ThreadFacts) -> bool:
    """Whether its turns on a core between the samples were short, as far as that is known."""
    if before.ran is None or now.ran is None:
        return False
    return now.ran - before.ran < SHORT_TURN * (now.turns - before.turns)


def computing(before: ProcessFacts, now: ProcessFacts, seconds: float) -> list[str]:
    """The names of the threads that have computed between the samples."""
    return [name for name, own in _computed(before, now).items() if seconds > 0 and own / seconds >= BUSY_SHARE]


def _beside(before: ProcessFacts, now: ProcessFacts, seconds: float) -> list[str]:
    """Threads that the program has started, if only they compute, and not the one that works."""
    computed = _computed(before, now)
    busy = [name for name, own in computed.items() if own / seconds >= BUSY_SHARE]
    side = {each.name for each in now.threads if each.side and (now.thread is None or each.name != now.thread.name)}
    rest = now.cpu - before.cpu - sum(computed[name] for name in busy)
    return busy if set(busy) <= side and rest / seconds < BUSY_SHARE else []


def _side(before: ProcessFacts, state: State, seconds: float) -> tuple[Standing, ...]:
    """Threads that compute in the program's code, where the one that works is none of them."""
    names, main = computing(before, state.facts, seconds), state.facts.thread
    if state.doing != "busy" or (main is not None and main.name in names):
        return ()
    return tuple(each for each in state.facts.standing if each.thread in names and each.lines[0].at != state.place)


def _telling(facts: ProcessFacts) -> set[str]:
    """The other threads that run something of the program's."""
    return {name.partition(" #")[0] for name in facts.stack.others}


def _is_for_others(state: State, beside: Sequence[str]) -> bool:
    """Whether it waits for another process, or for a thread that is not one of these: what they do is no help.

    Threads of a library that run none of the program's code (a pool's, say) are no help either once one has failed.
    """
    if state.doing == "lock":
        return all(each.holder not in beside for each in state.facts.locks)
    if state.doing == "wait" and any(each.said for each in state.facts.ended):
        return _telling(state.facts).isdisjoint(beside)
    thread = state.facts.thread
    return state.doing == "ray" or (state.doing == "io" and thread is not None and thread.call not in _LOOPS)


def _waiting(state: State, computes: bool, *, wants: bool) -> State:
    now = state.facts
    if any(group.waiting for group in now.groups if group.ranks):
        return replace(state, doing="collective")
    if now.call:
        return replace(state, doing="meeting" if now.call.get("op") in MEETINGS else "collective")
    if computes:
        return replace(state, doing="busy")
    if not now.stack.stack:
        other = now.thread if now.command else None
        if other is not None and other.call in _WRITES:  # to wait for input is a server's rest
            return replace(state, doing="io", place=None, about=_io(other.call, other.target))
        return replace(state, doing="idle", place=None)
    if (lock := _awaited_lock(now)) is not None:
        return replace(state, doing="lock", place=lock.at)
    if _waits_for_ray(now):  # which wakes up every second to look around, and may be seen then
        return replace(state, doing="ray")
    thread = now.thread
    if wants:
        return replace(state, doing="busy")
    if thread is not None and thread.state == "D" and thread.call not in IO_CALLS:
        return replace(state, doing="io", about="for the disk")
    call = thread.call if thread is not None else ""
    if call in SLEEP_CALLS:
        return replace(state, doing="sleep", about=polled(state))
    if call in IO_CALLS and thread is not None:
        return replace(state, doing="io", about=_io(call, thread.target))
    # Last, since another thread may keep such a group busy.
    inner, loop = inner_wait(state), polled(state)
    if (inner is None and loop) or (inner is not None and inner.what == ASLEEP):
        return replace(state, doing="sleep", about=loop)  # it was seen between two sleeps, or sleeps in a coroutine
    if (inner is None or _gathers_only(now, inner)) and _awaits_ray(state):
        return replace(state, doing="ray")
    in_c = IN_C if inner is None and now.fork is not None and not is_library(now.stack.stack[0].file) else ""
    return replace(state, doing="collective" if now.unlisted else "wait", about=inner.what if inner else in_c)


def _awaited_lock(now: ProcessFacts) -> LockWait | None:
    """The one that keeps it: of the thread that works, if that waits for one.

    While that is in a wait for another process, a thread that the program has started keeps nobody by its own.
    """
    thread = now.thread
    own = next((each for each in now.locks if thread is not None and each.thread == thread.name), None)
    if own is not None or thread is None:
        return own or next(iter(now.locks), None)
    elsewhere = _waits_for_ray(now) or (thread.call in IO_CALLS and thread.call not in _LOOPS)
    side = {each.name for each in now.threads if each.side}
    return next((each for each in now.locks if not (elsewhere and each.thread in side)), None)


def inner_wait(state: State) -> InnerWait | None:
    """What it waits for of its own, at the line at which it stands."""
    return next((each for each in state.facts.inner if each.at == state.place), None)


def polled(state: State) -> str:
    """The loop in which it sleeps, at the line at which it stands."""
    found = next((each for each in state.facts.polls if each.at == state.place), None)
    if found is None:
        return ""
    return found.said if found.by.file == found.at.file else f"{found.said} of {found.by.function}"


def _io(call: str, target: str) -> str:
    """
    >>> _io("read", "a pipe"), _io("wait4", ""), _io("ppoll", "TCP a:1 to b:2")
    ('for data from a pipe', 'for the end of a child process', 'on TCP a:1 to b:2 (poll)')
    >>> _io("openat", ""), _io("epoll_wait", "")
    ('to open a file', 'on file descriptors (epoll_wait)')
    """
    if call in CHILD_CALLS:
        return f"for {OF_A_CHILD}"
    if call not in _IO_WORDS:
        return f"on {target or 'file descriptors'} ({'poll' if call == 'ppoll' else call})"
    return f"{_IO_WORDS[call]} {target or _UNKNOWN.get(call, 'a file descriptor')}"


def _waits_for_ray(now: ProcessFacts) -> bool:
    """Whether its working thread asks Ray for something: below the program's innermost frame are Ray's."""
    inner: list[Frame] = []
    for frame in now.stack.stack:
        if not is_library(frame.file):
            break
        inner.append(frame)
    return any("/ray/" in frame.file and _RAY_WAIT.search(frame.function) for frame in inner)


def _gathers_only(now: ProcessFacts, inner: InnerWait) -> bool:
    """Whether it waits for several coroutines, of which none is known to wait for something of this process."""
    others = (each for each in now.inner if each is not inner and not each.what.startswith(_GATHERS))
    return inner.what.startswith(_GATHERS) and not any(others)


def _awaits_ray(state: State) -> bool:
    """Whether the coroutine that it is said to be in waits for a result of Ray."""
    return any(wait.at == state.place and wait.tasks for wait in state.facts.waits)


def has_advanced(before: ProcessFacts, now: ProcessFacts) -> bool:
    """A step was made, or a collective begun or ended. Of one that gave no answer before, that is not known."""
    if not before.answers:
        return False
    if before.step != now.step and now.step is not None:
        return True
    earlier = {group.place: _count(group) for group in before.groups}
    return any(_count(group) != earlier.get(group.place) for group in now.groups)


def _has_come_on(before: ProcessFacts, now: ProcessFacts) -> bool:
    """It is at another line, or at the same one in another call, or waits there for other results than before, or has
    added something up.

    An asyncio task has its name for itself.
    """
    again = bool(before.running and now.running and before.running != now.running)
    # A child that had no time to tell its line has not come on because it tells it now, nor the other way round.
    told = not before.parent or (bool(before.stack.stack) and _tells(now))
    elsewhere = told and _line(before) != _line(now)
    return again or elsewhere or _asks_anew(before, now) or _has_added(before, now)


def _tells(facts: ProcessFacts) -> bool:
    """Whether it has told any thread of Python's."""
    return bool(facts.stack.stack or facts.stack.idle or facts.stack.idle_tasks)


def _has_added(before: ProcessFacts, now: ProcessFacts) -> bool:
    """Whether a loop that sleeps adds something up, and has another sum than before."""
    sums = {each.by: each.sums for each in before.polls if each.sums}
    return any(each.sums != sums[each.by] for each in now.polls if each.sums and each.by in sums)


def _asks_anew(before: ProcessFacts, now: ProcessFacts) -> bool:
    """Whether what its working thread has waited for has come, and it asks for something else."""
    thread = now.stack.thread.partition(" #")[0]
    then, later = (
        {task for wait in facts.waits if wait.thread == thread for task in wait.tasks} for facts in (before, now)
    )
    return bool(then and later) and then.isdisjoint(later)


def _count(group: GroupFacts) -> tuple[int, int, int]:
    entries = group.entries
    return (
        max((entry.seq for entry in entries if not entry.p2p), default=0),
        max((entry.seq for entry in entries if entry.p2p), default=0),
        sum(entry.done for entry in entries),
    )


def _place(facts: ProcessFacts) -> Frame | None:
    return next((each for each in facts.stack.stack if not is_library(each.file)), None)


def _line(facts: ProcessFacts) -> Frame | None:
    """Its place, without the classes of methods: not every view of a process has them."""
    place = _place(facts)
    return place and place._replace(function=place.function.rpartition(".")[2])


def lock_circle(waits: tuple[LockWait, ...]) -> tuple[LockWait, ...]:
    """Threads each of which waits for what the next one holds, the last for the first; empty: there is no circle."""
    by_thread = {wait.thread: wait for wait in waits}
    for start in waits:
        path = [start]
        while (holder := path[-1].holder) is not None and holder in by_thread:
            if holder == start.thread:
                return tuple(path)
            if any(holder == each.thread for each in path):
                break
            path.append(by_thread[holder])
    return ()
