"""A call of C that computes, holds Python's lock all the while, and does not return: a regular expression that
backtracks for ever, say. The process answers nobody; a neighbour sees its stack, and the kernel that it computes. Pure.
"""

from __future__ import annotations

from devkit.hang import chains, words
from devkit.hang.case import Case
from devkit.hang.records import Verdict
from devkit.hang.states import State

TIMES = 2  # as long as for a wait: it may be long work
SHARE = 0.5  # of a core: who has less may not answer because others have the cores
_MAY_BE_WORK = "if that call may rightly take longer, this is no hang: devkit hang --after SECONDS looks for longer"


def verdict(case: Case) -> Verdict | None:
    """None where a step or a collective has ended."""
    found = [state for state in case.states if _holds(case, state)]
    if not found or any(state.advanced for state in case.states):
        return None
    first = words.first(found)
    alike = [state for state in found if state.place == first.place]
    theirs, awaited = {state.facts.id for state in alike}, chains.awaited(case)
    waiting = [state for state in case.states if awaited.get(state.facts.id, ("", ""))[1] in theirs]
    lock = f"one call{words.at(first)} has held {'its' if len(alike) == 1 else 'their'} Python's lock (the GIL)"
    text = (
        f"{words.they(alike, 'does', 'do')} not respond: {lock} for at least {words.span(case.seconds)}, and computes"
    )
    if waiting:
        text += f"; {words.they(waiting, 'waits', 'wait')} for {words.named(alike)}"
    evidence = (*words.waits(case.states, awaited), _MAY_BE_WORK)
    return Verdict("silent", text, words.culprit(first), None, evidence, case.decided(0.0, TIMES))


def _holds(case: Case, state: State) -> bool:
    before, now = case.before.get(state.facts.id), state.facts
    if before is None or before.answers or now.answers or not now.seen or state.doing != "busy":
        return False
    if now.heard is not None and now.heard < case.seconds:  # its Python has run meanwhile: it is late, and no more
        return False
    stays = state.place is not None and state.place in before.stack.stack
    return stays and now.cpu - before.cpu >= SHARE * case.seconds


__all__ = ["verdict"]
