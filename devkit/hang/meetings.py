"""Ranks that make a process group together: how many have come, as which ranks, and where. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from devkit.debug.naming import rank_list
from devkit.hang import absent, chains, resources, transfers, words
from devkit.hang.blame import cut_off, of_peers, recorded
from devkit.hang.case import Case
from devkit.hang.facts import GroupFacts
from devkit.hang.records import Kind, Verdict
from devkit.hang.states import State

# What is told of several meetings: one that cannot be held before one that may only be late.
_GRAVITY: tuple[Kind, ...] = (
    "dead",
    "raised",
    "missing",
    "unreachable",
    "silent",
    "io",
    "resource",
    "network",
    "moves",
)


FIRST = "init_process_group"


class Meeting(NamedTuple):
    """For whom ranks wait in a call. 0 and empty: not known, so it may be any."""

    op: str
    size: int
    place: str

    def may_be(self, other: Meeting) -> bool:
        """
        >>> Meeting("init_process_group", 2, "").may_be(Meeting("init_process_group", 0, "10.0.0.1:29500"))
        True
        """
        sizes = {self.size, other.size} - {0}
        return self.op == other.op and len(sizes) < 2 and _is_one(self.place, other.place)


def _is_one(place: str, other: str) -> bool:
    """A host may have a name beside its address.

    >>> _is_one("localhost:29500", "127.0.0.1:29500"), _is_one("10.0.0.1:29500", "127.0.0.1:29500")
    (True, False)
    """
    if not (place and other) or place == other:
        return True
    (host, _, port), (host2, _, port2) = place.rpartition(":"), other.rpartition(":")
    return port == port2 and not (_is_address(host) and _is_address(host2))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def verdict(case: Case) -> Verdict | None:
    """Ranks that make a process group, or are in a collective that torch has no record of; not in a transfer."""
    waiting = [
        state
        for state in case.states
        if state.doing in ("meeting", "collective") and not state.moved and state.facts.call and not recorded(state)
    ]
    waiting = [state for state in waiting if not transfers.is_one(state)]
    found = [_judge(case, there, waiting) for there in _gathered(waiting) if not _follows(there, waiting)]
    return min(found, key=_gravity, default=None)


def _follows(there: Sequence[State], waiting: Sequence[State]) -> bool:
    """Whether those that it waits for are still in `init_process_group`, which is what there is to tell."""
    roles = {state.facts.role for state in there}
    first = [state for state in waiting if state not in there and _meeting(state).op == FIRST]
    return _meeting(there[0]).op != FIRST and any(state.facts.role in roles for state in first)


def _through(there: Sequence[State], peers: Sequence[State]) -> list[State]:
    """Who has come through `init_process_group` already.

    Of two that can't reach each other both stay in it, on two machines; one that stays alone has come a second time.
    """
    meeting = _meeting(there[0])
    if meeting.op != FIRST or len({state.facts.node_ip for state in there}) < 2:
        return []
    return [state for state in peers if any(_is_of(group, meeting) for group in state.facts.groups)]


def _is_of(group: GroupFacts, meeting: Meeting) -> bool:
    return len(group.ranks) == meeting.size and _is_one(meeting.place, group.world)


def _gravity(found: Verdict) -> int:
    return _GRAVITY.index(found.kind) if found.kind in _GRAVITY else len(_GRAVITY)


def _gathered(states: Sequence[State]) -> list[list[State]]:
    """Who may be waiting for each other; those who know most about where they meet come first."""
    found: list[list[State]] = []
    for state in sorted(states, key=lambda each: -sum(map(bool, _meeting(each)))):
        own = next((there for there in found if _meeting(there[0]).may_be(_meeting(state))), None)
        if own is None:
            found.append([state])
        else:
            own.append(state)
    return [[state for state in states if state in there] for there in found]


def _meeting(state: State) -> Meeting:
    """As torch knows it by now: of `env://` it has the size and the address only once it has read them."""
    call = state.facts.call
    place = str(call.get("place") or call.get("init_method") or "")
    return Meeting(
        str(call.get("op")),
        max(int(call.get("world_size") or 0), 0),
        "" if place.startswith("env://") else place.removeprefix("tcp://").partition("?")[0],
    )


def _judge(case: Case, there: Sequence[State], waiting: Sequence[State]) -> Verdict:
    op = _meeting(there[0]).op
    roles = {state.facts.role for state in there}
    apart = _apart(there, waiting)
    peers = [each for each in case.states if each.facts.role in roles and each not in there and each not in apart]
    through = _through(there, peers)
    peers = [each for each in peers if each not in through]
    size = max(_meeting(state).size for state in there) or len(there) + len(through) + len(peers)
    since = f"{words.they(there, 'waits', 'wait')} in {op}{words.at(words.first(there))}"
    evidence, decided = words.waits(case.states, chains.awaited(case)), case.decided(0.0)
    culprit = words.culprit(words.first(there))
    if given := _given_twice(there, size):
        return Verdict("missing", f"{since} for {size} ranks, {given}", culprit, None, evidence, decided)
    if apart_by := _out_of_step(there):
        text = f"{words.named(there)} are all in {op}{words.at(words.first(there))}, but {apart_by}"
        return Verdict("mismatch", text, culprit, None, evidence, decided)
    if pending := resources.verdict(case.first, case.now, evidence, decided):
        return pending  # those who have not come may not have been started
    came = len(there) + len(through)
    frank = [state for state in peers if not (state.moved or state.doing == "busy")] if came < size else []
    if came < size and len(peers) > len(frank):
        rest = [state for state in peers if state not in frank]
        at_work = [state for state in rest if not state.is_late]
        if not at_work:
            return Verdict("moves", f"cannot tell: {words.named(rest)} {words.LATE}, and {since}", decided=False)
        return Verdict("moves", f"no hang: {words.they(at_work, 'is', 'are')} working, and {since}")
    if frank:
        return replace(of_peers(case, frank, op, since), evidence=evidence, decided=decided)
    if came < size:
        arrived = f"only {came} {'has' if came == 1 else 'have'} arrived"
        who = f"other {there[0].facts.role} process" if len(roles) == 1 else "other process of theirs"
        why = _elsewhere(there[0], apart) or f"devkit sees no {who} in this job{_idle(case, there)}"
        text = f"{since} for {size} ranks, but {arrived}: {why}"
        absentee = Verdict("missing", text, culprit, None, evidence, decided)
        return absent.of_meeting(case, absentee, there, _missing_ranks(there, size))
    ranks = f"{len(there)} of {came}" if through else f"all {came}"
    all_of = f"{ranks} ranks are in {op}{words.at(words.first(there))}"
    if through:
        all_of += f", and {words.they(through, 'has', 'have')} come through it"
    return cut_off(case, there, all_of, culprit, None, evidence)


def _idle(case: Case, there: Sequence[State]) -> str:
    """Who has nothing to do meanwhile: those who are to come may be of another role."""
    idle = [each for each in case.states if each.doing == "idle" and each not in there and not case.is_child(each)]
    quiet = [each for each in idle if not each.about]
    told = f"; idle {'is' if len(quiet) == 1 else 'are'} {words.named(quiet)}" if quiet else ""
    return f"{told}{words.at_rest(idle)}"


def _missing_ranks(there: Sequence[State], size: int) -> set[int]:
    """Empty where not all that have come say which rank they are."""
    ranks = [state.facts.call.get("rank") for state in there]
    known = {rank for rank in ranks if isinstance(rank, int) and 0 <= rank < size}
    return set(range(size)) - known if len(known) == len(there) else set()


def _given_twice(there: Sequence[State], size: int) -> str:
    """Which ranks were given to two, and which are missing for it; empty where that is not so."""
    ranks = [state.facts.call.get("rank") for state in there]
    known = [rank for rank in ranks if isinstance(rank, int) and rank >= 0]
    twice = sorted({rank for rank in known if known.count(rank) > 1})
    if len(known) < len(there) or not twice:
        return ""
    missing = sorted(set(range(size)) - set(known))
    are = "rank {} is" if len(missing) == 1 else "ranks {} are"
    absent = f", and {are.format(rank_list(missing))} missing" if missing else ""
    given = f"as ranks {', '.join(map(str, sorted(known)))}"
    taken = "; ".join(_takers(there, rank) for rank in twice)
    return f"{given}: {taken}{absent}"


def _out_of_step(there: Sequence[State]) -> str:
    """Of ranks that make a group under different numbers; empty where they have made as many before."""
    if len({str(state.facts.call.get("ranks")) for state in there}) > 1:
        return ""  # who does not belong to a group goes on to the next one
    by_made: dict[int, list[State]] = {}
    for state in there:
        made = state.facts.call.get("made")
        if not isinstance(made, int):
            return ""
        by_made.setdefault(made, []).append(state)
    if len(by_made) < 2:
        return ""
    most = max(by_made)
    parts = [
        f"{words.they(states, 'has', 'have')} made {made or 'none'} before"
        for made, states in sorted(by_made.items(), reverse=True)
    ]
    extra = most - min(by_made)
    missed = "one group" if extra == 1 else f"{extra} groups"
    return (
        f"under different names, since a group is named by how many its rank has made: {', '.join(parts)}, the default "
        f"one among them; {missed} not every rank has made, and each has to call every new_group, in the same order"
    )


def _takers(there: Sequence[State], rank: int) -> str:
    takers = [words.name(state) for state in there if state.facts.call.get("rank") == rank]
    return f"rank {rank} is taken by {' and by '.join(takers)}"


def _apart(there: Sequence[State], waiting: Sequence[State]) -> list[State]:
    """Who is in the same call for another number of ranks, or at another address."""
    op = _meeting(there[0]).op
    others = (state for state in waiting if state not in there)
    return [state for state in others if state.doing == "meeting" and _meeting(state).op == op]


def _elsewhere(state: State, apart: Sequence[State]) -> str:
    """The first of these groups that lacks somebody, too."""
    mine = _meeting(state)
    by_meeting = {_meeting(each): [one for one in apart if _meeting(one) == _meeting(each)] for each in apart}
    lacking = [found for found in by_meeting.items() if len(found[1]) < (found[0].size or len(apart) + 1)]
    if not lacking:
        return ""
    theirs, alike = lacking[0]
    size = f" for {theirs.size} ranks" if theirs.size else ""
    where = f" at {theirs.place}" if theirs.place and theirs.place != mine.place else ""
    return f"{words.they(alike, 'is', 'are')} in {mine.op}{size}{where}"
