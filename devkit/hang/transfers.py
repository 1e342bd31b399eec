"""Two ranks that wait in a transfer between them of which torch has no record: out of step, or crossed. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from devkit.hang import words
from devkit.hang.blame import recorded
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
        whom = "any rank" if self.peer is None else f"rank {self.peer}"
        return f"{words.name(self.state)} {_DOES[self.op]} {whom} with tag {self.tag}{words.at(self.state)}"


def verdict(case: Case) -> Verdict | None:
    """Two that wait for each other, and not for the same."""
    ends = list(_ends(case))
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
        return f"both {'send' if one.op == SEND else 'receive'}, and nobody {'receives' if one.op == SEND else 'sends'}"
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
