"""Loops that compute without end, since their variables come back to the same values: two rules that undo each other.

`debug/inworker/repeating.py` sees which these are. One call of the function is told from the next, and in all looks it
has to be the same one. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

from devkit.debug.inworker.identity import DRIVER
from devkit.hang import chains, words
from devkit.hang.case import Case, Sighting
from devkit.hang.records import Verdict
from devkit.hang.standing import Turn
from devkit.hang.states import State

LATELY = 3.0  # seconds: it was seen at the newest look, or at the one before
OUTSIDE = "as long as its variables come back, nothing in its function ends the loop"


def verdict(case: Case, times: float) -> Verdict | None:
    """None before that was seen for `times` as long as a wait has to last, and where the job goes on all the same."""
    found = next(((state, each) for state, each in _seen(case) if _span(each) >= times * case.patience), None)
    if found is None:
        return None
    state, (_, turn, first, last) = found
    awaited = chains.awaited(case)
    others, holders = [each for each in case.states if each is not state], chains.holders(case)
    waiting = [each for each in others if awaited.get(each.facts.id, ("", ""))[1] == state.facts.id]
    goes_on = any(each.moved for each in others if each.facts.role == DRIVER or not waiting)
    if goes_on or (holders and state.facts.id not in holders):  # others wait for something else
        return None
    waits = f"; {words.they(waiting, 'waits', 'wait')} for {words.name(state)}" if waiting else ""
    thread = words.thread_in(state, turn.at)
    text = (
        f"no progress: {words.name(state)} is in the loop `{turn.loop}`{words.at_frame(turn.at)}{thread}; the loop's "
        "variables come back to the same values again and again, "
        f"for at least {words.span(last - first)}: {_values(turn)}{waits}"
    )
    ends = f"{OUTSIDE} `{turn.loop}`{'' if thread else '; a signal may'}"
    evidence = (*words.waits(case.states, awaited), ends)
    return Verdict("livelock", text, words.culprit(state, turn.at), None, evidence, True)


def may(case: Case, times: float) -> bool:
    """Whether there is such a loop, of which it is too early to say that."""
    return any(_span(each) < times * case.patience for _, each in _seen(case))


def _seen(case: Case) -> Iterator[tuple[State, Sighting]]:
    """Of processes that are in nothing else."""
    for each in case.seen.turned:
        state = case.by_id.get(each.process)
        if each.turn.states and state is not None and case.now.time - each.last < LATELY and _is_all(case, state, each):
            yield state, each


def _is_all(case: Case, state: State, each: Sighting) -> bool:
    """Whether nothing but the loop moves there: a thread that nobody waits for any more may be left behind in one."""
    same = case.first.tasks.get(each.process) == case.now.tasks.get(each.process)
    place = state.place
    inside = place is not None and (place.file, place.function) == (each.turn.at.file, each.turn.at.function)
    return same and not state.facts.dead and not state.advanced and (inside or not state.moved)


def _span(each: Sighting) -> float:
    return each.last - each.first


def _values(turn: Turn) -> str:
    """
    >>> from devkit.debug.stack_groups import Frame
    >>> _values(Turn(Frame("a.py", 1, "f"), "while True", (), "", (("x", ("'a'", "'b'", "'c'")), ("y", ("1",)))))
    "x = 'a', 'b' or 'c', y = 1"
    """
    known = ((name, [*values]) for name, values in turn.states)
    texts = (f"{name} = {' or '.join(filter(None, (', '.join(each[:-1]), each[-1])))}" for name, each in known if each)
    return ", ".join(texts) or "it has none that change"


__all__ = ["OUTSIDE", "may", "verdict"]
