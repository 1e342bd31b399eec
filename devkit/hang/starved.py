"""Processes that were given no core in time to answer, which is neither work nor a lock. Pure.

Who holds Python's lock in a call of C is mute alone, while the driver and who has nothing to do answer at once.
"""

from __future__ import annotations

from devkit.hang import words
from devkit.hang.case import Case
from devkit.hang.records import Verdict
from devkit.hang.states import State

_MUTE = frozenset({"silent", "busy"})


def verdict(case: Case) -> Verdict | None:
    """None where one process alone is mute, or only such as stand in the program."""
    mute = [each for each in case.states if _is_mute(each)]
    if len(mute) < 2 or not any(each.facts.role == "driver" or not each.facts.stack.stack for each in mute):
        return None
    text = (
        f"cannot tell: {words.named(mute)} did not answer in time, as where a machine is too busy to run them all; "
        "ask again, or when it is less busy"
    )
    others = [each for each in case.states if each not in mute]
    return Verdict("idle", text, None, None, words.waits(others), case.decided(0.0))


def once(case: Case) -> Verdict | None:
    """Where nobody moves, and some answered before and not now: no sign of work, and a later look tells more."""
    late = [each for each in case.states if each.is_late]
    others = [each for each in case.states if each not in late]
    if not late or any(each.moved or each.doing == "busy" or each.works_beside for each in others):
        return None
    text = f"cannot tell: {words.named(late)} {words.LATE}, as where a machine is too busy; ask again"
    return Verdict("moves", text, words.culprit(late[0]), None, words.waits(others), decided=False)


def _is_mute(state: State) -> bool:
    return not state.facts.answers and state.facts.seen and state.doing in _MUTE


__all__ = ["once", "verdict"]
