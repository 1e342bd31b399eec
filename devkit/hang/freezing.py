"""Processes that a signal has stopped, or a tracer: which, who waits for one of them, and who has sent that. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from devkit.hang import ends, words
from devkit.hang.case import Case
from devkit.hang.facts import FROZEN
from devkit.hang.records import Verdict
from devkit.hang.states import State

_TRACED = "t"


class _Waiter(NamedTuple):
    """Who waits for something that only a stopped process can do."""

    state: State
    frozen: State
    is_lock: bool  # what it waits for


def verdict(case: Case) -> Verdict | None:
    """Of several that were stopped alike, all of them; the one that somebody waits for is to blame."""
    found = [state for state in case.states if state.doing == "frozen" and _was_before(case, state)]
    if not found:
        return None
    waiter = _waiter(case, found)
    first = waiter.frozen if waiter else words.first(found)
    alike = [state for state in found if (state.facts.state, state.facts.role) == (first.facts.state, first.facts.role)]
    text = f"{words.they(alike, 'is', 'are')} frozen: {_how(first, alike)}{_sender(case, first)}{_waits(waiter, alike)}"
    fact = f"state {first.facts.state} of pid {first.facts.pid} on {first.facts.node_ip}, as seen by its neighbour"
    return Verdict("frozen", text, words.culprit(first), None, (fact, *words.waits(case.states)))


def _was_before(case: Case, state: State) -> bool:
    return state.facts.id in case.before and case.before[state.facts.id].state in FROZEN


def _how(first: State, alike: Sequence[State]) -> str:
    many, traced = len(alike) > 1, first.facts.state == _TRACED
    stopped = f"{'their processes were' if many else 'its process was'} stopped by"
    if traced:
        goes_on = "they go on when that lets them" if many else "it goes on when that lets it"
        return f"{stopped} a tracer such as gdb or strace; {goes_on}"
    pids = " ".join(str(state.facts.pid) for state in alike)
    return f"{stopped} a signal such as SIGSTOP; kill -CONT {pids} resumes {'them' if many else 'it'}"


def _sender(case: Case, first: State) -> str:
    """Who of the job has stopped it."""
    near = (state for state in case.states if state.facts.node_ip == first.facts.node_ip)
    for state in near:
        for halt in state.facts.halts:
            if halt.pid == first.facts.pid:
                return f"; {words.name(state)} sent {halt.signal} to pid {halt.pid}{words.at_frame(halt.at)}"
    return ""


def _waiter(case: Case, frozen: Sequence[State]) -> _Waiter | None:
    """The first whose pipe or connection has one of them at its other end, or whose lock of a file one of them has."""
    for state in case.states:
        hop = next(iter(ends.follow(case, state).hops), None)
        if hop is not None and any(hop.state is each for each in frozen):
            return _Waiter(state, hop.state, hop.is_lock)
    return None


def _waits(waiter: _Waiter | None, alike: Sequence[State]) -> str:
    if waiter is None:
        return ""
    whom = f"pid {waiter.frozen.facts.pid}" if len(alike) > 1 else "it"
    has = f"which {whom} holds" if waiter.is_lock else f"whose other end {whom} has"
    return f"; {words.name(waiter.state)} waits {words.io(waiter.state)}{words.at(waiter.state)}, {has}"


__all__ = ["verdict"]
