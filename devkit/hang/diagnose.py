"""The verdict on a job, from two samples of it. Pure: no cluster, no clock.

The order is that of cause and effect. What cannot end by itself (a deadlock, a frozen process) comes first; then
collectives, where a rank that waits for another is never to blame while that other one has a cause of its own; then
what Ray was asked for and has not given; last what just stands still. Whatever moves is no hang.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from devkit.debug import object_stores
from devkit.debug.inworker.identity import DRIVER
from devkit.hang import (
    absent,
    aside,
    asking,
    behind,
    blame,
    calls,
    chains,
    circling,
    enders,
    ends,
    environments,
    families,
    freezing,
    full_queues,
    holders,
    holding,
    keeping,
    lines,
    meetings,
    polling,
    reasons,
    repeats,
    resources,
    starved,
    transfers,
    unheard,
    words,
)
from devkit.hang.case import NOTHING, PATIENCE, Case, Seen
from devkit.hang.facts import Sample
from devkit.hang.records import Kind, Verdict
from devkit.hang.standing import quoted
from devkit.hang.states import State

MOST_TOLD = 2  # who waits for something else than who is blamed
MOST_WORKING = 3  # processes at work, in the evidence


def diagnose(first: Sample, now: Sample, patience: float = PATIENCE, seen: Seen = NOTHING) -> Verdict:
    """`now` is a later sample of the same job as `first`, and `seen` is what those in between show. A wait younger than
    `patience` seconds is not `decided`.
    """
    case = asking.settled(chains.judged(first, now, patience, seen))
    looks = (
        _paused,
        _deadlocked,
        _waiting_for_each_other,
        freezing.verdict,
        starved.verdict,
        blame.collectives,
        transfers.verdict,
        meetings.verdict,
        polling.verdict,
        behind.verdict,
        asking.verdict,
        circling.verdict,
        holding.verdict,
        starved.once,
        _moving,
        _resources,
        behind.joined,
        families.verdict,
        full_queues.verdict,
        _standing,
    )
    found = next(verdict for look in looks if (verdict := look(case)) is not None)
    explained = families.explain(found, case) if "its child" not in found.sentence else found
    explained = environments.explain(unheard.explain(repeats.explain(explained, case), case), case)
    return absent.with_crashes(_with_words(_with_stores(explained, first, now), case), case)


def _with_words(found: Verdict, case: Case) -> Verdict:
    """What it keeps, and what it wrote last, may say why it waits; or why a loop does not end."""
    blamed = found.culprit if found.hang or _NO_END in found.evidence else None
    at_fault = (blamed.node_ip, blamed.pid) if blamed else None
    state = next((each for each in case.states if (each.facts.node_ip, each.facts.pid) == at_fault), None)
    if state is None:
        return (
            replace(found, evidence=(*found.evidence, *keeping.of_holders(case))) if found.kind == "resource" else found
        )
    said = state.facts.wrote if found.hang else ()
    wrote = (f"{words.name(state)} {'last ' * last}wrote: {line}" for line, last in said)
    return replace(found, evidence=(*found.evidence, *keeping.evidence(case, state), *wrote))


def _with_stores(found: Verdict, first: Sample, now: Sample) -> Verdict:
    """A run that spills is slow, and no hang; one that waits may wait for room in a store that is full."""
    lines = tuple(object_stores.lines(first.stores, now.stores))
    if not lines:
        return found
    spills = found.kind == "moves" and object_stores.is_spilling(first.stores, now.stores)
    sentence = f"{found.sentence}, but it is slow: {lines[0]}" if spills else found.sentence
    return replace(found, sentence=sentence, evidence=(*found.evidence, *lines))


def _paused(case: Case) -> Verdict | None:
    stopped = [state for state in case.states if state.doing == "stopped"]
    if not stopped:
        return None
    evidence = ("devkit ps lists the paused ranks",)
    return Verdict("paused", f"no hang: {words.paused(stopped)}", words.culprit(stopped[0]), evidence=evidence)


def _deadlocked(case: Case) -> Verdict | None:
    found = [state for state in case.states if state.doing == "deadlock" and _same_circle(case, state)]
    if not found:
        return None
    first = words.first(found)
    sentence = f"deadlock in {words.name(first)}: {words.circle(first.circle)}"
    return Verdict("deadlock", sentence, words.culprit(first), None, words.waits(case.states))


def _waiting_for_each_other(case: Case) -> Verdict | None:
    found = calls.circle(case)
    if not found:
        return None
    first = found[0].waiter
    sentence = f"deadlock: {words.calls(found)}"
    evidence = (*words.calls_in_ray(found), *words.waits(case.states))
    return Verdict("deadlock", sentence, words.culprit(first.state, first.wait.at), None, evidence, case.decided(0.0))


def _same_circle(case: Case, state: State) -> bool:
    before = case.before.get(state.facts.id)
    return before is not None and before.locks == state.facts.locks


_BLOCKED = frozenset({"io", "lock", "collective", "meeting"})
_NO_END = "no step and no collective has ended meanwhile; if that stays so, what they are at may never end"


def _moving(case: Case) -> Verdict | None:
    answered = [state for state in case.states if not state.is_late]
    busy = [
        state
        for state in answered
        if (state.advanced or state.moved or state.doing == "busy" or state.works_beside)
        and not _is_left_alone(case, state)
    ]
    beside = [state for state in busy if state.works_beside and not state.moved]
    if not busy or (len(beside) == len(busy) and families.families(case)):
        return None  # children that can never go on are a cause, whatever a thread of their parent does
    advanced = [state for state in busy if state.advanced]
    shown, aside_of, span = advanced or busy, "", words.span(case.seconds)
    if advanced:
        sentence = f"no hang: the job is making progress; {words.named(shown)} made progress"
    else:  # whether that leads anywhere is not known: a loop that never ends is work, too
        place = _working_at(shown, beside)
        aside_of = aside.said(case, busy)
        endless = _is_open(case, shown) and case.decided(0.0, circling.TIMES)
        what = "cannot tell" if endless or (aside_of and case.decided(0.0)) else f"no hang seen in {span}"
        sentence = f"{what}: {words.at_it(shown)}{place}{_in_vain(case, shown)}"
    others = [state for state in answered if state not in busy]
    at_work = (_NO_END, *_at_work(case, busy), *words.waits(others, chains.awaited(case)))
    notes = (*resources.notes(case.now), *(() if advanced else at_work))
    slow = next(
        (
            f", but {words.do([each])}{words.at(each)}{reasons.held_up(each)}"
            for each in case.states
            if reasons.held_up(each)
        ),
        "",
    )
    text = f"{sentence}{'' if sentence.startswith('no hang seen') else f' within {span}'}{slow}"
    if aside_of and case.decided(0.0):
        text += aside_of
    elif sentence.startswith("cannot tell"):
        text += ": it may be one long turn, or a loop without end"
    if not advanced and not slow:
        text += _callers_loop(case, others)
    open_ = not advanced and _is_open(case, shown) and not case.decided(0.0, circling.TIMES)
    young = bool(aside_of) and not case.decided(0.0)
    return Verdict("moves", text, words.culprit(shown[0]), None, notes, not (open_ or young) and not circling.may(case))


def _working_at(states: Sequence[State], beside: Sequence[State]) -> str:
    """Where they work, if that is one place: which is not where a thread stands that only waits for one that does."""
    if any(state.side for state in states):
        if len(states) > 1:
            there = {each.lines[0].at for state in states for each in state.side}
            alike = all(state.side for state in states) and len(there) == 1
            return f" in threads of their own{words.at_frame(states[0].works_at)}" if alike else ""
        return words.in_thread(states[0])
    if any(state in beside for state in states):
        return f" in its thread {states[0].beside}" if len(states) == 1 else ""
    return words.at_frame(states[0].place) if len({state.place for state in states}) == 1 else ""


def _is_open(case: Case, states: Sequence[State]) -> bool:
    """Whether each of them computes in a loop around which nothing has changed: one long turn, or none of many."""
    return all(each.doing == "busy" and any(loop.still for loop in _loops(case, each)) for each in states)


def _in_vain(case: Case, states: Sequence[State]) -> str:
    """A loop around one of them that gets nowhere, as far as can be seen."""
    stills = ((state, loop) for state in states for loop in _loops(case, state) if loop.still)
    state, loop = next(stills, (None, None))
    if state is None or loop is None:
        return ""
    who = f", {words.name(state)}" if len(states) > 1 else ","
    return f"{who} in the loop {quoted(loop.text)}, where nothing that this looks at has changed"


def _callers_loop(case: Case, states: Sequence[State]) -> str:
    """Who waits for the work may do so in a loop that gets nowhere: a sampler whose groups are all dropped, say."""
    waiting = (state for state in states if state.waits_for_others)
    stills = ((state, loop) for state in waiting for loop in _loops(case, state) if loop.still)
    state, loop = next((each for each in stills if each[1].text.startswith("while ")), (None, None))
    if state is None or loop is None:
        return ""
    values = ", ".join(f"{name} = {value}" for name, value in loop.looked_at)
    return f"; meanwhile {words.name(state)} is in the loop `{loop.text}` ({values}), and nothing of that has changed"


def _at_work(case: Case, states: Sequence[State]) -> Iterator[str]:
    """Where they are, and what the loops around it look at: whether that changes is what tells a loop without end."""
    for state in sorted(states, key=lambda each: each.place is None)[:MOST_WORKING]:
        # The loops come below, with whether they get on.
        yield from (line for line in words.waits([state]) if not line.lstrip().startswith(lines.IN_LOOP))
        yield from (f"{lines.INDENT}{lines.INDENT * bool(state.side)}{loop.said}" for loop in _loops(case, state))


def _loops(case: Case, state: State) -> list[lines.Loop]:
    before = case.before.get(state.facts.id)
    there = state.side or lines.at_place(state)  # of one that moves, it may be elsewhere a moment later
    stacks = there or (state.facts.standing if state.moved or state.doing == "busy" else ())
    return lines.loops(stacks, before.standing if before else ())


def _is_left_alone(case: Case, state: State) -> bool:
    """A child whose parent has no call any more, and for which nobody waits, while others are blocked."""
    parent = state.facts.id.rpartition("-")[0]
    if not any(each.facts.id == parent and each.doing == "idle" and not each.moved for each in case.states):
        return False
    blocked = [each for each in case.states if each.doing in _BLOCKED and not each.moved and not case.is_child(each)]
    awaited = (hop for each in blocked for hop in ends.follow(case, each).hops if not hop.is_lock)
    return bool(blocked) and not any(hop.state is state for hop in awaited)


def _resources(case: Case) -> Verdict | None:
    evidence, asked = words.waits(case.states, chains.awaited(case)), chains.asked(case)
    rest = {state.facts.actor_id for state in case.states if state.doing == "idle" and not state.about}
    idle = {each for each in rest if each and not _is_called(case, each)}
    waits = partial(holders.waits, case)
    return resources.verdict(case.first, case.now, evidence, case.decided(0.0), asked, idle, waits)


def _is_called(case: Case, actor: str) -> bool:
    """Whether a call of it has begun, or it moves: it may be in no line of the program."""
    state = case.by_actor[actor]
    return state.moved or bool(case.now.tasks.get(state.facts.id))


def _standing(case: Case) -> Verdict:
    """Nothing moves, and no collective, lock or resource explains it: whoever waits for nobody else is told."""
    at_work = [state for state in case.states if state.doing != "idle"]
    leaves = [state for state in at_work if not state.waits_for_others]
    workers = [state for state in leaves if state.facts.role != "driver"]
    awaited = chains.awaited(case)
    evidence, decided = words.waits(case.states, awaited), case.decided(0.0)
    if not case.states:
        return Verdict(
            "idle", "no hang: no process of the job is left; devkit logs --first-error says whether it failed"
        )
    rests = leaves and not workers and leaves[0].doing in ("sleep", "wait") and len(at_work) == len(leaves)
    rests = rests and "is lost" not in leaves[0].about  # of a pool's worker that has ended
    rests = rests and not any(loop.still and circling.counts(loop.text) for loop in _loops(case, leaves[0]))
    if not at_work or (rests and not any(each.said for each in leaves[0].facts.ended)):
        return _at_rest(case, leaves)
    if not leaves:
        return _for_nobody(case, at_work, evidence)
    running = {end.holder.facts.id for end in chains.ends(case) if end.holder and end.runs}
    order = ("dead", "unreachable", "silent", "io", "lock", "wait", "sleep")

    drivers = [state.facts.id for state in case.states if state.facts.role == DRIVER]
    by_driver = {awaited[each][1] for each in drivers if each in awaited}

    def likely(state: State) -> tuple[bool, bool, bool, int, bool, int]:
        """Who runs what the others wait for comes first, and of equal ones whom the driver waits for.

        A child that serves a worker often waits for ever, as a server does, and is blamed where there is nobody else.
        """
        place = order.index(state.doing) if state.doing in order else 9
        serves = ends.is_server(state)
        asked = state.facts.id in by_driver
        return case.is_child(state), serves, state.facts.id not in running, place, not asked, words.rank(state)

    suspects = workers if any(not case.is_child(each) for each in workers) else leaves
    first = min(suspects, key=likely)
    alike = [each for each in suspects if _is_like(each, first)]
    line, kind, called = ends.follow(case, first), _standing_kind(first), ""
    if first.doing == "io":
        kind = "deadlock" if line.closed else kind
        text = f"{words.they(alike, 'waits', 'wait')} {words.io(first)}{words.at(first)}{line.of(alike, first)}"
    else:
        called = enders.said(case, first)
        text = f"{words.do(alike)}{words.at(first)}{reasons.why(first, clear=enders.are_queued(case, first))}{called}"
    cause = reasons.cause(first) if first.doing == "wait" else ""
    callers = [state for state in at_work if awaited.get(state.facts.id, ("", ""))[1] == first.facts.id]
    failed = absent.of_standing(case, first, callers) if not cause else None
    if failed is not None:
        cause = f"{failed.raised(case.now.time)}: it may be one that the others wait for; "
        evidence = (words.crash(failed.crash), *evidence)
    evidence = (*reasons.aside(first), *evidence) if first.doing == "wait" else evidence
    why = reasons.ended(first) if first.doing in ("wait", "sleep", "io") and not cause else ""
    whom = "them" if len(alike) > 1 else words.name(first) if line.hops or why or called else "it"
    tail = _who_waits([state for state in at_work if state.waits_for_others], alike, awaited, whom)
    culprit = words.culprit((not line.closed and line.last) or first)
    return Verdict(kind, f"no progress: {cause}{text}{why}{tail}", culprit, None, evidence, decided, line.threads)


def _at_rest(case: Case, leaves: Sequence[State]) -> Verdict:
    """Nobody is at work, but for a driver that sleeps, or waits for something of its own: as one does that serves until
    it is told to end, and one that waits for what never comes.
    """
    driver, rest = next(iter(leaves), None), words.at_rest(case.states)
    line = next((stack.lines[0] for stack in lines.at_place(driver) if stack.lines[0].asking), None) if driver else None
    text = "nothing moves" if rest or line else "no process has anything to do"
    if driver is not None:
        asks = f", in which it asks {asking.asked_for(case, line)}" if line is not None else ""
        text += f": {words.do([driver])}{words.at(driver)}{reasons.why(driver)}{asks}"
    waits = driver is not None and (driver.doing == "wait" or "in the loop" in reasons.why(driver))
    open_ = waits or bool(rest)
    tail = ", and whether anything will end that can't be seen" if waits else ""
    evidence = words.waits(case.states)
    sentence = f"{'cannot tell' if open_ else 'no hang'}: {text}{tail}{rest}"
    # A later look may show that it asks again and again.
    return Verdict("idle", sentence, evidence=evidence, decided=line is None or case.decided(0.0))


def _standing_kind(state: State) -> Kind:
    return state.doing if state.doing in ("dead", "unreachable", "silent", "io") else "stuck"


def _who_waits(
    waiters: Sequence[State], blamed: Sequence[State], awaited: Mapping[str, tuple[str, str]], whom: str
) -> str:
    """Those who wait for who is blamed, as far as is known, and for what the others wait."""
    askers = [state for state in waiters if state.asks]
    waiters = [state for state in waiters if not state.asks]
    theirs = {state.facts.id for state in blamed}
    direct = [state for state in waiters if state.facts.id not in awaited or awaited[state.facts.id][1] in theirs]
    others = [state for state in waiters if state not in direct]
    wait = words.they(direct, "waits", "wait", blamed) if direct else ""
    text = f", and {wait} for {_which(direct, blamed, awaited)}{whom}" if direct else ""
    text += "".join(f"; {words.name(state)} waits {awaited[state.facts.id][0]}" for state in others[:MOST_TOLD])
    return text + "".join(f"; {each}" for each in asking.told(askers)[:MOST_TOLD])


def _which(direct: Sequence[State], blamed: Sequence[State], awaited: Mapping[str, tuple[str, str]]) -> str:
    """The call that they all wait for, where the one who is blamed stands in another: an actor may be in several."""
    calls = {awaited.get(state.facts.id, ("", ""))[0].partition(",")[0].removeprefix("for ") for state in direct}
    method = next(iter(calls)).rpartition(".")[2] if len(calls) == 1 else ""
    at = blamed[0].place.function if blamed[0].place else ""
    is_known = method.isidentifier() and len({state.facts.pid for state in blamed}) == 1
    return f"{method} of " if is_known and at and method not in at.split(".") else ""


def _is_like(one: State, other: State) -> bool:
    """Whether both do the same at the same line."""
    return (one.facts.role, one.doing, one.place, one.about) == (
        other.facts.role,
        other.doing,
        other.place,
        other.about,
    )


def _for_nobody(case: Case, waiters: Sequence[State], evidence: tuple[str, ...]) -> Verdict:
    """All wait for others."""
    unlisted = [state for state in waiters if words.unlisted(state)]
    first = words.first(unlisted or waiters)
    group = first.facts.unlisted
    if not unlisted or group is None or group.waiting is None:
        return chains.for_nobody(case, waiters, evidence)
    age = group.waiting.age
    text = f"{words.name(first)} {words.unlisted(first)}{words.at(first)}, which does not show who else has to join"
    return Verdict("missing", text, words.culprit(first), age, evidence, case.decided(age))
