"""Tasks that hold what others ask Ray for, and wait themselves: for whom, and where that ends. Pure.

An actor holds what it has for its life, whatever it waits for; a task gives it back at its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from devkit.hang import chains, ends, words
from devkit.hang.case import Case
from devkit.hang.facts import Holder
from devkit.hang.states import State

MOST = 3  # waits for results that are told
_WAITS = frozenset({"io", "ray", "wait", "lock", "collective", "meeting"})


class Waits(NamedTuple):
    """What the tasks among some holders wait for."""

    said: str  # "task rollout pid 904 waits for data from TCP ... at h11.py:16 in request"
    end: State | None  # who keeps the first of them waiting; None: that is not known


def waits(case: Case, held: Sequence[Holder]) -> Waits | None:
    """None where one of the tasks is at work or unknown, or where what asks is what the first one waits for."""
    tasks = [holder for holder in held if holder.kind == "task"]
    states = [state for holder in tasks if (state := case.by_id.get(holder.place)) is not None]
    if not states or len(states) < len(tasks) or any(each.moved or each.doing not in _WAITS for each in states):
        return None
    first = words.first(states)
    asked = {each.id for each in case.now.pending}
    if any(task in asked for wait in first.facts.waits for task in wait.tasks):
        return None
    told, end = _followed(case, first)
    alike = [each for each in states if (each.doing, each.place) == (first.doing, first.place)]
    so = f" ({len(alike) - 1} more at the same line)" if len(alike) > 1 else ""
    other = f", {len(states) - len(alike)} more at other lines" if len(alike) < len(states) else ""
    return Waits(f"{_does(case, first)}{so}{other}{told}", end)


def _does(case: Case, state: State) -> str:
    who, at = words.name(state), words.at(state)
    if state.doing == "io":
        return f"{who} waits {words.io(state)}{at}"
    end = chains.end_of(case, state)
    return f"{who} waits{at} {chains.said(case, end)}" if end else f"{who} {words.does(state)}{at}"


def _followed(case: Case, first: State) -> tuple[str, State | None]:
    """From one to the next, over connections and calls that run, and who stands at the end of that."""
    told, at, seen = "", first, [first]
    while len(seen) <= MOST:
        line, end = ends.follow(case, at), chains.end_of(case, at)
        told += str(line)
        after = line.hops[-1].state if line.hops else end.holder if end is not None and end.runs else None
        if after is None or after in seen:
            break
        further = chains.end_of(case, after)
        if not line.hops:
            told += f"; {_does(case, after)}"
        elif further is not None:
            told += f", {chains.said(case, further)}"
        at = after
        seen.append(at)
    return told, at if at is not first and not at.moved and at.doing not in ("idle", "busy") else None


__all__ = ["Waits", "waits"]
