"""The sentences of a verdict, and the lines of evidence under it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby

from devkit.debug.grouping import group
from devkit.debug.naming import Who, ago, label, name_members, rank_list, several, short_path
from devkit.debug.stack_groups import CHILD, Frame
from devkit.hang import lines as program_lines
from devkit.hang.calls import Link
from devkit.hang.facts import CrashFacts, LockWait
from devkit.hang.groups import Stuck
from devkit.hang.records import Culprit
from devkit.hang.states import State, inner_wait

DOES = {
    "sleep": "sleeps",
    "wait": "waits for a condition, an event or a call of C",
    "lock": "waits for a lock",
    "ray": "waits for a Ray result",
    "idle": "is idle",
    "busy": "is working",
    "dead": "is dead",
    "frozen": "is stopped by a signal",
    "silent": "does not respond: a call seems to hold its Python (the GIL)",
    "unreachable": "can't be reached: nothing on its node responds",
    "collective": "is in a different collective",
    "meeting": "is creating a process group",
}
LATE = "did not answer in time"


_MANY = {"sleeps": "sleep", "waits": "wait", "has": "have", "is": "are", "does": "do", "makes": "make"}
PROGRAM_LINES = 4
EVIDENCE_LINES = 12  # of waits; a job of 256 ranks has few kinds of them
PLACES = 3  # at which processes are paused
SINGLY = 3  # processes of one role without ranks that a sentence names one by one


def name(state: State) -> str:
    """One process in a sentence."""
    role = state.facts.title or "process"
    if role == "driver":
        return "the driver"
    if role.startswith(CHILD):
        of = role.replace(f"{CHILD}driver", f"{CHILD}the driver")
        return f"{of}{'' if state.facts.rank is None else f' rank {state.facts.rank}'}, pid {state.facts.pid}"
    return f"{role} pid {state.facts.pid}" if state.facts.rank is None else of_role(role, state.facts.rank)


def does(state: State) -> str:
    """What one of them does, as far as it is known: "waits for a threading.Event that is not set"."""
    return f"waits for {state.about}" if state.doing == "wait" and state.about else DOES.get(state.doing, "is")


def _owner(role: str) -> str:
    """
    >>> _owner("child of Pool pid 7"), _owner("child of driver")
    ('Pool pid 7', 'the driver')
    """
    owner = role.removeprefix(CHILD)
    return f"the {owner}" if owner == "driver" else owner


def of_role(role: str, rank: int) -> str:
    """
    >>> of_role("Trainer", 1), of_role("Rank", 1), of_role("", 1)
    ('Trainer rank 1', 'rank 1', 'rank 1')
    """
    return f"{role} rank {rank}" if role.lower() not in ("rank", "") else f"rank {rank}"


def named(states: Sequence[State], beside: Sequence[State] = ()) -> str:
    """Some processes in a sentence that names those `beside` them, too: role and ranks where the roles differ."""
    if len(states) == 1:
        return name(states[0])
    roles = {state.facts.title for state in states}
    if len(roles) == 1 and (role := next(iter(roles))).startswith(CHILD) and all(s.facts.rank is None for s in states):
        return f"children of {_owner(role)}, pids {', '.join(str(state.facts.pid) for state in states)}"
    ranks = [state.facts.rank for state in states if state.facts.rank is not None]
    if len(roles) == 1 and len(ranks) == len(states) == len(set(ranks)):
        others = {state.facts.title for state in beside if state.facts.rank is not None} - roles
        role = f"{states[0].facts.title} " if others and states[0].facts.title.lower() not in ("rank", "") else ""
        return f"{role}ranks {rank_list(ranks)}"
    known = sorted({Who(state.facts.title, state.facts.rank, f"pid {state.facts.pid}") for state in states}, key=_role)
    many = {role: list(same) for role, same in groupby((who for who in known if who.rank is None), key=_role)}
    many = {role: same for role, same in many.items() if len(same) > SINGLY}
    single = [who for who in known if who.rank is not None or who.role not in many]
    names = name_members(single).split("; ") if single else []
    names = ["the driver" if each == "driver" else each for each in names]
    return listed([*(several(len(same), role or "process") for role, same in many.items()), *names])


def _role(who: Who) -> str:
    return who.role


def listed(names: Sequence[str]) -> str:
    """
    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)


def paused(states: Sequence[State]) -> str:
    """Who is stopped by the debugger, place by place."""
    places: dict[Frame | None, list[State]] = {}
    for state in states:
        places.setdefault(state.place, []).append(state)
    if len(places) == 1:
        return f"{they(states, 'is', 'are')} paused by the debugger{at(states[0])}"
    parts = [f"{named(there)}{at_frame(place)}" for place, there in places.items()]
    more = f"; and at {len(parts) - PLACES} more places" if len(parts) > PLACES else ""
    return f"paused by the debugger: {'; '.join(parts[:PLACES])}{more}"


