"""Ranks that make a process group together: how many have come, as which ranks, and where. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from devkit.debug.naming import rank_list
from devkit.hang import resources, words
from devkit.hang.blame import cut_off, of_peers, recorded
from devkit.hang.case import Case
from devkit.hang.records import Verdict
from devkit.hang.states import State


def verdict(case: Case) -> Verdict | None:
    """Ranks that make a process group, or are in a collective that torch has no record of."""
    there = [
        state
        for state in case.states
        if state.doing in ("meeting", "collective") and not state.moved and state.facts.call and not recorded(state)
    ]
    if not there:
        return None
    op = str(there[0].facts.call.get("op"))
    there = [state for state in there if _meets(state) == _meets(there[0])]
    roles = {state.facts.role for state in there}
    peers = [state for state in case.states if state.facts.role in roles and state not in there]
    size = max(int(state.facts.call.get("world_size") or 0) for state in there) or len(there) + len(peers)
    since = f"{words.they(there, 'waits', 'wait')} in {op}{words.at(there[0])}"
    evidence, decided = words.waits(case.states), case.decided(0.0)
    if given := _given_twice(there, size):
        return Verdict(
            "missing", f"{since} for {size} ranks, {given}", words.culprit(there[0]), None, evidence, decided
        )
    if pending := resources.verdict(case.first, case.now, evidence, decided):
        return pending  # those who have not come may not have been started
    frank = [state for state in peers if not (state.moved or state.doing == "busy")] if len(there) < size else []
    if len(there) < size and len(peers) > len(frank):
        return Verdict(
            "moves", f"no hang: {words.named([s for s in peers if s not in frank])} is making progress, and {since}"
        )
    if frank:
        return replace(of_peers(case, frank, op, since), evidence=evidence, decided=decided)
    if len(there) < size:
        arrived = f"only {len(there)} {'has' if len(there) == 1 else 'have'} arrived"
        who = f"no other {there[0].facts.role} process is" if len(roles) == 1 else "no other process of theirs is"
        elsewhere = _elsewhere(case, there, op)
        text = f"{since} for {size} ranks, but {arrived}: {elsewhere or f'{who} in this job'}"
        return Verdict("missing", text, words.culprit(there[0]), None, evidence, decided)
    all_of = f"all {len(there)} ranks are in {op}{words.at(there[0])}"
    return cut_off(case, there, all_of, words.culprit(there[0]), None, evidence)


def _meets(state: State) -> tuple[str, int, str]:
    """The same for those who come together: the call, for how many, and where they meet, if they say so."""
    call = state.facts.call
    return str(call.get("op")), int(call.get("world_size") or 0), str(call.get("init_method") or "")


def _given_twice(there: Sequence[State], size: int) -> str:
    """That a rank was given to two, and which is missing for it; empty where that is not so."""
    ranks = [state.facts.call.get("rank") for state in there]
    known = [rank for rank in ranks if isinstance(rank, int) and rank >= 0]
    twice = sorted({rank for rank in known if known.count(rank) > 1})
    if len(known) < len(there) or not twice:
        return ""
    missing = sorted(set(range(size)) - set(known))
    takers = [words.name(state) for state in there if state.facts.call.get("rank") == twice[0]]
    are = "rank {} is" if len(missing) == 1 else "ranks {} are"
    absent = f", and {are.format(rank_list(missing))} missing" if missing else ""
    given = f"as ranks {', '.join(map(str, sorted(known)))}"
    return f"{given}: rank {twice[0]} is taken by {' and by '.join(takers)}{absent}"


def _elsewhere(case: Case, there: Sequence[State], op: str) -> str:
    """Who is in the same call for another number of ranks, or at another address."""
    others = [
        state
        for state in case.states
        if state not in there and state.facts.call.get("op") == op and state.doing == "meeting"
    ]
    if not others:
        return ""
    _, size, place = _meets(others[0])
    alike = [state for state in others if _meets(state) == _meets(others[0])]
    where = f" at {place}" if place and place != _meets(there[0])[2] else ""
    return f"{words.they(alike, 'is', 'are')} in {op} for {size} ranks{where}"
