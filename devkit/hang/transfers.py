"""Ranks that wait in a transfer of which torch has no record: out of step, crossed, or without another end. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from devkit.hang import chains, words
from devkit.hang.blame import cut_off, of_peers, recorded
from devkit.hang.case import Case
from devkit.hang.records import Verdict
from devkit.hang.states import State

SEND, RECEIVE = "send", "recv"
_PEER = {SEND: ("dst", "group_dst"), RECEIVE: ("src", "group_src")}
_DOES = {SEND: "sends to", RECEIVE: "receives from"}


class Transfer(NamedTuple):
    """One end of it. `peer` is None where it takes what any rank sends."""

    state: State
    op: str
    peer: int | None
    tag: int

    def __str__(self) -> str:
        return self._said(f" with tag {self.tag}")

    @property
    def without_tag(self) -> str:
        """As programs write it that have none."""
        return self._said(f" with tag {self.tag}" if self.tag else "")

    def _said(self, tag: str) -> str:
        whom = "any rank" if self.peer is None else f"rank {self.peer}"
        return f"{words.name(self.state)} {_DOES[self.op]} {whom}{tag}{words.at(self.state)}"


def is_one(state: State) -> bool:
    """Whether a process is in a transfer, and not in a call that all ranks of a group make."""
    return state.facts.call.get("op") in _PEER


def verdict(case: Case) -> Verdict | None:
    """Two that wait for each other, and not for the same; one whose other end does not come; two that do not meet."""
    ends = list(_ends(case))
    if not ends:
        return None
    return _mismatched(case, ends) or _alone(case, ends) or _cut_off(case, ends)


def _alone(case: Case, ends: Sequence[Transfer]) -> Verdict | None:
    """Of the first that nobody else is in; one whose other end is late before one whose other end is not known."""
    lone = [one for one in ends if not any(_are_ends(one, other) for other in ends if other is not one)]
    known = [(one, end) for one in lone if (end := _other_end(case, one))]
    evidence, decided = words.waits(case.states, chains.awaited(case)), case.decided(0.0)
    for one, other in known:
        since = f"{words.name(one.state)} waits in {one.op}{words.at(one.state)}"
        if other.is_late:
            return Verdict("moves", f"cannot tell: {words.name(other)} {words.LATE}, and {since}", decided=False)
        if other.moved or other.doing == "busy":
            return Verdict("moves", f"no hang: {words.name(other)} is working, and {since}")
        does = "receive" if one.op == SEND else "send"
        late = of_peers(case, [other], f"the {does} for it", since)
        return replace(late, evidence=evidence, decided=decided)
    if not lone:
        return None
    one = lone[0]
    told = f"no progress: {one.without_tag}, and no process of this job is known to be in the other end of that"
    return Verdict("missing", told, words.culprit(one.state), None, evidence, decided)


def _cut_off(case: Case, ends: Sequence[Transfer]) -> Verdict:
    """Both ends are there, and nothing comes through."""
    one = ends[0]
    other = next(each for each in ends if each is not one and _are_ends(one, each))
    since = f"{one.without_tag}, and {other.without_tag}"
    states = [one.state, other.state]
    return cut_off(case, states, since, words.culprit(one.state), None, words.waits(case.states, chains.awaited(case)))


def _are_ends(one: Transfer, other: Transfer) -> bool:
    return _are_two_ends(one, other) or _are_two_ends(other, one)


def _other_end(case: Case, one: Transfer) -> State | None:
    """The process of the rank that it names, in a group that both know; None where no or several may be meant."""
    own = {group.place for group in one.state.facts.groups if one.peer in group.ranks}
    found = [
        state
        for state in case.states
        if state is not one.state
        and state.facts.rank == one.peer
        and any(group.place in own for group in state.facts.groups)
    ]
    return found[0] if len(found) == 1 else None


def _mismatched(case: Case, ends: Sequence[Transfer]) -> Verdict | None:
    pairs = ((one, other) for one in ends for other in ends if one is not other and _are_two_ends(one, other))
    found = next((pair for pair in pairs if _why_apart(*pair)), None)
    if found is None:
        return None
    one, other = found
    text = f"mismatched transfers: {one}, while {other}: {_why_apart(one, other)}"
    evidence = words.waits(case.states)
    return Verdict("mismatch", text, words.culprit(one.state), None, evidence, case.decided(0.0))


def _why_apart(one: Transfer, other: Transfer) -> str:
    """Why neither can end; empty where they may be the same transfer."""
    if one.op == other.op:
        return (
            f"both {'send' if one.op == SEND else 'receive'}, and neither {'receives' if one.op == SEND else 'sends'}"
        )
    return "the tags differ" if one.tag != other.tag else ""


def _ends(case: Case) -> Iterator[Transfer]:
    for state in case.states:
        call = state.facts.call
        op = str(call.get("op") or "")
        if op in _PEER and state.doing == "collective" and not state.moved and not recorded(state):
            peers = (call[name] for name in _PEER[op] if isinstance(call.get(name), int))
            yield Transfer(state, op, next(peers, None), int(call.get("tag") or 0))


def _are_two_ends(one: Transfer, other: Transfer) -> bool:
    """Whether each waits for the other; a sender always says for whom."""
    first = one.op == SEND or (one.op == other.op and one.peer is not None)
    mine, theirs = one.state.facts.rank, other.state.facts.rank
    return (
        first
        and _group(one) == _group(other)
        and mine is not None
        and one.peer == theirs
        and other.peer in (None, mine)
    )


def _group(end: Transfer) -> str:
    """torch's `send` knows the name of the default group by then, and its `recv` does not."""
    return str(end.state.facts.call.get("group") or "0")
