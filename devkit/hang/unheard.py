"""Background tasks that have failed where nobody awaits them, in another process than the one that waits. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from devkit.hang import reasons, words
from devkit.hang.case import Case
from devkit.hang.records import Verdict

MOST = 2  # that are told
_WAITS = ("stuck", "idle")  # verdicts that rest on nothing but a wait


def explain(found: Verdict, case: Case) -> Verdict:
    """The verdict with what may have been waited for."""
    failed = list(_failed(found, case))[:MOST]
    if not failed or found.kind not in _WAITS:
        return found
    sentence = f"{found.sentence}; {failed[0]}" if found.hang else found.sentence
    return replace(found, sentence=sentence, evidence=(*failed[found.hang :], *found.evidence))


def _failed(found: Verdict, case: Case) -> Iterator[str]:
    blamed = found.culprit.pid if found.culprit else None
    for state in case.states:
        for each in state.facts.ended if state.facts.pid != blamed else ():
            if each.kind == "task" and each.said:
                what = "a background task" if each.count == 1 else f"{each.count} background tasks"
                yield f"{what} of {words.name(state)}, {each.name},{reasons.failed(each, reasons.in_all(state, each))}"


__all__ = ["explain"]