def they(states: Sequence[State], one: str, many: str, beside: Sequence[State] = ()) -> str:
    """Some processes and what they do: "ranks 0,2 wait"."""
    return f"{named(states, beside)} {verb(states, one, many)}"


def do(states: Sequence[State]) -> str:
    """What all of them do: "Rank ranks 0,1 sleep", as "Rank rank 0 sleeps"."""
    first, _, rest = does(states[0]).partition(" ")
    return f"{they(states, first, _MANY.get(first, first))} {rest}".rstrip()


def at_it(shown: Sequence[State]) -> str:
    """Who waits by now, and was elsewhere before, may have got on."""
    if all(state.waits_for_others and not state.works_beside for state in shown):
        return f"{they(shown, 'has', 'have')} come to a new wait"
    return f"{they(shown, 'is', 'are')} working"


def rests(state: State) -> str:
    """Of one that stands in no line of the program."""
    return state.about or DOES["idle"]


def at_rest(states: Iterable[State]) -> str:
    """Those of them that stand in no line of the program, and for which there is something to do: "; A has ..."."""
    found = [state for state in states if state.doing == "idle" and state.about]
    more = f", and so do {len(found) - 1} more" if len(found) > 1 else ""
    return f"; {name(found[0])} {found[0].about}{more}" if found else ""


def likewise(culprits: Sequence[Culprit]) -> str:
    """Who else is in the first one's place: "; so are ranks 1,3"."""
    ranks = sorted({each.rank for each in culprits[1:] if each.rank is not None} - {culprits[0].rank})
    if not ranks:
        return ""
    return f"; the same holds for {'rank' if len(ranks) == 1 else 'ranks'} {rank_list(ranks)}"


def verb(states: Sequence[State], one: str, many: str) -> str:
    return one if len(states) == 1 else many


def rank(state: State) -> int:
    return 1 << 30 if state.facts.rank is None else state.facts.rank


def first(states: Iterable[State]) -> State:
    """The one with the lowest rank."""
    return min(states, key=rank)


def at(state: State) -> str:
    return in_thread(state) or at_frame(state.place)


def in_thread(state: State) -> str:
    """Of one whose work is done in other threads than the one that it is called by, which may wait for them."""
    if not state.side:
        return ""
    where = at_frame(state.works_at) if len({each.lines[0].at for each in state.side}) == 1 else ""
    whose = f"its thread {state.side[0].thread}" if len(state.side) == 1 else f"{len(state.side)} of its threads"
    return f" in {whose}{where}{waits_for(state, {each.thread for each in state.side})}"


def waits_for(state: State, threads: Collection[str]) -> str:
    """Behind some of its threads: that the process waits for them, or for what else it does."""
    inner = inner_wait(state)
    if inner is None:
        return ""
    if inner.joins in threads:
        return f", for {'whose end' if len(threads) == 1 else 'which'} it waits{at_frame(state.place)}"
    return "" if inner.joins else f", and waits for {inner.what}{at_frame(state.place)}"


def thread_in(state: State, loop: Frame) -> str:
    """The thread that is in a loop's function, where the process stands at no line of that thread."""
    stacks = [stack for stack in state.facts.standing if any(_is_in(line.at, loop) for line in stack.lines)]
    if not stacks or any(line.at == state.place for stack in stacks for line in stack.lines):
        return ""
    names = [stack.thread for stack in stacks]
    whose = f"its thread {names[0]}" if len(names) == 1 else "one of its threads"
    return f" in {whose}{waits_for(state, names)}"


def _is_in(at: Frame, loop: Frame) -> bool:
    return (at.file, at.function) == (loop.file, loop.function)


def at_frame(frame: Frame | None) -> str:
    return f" at {short_path(frame.file)}:{frame.line} in {frame.function}" if frame else ""


def culprit(state: State, frame: Frame | None = None) -> Culprit:
    place = frame or state.works_at or Frame("", 0, "")
    facts = state.facts
    return Culprit(facts.role, facts.rank, facts.node_ip, facts.pid, place.file, place.line, place.function)


def span(seconds: float) -> str:
    """
    >>> span(1.234), span(75.0)
    ('1.2 s', '75 s')
    """
    return f"{seconds:.1f} s" if seconds < 10 else ago(seconds)


def lost(state: State) -> str:
    """Of a process that nobody on its node can tell of."""
    return f"can't be reached: nothing on its node {state.facts.node_ip} responds"


