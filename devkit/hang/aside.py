"""Processes at work for which nobody waits, while what is waited for stands: a monitor beside a job that hangs, or who
is to end that wait. Which of both cannot be seen. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from devkit.hang import chains, words
from devkit.hang.case import Case
from devkit.hang.chains import End
from devkit.hang.states import Doing, State

_STANDS: frozenset[Doing] = frozenset({"wait", "lock"})  # what ends only by somebody else's doing


def said(case: Case, busy: Sequence[State]) -> str:
    """What is waited for meanwhile; empty where some of those at work may be waited for, or what stands may go on."""
    ends, awaited = chains.ends(case), chains.holders(case)
    if not ends or not all(map(_stands, ends)) or any(_may_count(case, state, awaited) for state in busy):
        return ""
    end = next((end for end in ends if end.waiter.facts.role == "driver"), ends[0])
    stands = f"; {words.do([end.holder])}{words.at(end.holder)}" if end.holder else ""
    them = words.verb(busy, "it", "them")
    return f", but nobody is seen to wait for {them}: {words.name(end.waiter)} waits {chains.said(case, end)}{stands}"


def _stands(end: End) -> bool:
    holder = end.holder
    return holder is not None and end.runs and holder.doing in _STANDS and not (holder.moved or holder.works_beside)


def _may_count(case: Case, state: State, awaited: frozenset[str]) -> bool:
    own = state.facts.id in awaited or state.works_beside or state.facts.role == "driver"
    return own or case.is_child(state) or state.facts.rank is not None


__all__ = ["said"]
