"""Ranks that wait for ranks: who does not come, and why. Pure.

A rank that waits for another is never to blame while that other one has a cause of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from devkit.hang import branches, chains, ends, words
from devkit.hang.calls import OWN_PART
from devkit.hang.case import CLOCKS, Case
from devkit.hang.facts import CrashFacts
from devkit.hang.groups import Group, Stuck, groups_of, stuck
from devkit.hang.records import Culprit, Kind, Verdict
from devkit.hang.states import State

SLOW_SECONDS = 30.0  # ranks have waited so long for one that is at work
SLOW_TIMES = 3.0  # and this many times longer than between their earlier collectives
EACH_NEW_GROUP = "each rank has to call every new_group, in the same order, also of groups that it is not in"
_HELD = frozenset({"busy", "dead", "frozen", "silent", "unreachable", "io", "lock", "sleep"})


def collectives(case: Case) -> Verdict | None:
    found = [each for group in groups_of(case.states) if (each := stuck(group, case.before)) is not None]
    if not found:
        return None
    mismatched = [each for each in found if each.kind == "mismatch"]
    if mismatched:
        return _mismatch(case, min(mismatched, key=lambda each: -each.age))
    missing = [each for each in found if each.kind == "missing"]
    waiting = {rank_key(each.group, rank) for each in found for rank in each.waiting}
    roots = [(each, rank) for each in missing for rank in each.divergent if rank_key(each.group, rank) not in waiting]
    causes = [(each, rank) for each, rank in roots if not _waits_unlisted(each.group, rank)]
    if roots and not causes and _is_held_elsewhere(case, found):
        return None  # whom these wait for torch does not tell: the others' states do
    if roots:
        return _missing(case, causes or roots)
    return _crossed(case, missing) if missing else _together(case, found[0])


def _waits(case: Case) -> tuple[str, ...]:
    return words.waits(case.states, chains.awaited(case))


def _waits_unlisted(group: Group, rank: int) -> bool:
    state = group.members.get(rank)
    return state is not None and state.doing == "collective" and state.facts.unlisted is not None


def _is_held_elsewhere(case: Case, found: Sequence[Stuck]) -> bool:
    """Whether a rank that is in none of these groups is at work, or is kept from it by something of its own."""
    within = {state.facts.id for each in found for state in each.group.members.values()}
    return any(
        state.moved or state.doing in _HELD or (state.doing == "idle" and case.crash_of(state) is not None)
        for state in case.states
        if state.facts.rank is not None and state.facts.id not in within and not case.is_child(state)
    )


def rank_key(group: Group, rank: int) -> str:
    """The process of a rank; a rank that is nowhere is a key of its own."""
    member = group.members.get(rank)
    return member.facts.id if member else f"{group.key[1]} {rank}"


def _mismatch(case: Case, found: Stuck) -> Verdict:
    odd = [found.group.members[rank] for rank in found.divergent]
    rest = [found.group.members[rank] for rank in sorted(found.said) if rank not in found.divergent]
    what = f"collective #{found.seq}" if not found.p2p else "a transfer"
    theirs, others = found.said[found.divergent[0]], found.said[rest[0].facts.rank or 0] if rest else ""
    sentence = (
        f"mismatched collectives: in {what} of group {found.group.title} {words.they(odd, 'is', 'are')} "
        f"in {theirs}{words.root(odd[0])}{words.at(odd[0])}, "
        f"while {words.they(rest, 'is', 'are')} in {others}"
        f"{words.root(rest[0]) if rest else ''}{words.at(rest[0]) if rest else ''}"
    )
    evidence = (*words.recorded(found), *_waits(case))
    # A transfer may be asked for long before its other end comes.
    decided = not found.p2p or case.decided(found.age)
    return Verdict("mismatch", sentence, words.culprit(odd[0]), found.age, evidence, decided)


def _missing(case: Case, roots: Sequence[tuple[Stuck, int]]) -> Verdict:
    """The worst of those that are missing: one that can never come before one that is merely late."""
    judged = [_absentee(case, each, rank) for each, rank in roots]
    worst = min(judged, key=lambda verdict: _GRAVITY.index(verdict.kind))
    others = [each for each in judged if each.kind == worst.kind]
    return replace(worst, sentence=worst.sentence + words.likewise([each.culprit for each in others if each.culprit]))


_GRAVITY: tuple[Kind, ...] = (
    *("dead", "raised", "frozen", "deadlock", "unreachable"),
    *("silent", "io", "missing", "slow", "moves"),
)


def _absentee(case: Case, found: Stuck, rank: int) -> Verdict:
    """Why a rank has not come to a collective that others wait in."""
    role = next(iter(found.group.members.values())).facts.role
    waiters = [found.group.members[each] for each in found.waiting]
    since = f"{words.they(waiters, 'waits', 'wait')} for it in {found.name}, for {words.span(found.age)}"
    evidence = (*words.recorded(found), *_waits(case))
    state = found.group.members.get(rank) or _speechless(case, rank, role)
    if state is None or state.doing == "dead":
        return _gone(case, rank, role, state, since, found, evidence)
    crash = case.crash_of(state)
    if crash is not None and state.doing in ("idle", "ray"):
        sentence = f"{words.name(state)} raised {crash.said}{words.at_frame(crash.at)}, and {since}"
        return Verdict("raised", sentence, words.culprit(state, crash.at), found.age, (words.crash(crash), *evidence))
    return _late(case, state, found, since, evidence)


def _speechless(case: Case, rank: int, role: str) -> State | None:
    """The process of a rank that could not say which groups it is in."""
    alike = (each for each in case.states if each.facts.rank == rank and each.facts.role == role)
    return next((each for each in alike if not each.facts.answers), None)


def _late(case: Case, state: State, found: Stuck, since: str, evidence: tuple[str, ...]) -> Verdict:
    name, at = words.name(state), words.at(state)
    decided = case.decided(found.age)
    kind: Kind
    if state.doing == "unreachable" and not state.moved:
        kind, text = "unreachable", f"{name} {words.lost(state)}; {since}"
    elif state.doing == "silent" and not state.moved:
        kind, text = "silent", f"{name} does not respond: a call seems to hold its Python (the GIL){at}; {since}"
    elif state.is_late:
        kind, text, decided = "moves", f"cannot tell: {name} {words.LATE}, and {since}", False
    elif state.doing == "io":
        kind, text = "io", f"{name} waits {words.io(state)}{at}{ends.follow(case, state)}; {since}"
    elif _is_at_work(case, state):
        kind, text = _slow_or_moving(found, name, at, since)
        decided = True
    else:
        end = chains.end_of(case, state)
        result = f"waits {chains.said(case, end)}," if end else ""
        idle = _idle(case, state) if state.doing == "idle" else ""
        does = words.unlisted(state) or result or idle or words.does(state)
        kind, text = "missing", f"{name} has not reached {found.name}: it {does}{at}, and {since}"
        if end and not end.runs and end.holder in [found.group.members[each] for each in found.waiting]:
            kind, text = "deadlock", f"deadlock: {name} waits{at} {chains.said(case, end)}, and {since}"
    return Verdict(kind, text, words.culprit(state), found.age, evidence, decided)


def _idle(case: Case, state: State) -> str:
    """With the call that it has done, if that is one of those that others wait for."""
    own = (each for each in case.now.calls.values() if each.id[OWN_PART:] == state.facts.actor_id)
    done = next((each.name for each in own if each.state == "FINISHED" and state.facts.actor_id), "")
    if state.about:
        return state.about
    return f"has returned from {done} and is idle" if done else "is idle, with no call under way"


def _is_at_work(case: Case, state: State) -> bool:
    """It moves, or waits for a process outside of its group that does."""
    if state.moved or state.doing == "busy":
        return True
    own = {group.place for group in state.facts.groups if group.ranks}
    others = (
        each
        for each in case.states
        if own.isdisjoint(group.place for group in each.facts.groups) and each.facts.role != "driver"
    )
    return state.doing == "ray" and any(each.moved or each.doing == "busy" for each in others)


def _slow_or_moving(found: Stuck, name: str, at: str, since: str) -> tuple[Kind, str]:
    ages = [entry.age for entry in found.group.facts(found.waiting[0]).entries if not entry.p2p]
    usual = max((older - newer for older, newer in pairwise(ages)), default=0.0)
    if found.age >= max(SLOW_SECONDS, SLOW_TIMES * usual):
        return (
            "slow",
            f"{name} is slow: it is working{at}, and {since}; their longest step so far took {words.span(usual)}",
        )
    return "moves", f"no hang: {name} is working{at}, and {since}"


def _gone(
    case: Case, rank: int, role: str, state: State | None, since: str, found: Stuck, evidence: tuple[str, ...]
) -> Verdict:
    age = found.age
    left = [each for each in case.now.left if each.rank == rank and each.role == role]
    facts = state.facts if state else left[-1] if left else None
    name = words.of_role(role, rank)
    if facts is None:
        there = [each for each in case.states if each.facts.rank == rank and each.facts.role == role]
        if making := next((each for each in there if each.doing == "meeting"), None):
            text = f"{name} makes another process group{words.at(making)}{_made(making)}, and {since}: {EACH_NEW_GROUP}"
            return Verdict("missing", text, words.culprit(making), age, evidence, case.decided(age))
        if there and (crash := _since_it_came(case, there[0], found)):  # as where a handler leaves the group
            text = f"{name} raised {crash.said}{words.at_frame(crash.at)}, and is not in the group; {since}"
            return Verdict("raised", text, words.culprit(there[0], crash.at), age, (words.crash(crash), *evidence))
        if there:  # started anew, outside of the group
            text = f"{name} is not in the group: it has left it, or was started anew; {since}"
            return Verdict("dead", text, words.culprit(there[0]), age, evidence, case.decided(age))
        text = f"{name} is absent: no process of this job that devkit is in has that rank, and {since}"
        return Verdict("dead", text, Culprit(role, rank, "", 0, "", 0, ""), age, evidence, case.decided(age))
    crash = next((each for each in reversed(case.now.crashes) if each.worker_id == facts.id), None)
    why = facts.problem or "its process is gone"
    told = f"{crash.said}{words.at_frame(crash.at)}" if crash else why
    at = crash.at if crash else None
    culprit = Culprit(role, rank, facts.node_ip, facts.pid, *(at or ("", 0, "")))
    return Verdict(
        "dead", f"{name} is dead ({told}), and {since}", culprit, age, (f"pid {facts.pid}: {why}", *evidence)
    )


def _since_it_came(case: Case, state: State, found: Stuck) -> CrashFacts | None:
    """The error of a rank that is out of the group, unless the group has done something together since."""
    crash = case.crash_of(state)
    ages = [entry.age for entry in found.group.facts(found.waiting[0]).entries if not entry.p2p][:-1]
    together = case.now.time - min(ages) if ages else 0.0
    return crash if crash is not None and crash.time + CLOCKS >= together else None


def _made(state: State) -> str:
    """How many groups it has made before the one that it makes."""
    made = state.facts.call.get("made") if state.facts.call else None
    return f", having made {made} before, the default one among them" if isinstance(made, int) and made > 0 else ""


def _crossed(case: Case, found: Sequence[Stuck]) -> Verdict:
    """Each waits in a group for one that waits in another group: by their order, or one would never have come.

    Who is in the call that only some ranks come to is to blame, else the one that is alone; of equal ones nobody.
    """
    evidence = (*(line for each in found for line in words.recorded(each)), *_waits(case))
    if (branch := branches.of(found)) is not None:
        odd = [branch.stuck.group.members[rank] for rank in branch.stuck.waiting]
        others = "; ".join(_waiting(each) for each in found if each is not branch.stuck)
        text = (
            f"mismatched collectives: {words.they(odd, 'waits', 'wait')} in {branch.stuck.name}{words.at(odd[0])}, "
            f"{branch.said}; {others}"
        )
        return Verdict("mismatch", text, words.culprit(odd[0]), branch.stuck.age, evidence)
    told = sorted(found, key=lambda each: (len(each.waiting), -min(each.waiting)))
    alone = len(told) == 2 and len(told[0].waiting) < len(told[1].waiting)
    told = told if alone else sorted(found, key=lambda each: min(each.waiting))
    text = (
        f"mismatched collectives: {', while '.join(map(_waiting, told[:2]))}{''.join(map(_also, told[2:]))}: "
        "they use the groups in different orders, or not all of a group make its call"
    )
    blamed = words.culprit(told[0].group.members[told[0].waiting[0]]) if alone else None
    return Verdict("mismatch", text, blamed, told[0].age, evidence)


def _waiting(found: Stuck) -> str:
    states = [found.group.members[rank] for rank in found.waiting]
    return f"{words.they(states, 'waits', 'wait')} in {found.name}{words.at(states[0])}"


def _also(found: Stuck) -> str:
    """Of a further group of a ring."""
    return f", and {_waiting(found)}"


def _together(case: Case, found: Stuck) -> Verdict:
    """Everybody is in it, in the same: what they send does not arrive."""
    members = [found.group.members[rank] for rank in found.waiting]
    dead = [state for state in found.group.members.values() if state.doing == "dead"]
    if dead:
        return _absentee(case, found, dead[0].facts.rank or 0)
    first = words.first(members)
    since = f"{words.they(members, 'is', 'are')} in {found.name}{words.at(first)} for {words.span(found.age)}"
    everybody = list(found.group.members.values())
    evidence = (*words.recorded(found), *_waits(case))
    since += f" and no rank is missing{_sizes(found)}"
    return cut_off(case, everybody, since, words.culprit(first), found.age, evidence)


def _sizes(found: Stuck) -> str:
    """Where the ranks give different ones: some collectives take that, and others wait for ever."""
    said = sorted({found.said[rank] for rank in found.waiting})
    return f", but their sizes differ: {' and '.join(said)}" if len(said) > 1 else ""


def cut_off(
    case: Case, states: Sequence[State], since: str, who: Culprit, age: float | None, evidence: tuple[str, ...]
) -> Verdict:
    """Nothing comes through between these; which two do not hear each other, where their connections tell."""
    deaf = words.deaf(states)
    if deaf:
        text = f"no data gets through between {words.both(deaf[0])}: {since}"
    else:
        hosts = sorted({state.facts.node_ip for state in states})
        ask = f"is there a route between {', '.join(hosts)}?" if len(hosts) > 1 else f"all of them are on {hosts[0]}"
        text = f"no data seems to get through: {since}; {ask}"
    lines = (*(words.unheard(each) for each in deaf), *evidence)
    return Verdict("network", text, who, age, lines, case.decided(age or 0.0))


def recorded(state: State) -> bool:
    return state.facts.rank is not None and any(group.waiting for group in state.facts.groups if group.ranks)


def of_peers(case: Case, peers: Sequence[State], op: str, since: str) -> Verdict:
    """Of the first of them, with those who are missing for the same reason."""
    failed = [each for each in peers if _of_peer(case, each, op, since).kind in ("dead", "raised")]
    first = words.first(failed or peers)
    found = _of_peer(case, first, op, since)
    alike = (each for each in peers if each is not first and _of_peer(case, each, op, since).kind == found.kind)
    return replace(found, sentence=found.sentence + words.likewise([words.culprit(each) for each in (first, *alike)]))


def _of_peer(case: Case, state: State, op: str, since: str) -> Verdict:
    crash = case.crash_of(state)
    if crash is not None and state.doing == "idle":
        return Verdict(
            "raised",
            f"{words.name(state)} raised {crash.said}{words.at_frame(crash.at)}, and {since}",
            words.culprit(state, crash.at),
        )
    if state.doing == "dead":
        return Verdict(
            "dead",
            f"{words.name(state)} is dead ({state.facts.problem or 'its process is gone'}), and {since}",
            words.culprit(state),
        )
    if state.doing == "unreachable":
        return Verdict("unreachable", f"{words.name(state)} {words.lost(state)}; {since}", words.culprit(state))
    kind: Kind = "io" if state.doing == "io" else "silent" if state.doing == "silent" else "missing"
    does = f"waits {words.io(state)}" if kind == "io" else words.does(state)
    if state.doing == "collective" and state.facts.call.get("op") in ("send", "recv"):
        does = f"is in {state.facts.call['op']}"
    return Verdict(
        kind, f"{words.name(state)} has not reached {op}: it {does}{words.at(state)}, and {since}", words.culprit(state)
    )