def deaf(states: Sequence[State]) -> list[tuple[State, str, int]]:
    """Who sends in vain to which of the others' addresses, and how often it has tried; the most tries first."""
    ips = {state.facts.node_ip for state in states}
    found = [(state, peer, tries) for state in states for peer, tries in state.facts.unanswered if peer in ips]
    return sorted(found, key=lambda each: (-each[2], rank(each[0])))


def both(one: tuple[State, str, int]) -> str:
    """The two ends."""
    return " and ".join(sorted((one[0].facts.node_ip, one[1])))


def unheard(one: tuple[State, str, int]) -> str:
    state, peer, tries = one
    return f"{name(state)} on {state.facts.node_ip}: {peer} does not acknowledge data sent to it ({tries} tries)"


def unlisted(state: State) -> str:
    """Of one that waits in a process group that torch.distributed does not list; else empty."""
    group = state.facts.unlisted
    if state.doing != "collective" or group is None or group.waiting is None:
        return ""
    return f"waits in {group.waiting.op} of a process group created without torch.distributed"


def io(state: State) -> str:
    """What an I/O wait is for, behind "waits": "for the end of a child process", "on a pipe (poll)"."""
    return state.about or "for I/O"


def root(state: State) -> str:
    """Source and destination, where the call names them."""
    call = state.facts.call
    told = [f"{key}={call[key]}" for key in ("src", "dst", "group_src", "group_dst") if key in call]
    return f" ({', '.join(told)})" if told else ""


def circle(waits: Sequence[LockWait]) -> str:
    """Who waits for whom, once around."""
    if len(waits) == 1:
        [wait] = waits
        if wait.kept_at:
            return (
                f"the event loop stands{at_frame(wait.at)}, which waits for a lock that a coroutine of the same loop "
                f"took{at_frame(wait.held_at)} and keeps while it awaits something{at_frame(wait.kept_at)}"
            )
        held = f" that it took itself{at_frame(wait.held_at)}" if wait.held_at else " that it holds itself"
        return f"thread {wait.thread} waits{at_frame(wait.at)} for a lock{held}"
    parts = []
    for wait in waits:
        if wait.what:
            parts.append(f"thread {wait.thread} waits{at_frame(wait.at)} for {for_what(wait)}")
            continue
        taken = f", which took it{at_frame(wait.held_at)}" if wait.held_at else ""
        parts.append(f"thread {wait.thread} waits{at_frame(wait.at)} for a lock of thread {wait.holder}{taken}")
    return "; ".join(parts)


def for_what(wait: LockWait) -> str:
    """Of one that waits for no lock of the program's."""
    return f"{wait.what}{f', and which is{at_frame(wait.held_at)}' if wait.held_at else ''}"


def calls(circle: Sequence[Link]) -> str:
    """Who waits for whose call, once around."""
    return "; ".join(map(_call, circle))


def _call(link: Link) -> str:
    own = link.waiter.wait
    if own.holder:
        return f"{name(link.waiter.state)} waits{at_frame(own.at)} for {own.what}, which {link.holder.wait.call} holds"
    waiter, holder = link.waiter.state, link.holder.state
    whose = "itself" if holder is waiter else name(holder)
    where = f"which runs in {whose}" if link.runs else f"queued at {whose}"
    if link.call is None:
        return f"{name(waiter)} waits{at_frame(own.at)} for a call to {whose}"
    what = link.call.name
    why = "" if link.runs or not link.holder.wait.blocks else ", whose event loop a ray.get in a coroutine holds up"
    return f"{name(waiter)} waits{at_frame(own.at)} for {what}, {where}{why}"


def calls_in_ray(circle: Sequence[Link]) -> tuple[str, ...]:
    """The calls of a circle, as Ray's table has them."""
    known = [(link.call, link.holder.state) for link in circle if link.call]
    return tuple(f"Ray lists {call.name} ({call.id[:16]}) at {name(state)} is {call.state}" for call, state in known)


def crash(found: CrashFacts) -> str:
    why = f": {found.misfit}" if found.misfit else ""
    return f"crash {found.id}: {found.said}{at_frame(found.at)}{why} (variables: devkit crashes show {found.id})"


def recorded(found: Stuck) -> tuple[str, ...]:
    """What torch's flight recorder has of a group: equal ranks in one line."""
    last: dict[str, list[int]] = {}
    for each in found.group.ranks:
        last.setdefault(_last_of(found, each), []).append(each)
    title = f"group {found.group.title} ({len(found.group.ranks)} ranks)"
    return tuple(f"{title}: rank{'s' * (len(ranks) > 1)} {rank_list(ranks)}: {text}" for text, ranks in last.items())


def _last_of(found: Stuck, each: int) -> str:
    if each not in found.group.members:
        return "not in it"
    entries = [entry for entry in found.group.facts(each).entries if entry.p2p == found.p2p]
    if not entries:
        return "no collective yet"
    entry = entries[-1]
    sizes = f" {entry.sizes}" if entry.sizes else ""
    return f"last is {entry.op} #{entry.seq}{sizes}, {'done' if entry.done else 'not done'}"


def waits(states: Iterable[State], awaited: Mapping[str, tuple[str, str]] | None = None) -> tuple[str, ...]:
    """What everybody does, equal ones in one line, and below what they look at; the idle are left out.

    `awaited`: by process, for which result it waits, as `chains.awaited` has it.
    """
    every, known = tuple(states), awaited or {}
    busy = [state for state in every if state.doing != "idle" or state.about]
    groups = group((state.facts.who, _does(state, known.get(state.facts.id, ("",))[0])) for state in busy)
    everyone = [state.facts.who for state in busy]
    by_who = {state.facts.who: state for state in busy}
    pids = {who: state.facts.pid for who, state in by_who.items()}
    lines = []
    for one in groups[:EVIDENCE_LINES]:
        does = one.key if len(one.members) == 1 else _plural(one.key)
        lines.append(f"{_members(one.members, everyone, pids)}: {does}")
        lines += program_lines.told([by_who[who] for who in one.members])
    if len(groups) > EVIDENCE_LINES:
        lines.append(f"and {len(groups) - EVIDENCE_LINES} more")
    return (*lines, *_programs(every))


_ORPHANED = "the process that started it, which may be a shell, has ended"


def _programs(states: Sequence[State]) -> list[str]:
    """Children that run another program, and what the kernel says that they wait for."""
    found = [state for state in states if state.facts.command]
    lines = [f"{name(state)} runs {state.facts.command} ({_in(state)})" for state in found[:PROGRAM_LINES]]
    lines += [f"{name(state)} lives on: {_ORPHANED}" for state in states if state.facts.orphaned][:PROGRAM_LINES]
    return lines + ([f"and {len(found) - PROGRAM_LINES} more programs"] if len(found) > PROGRAM_LINES else [])


def _in(state: State) -> str:
    main = next(iter(state.facts.threads), None)
    call = f", in {main.call}" if main and main.call else ""
    return f"state {state.facts.state}{call}" + (f" on {main.target}" if main and main.target else "")


def _members(members: Sequence[Who], everyone: Sequence[Who], pids: Mapping[Who, int]) -> str:
    """Ranks by their numbers, others by how many there are of a role, a single one by its pid.

    The children of a rank have its number, and are no ranks.
    """
    ranked = [who for who in members if who.rank is not None and not who.role.startswith(CHILD)]
    parts = [name_members(ranked, everyone)] if ranked else []
    others = sorted((who for who in members if who not in ranked), key=lambda who: (who.role, who.rank or 0))
    for (role, _), found in groupby(others, key=lambda who: (who.role, who.rank)):
        same = list(found)
        pid = "" if role == "driver" else f"{',' * role.startswith(CHILD)} pid {pids[same[0]]}"
        parts.append(f"{label(same[0])}{pid}" if len(same) == 1 else several(len(same), label(same[0])))
    return ", ".join(parts)


def _plural(does: str) -> str:
    first, _, rest = does.partition(" ")
    return f"{_MANY.get(first, first)} {rest}"


def _does(state: State, awaited: str = "") -> str:
    if state.side:  # what works there stands below
        inner = inner_wait(state)
        does = f"waits for {inner.what.partition(', which is at ')[0]}" if inner else "is"
    elif state.doing == "collective":
        does = f"in {state.facts.call.get('op') or 'a collective'}"
    elif state.doing == "io":
        does = f"waits {io(state)}"
    elif state.doing == "idle":
        does = rests(state)
    elif state.doing == "deadlock":
        does = "threads wait for each other" if len(state.circle) > 1 else "a thread waits for itself"
    elif state.doing == "wait" and state.about:
        does = f"waits for {state.about}"
    elif state.doing == "wait" and state.asks:  # seen in between
        does = "asks Ray again and again"
    elif state.doing == "ray" and awaited:
        does = f"waits {awaited},"
    else:
        does = DOES.get(state.doing, state.doing)
    step = f" (step {state.facts.step})" if state.facts.step is not None else ""
    beside = f"; its thread {state.beside} is working" if state.beside else ""
    return f"{does}{at_frame(state.place)}{step}{beside}"
