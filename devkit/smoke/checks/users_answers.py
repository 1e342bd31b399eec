"""What stands around a right answer, and what a user's reward function makes of that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from devkit.smoke.checks.outcome import Outcome
from devkit.smoke.checks.users_own import unsteady, where_to_look
from devkit.smoke.made_up_responses import INSIDE, PLAIN, Around, shown
from devkit.smoke.probing import Probed

_DECIDES = {
    "other words": "words before a right answer make it wrong",
    "several lines": "line breaks before a right answer make it wrong (does a pattern lack re.DOTALL?)",
    "numbers": "a number before a right answer is taken for it",
    "many words": "a right answer behind many words is wrong: it does not look so far, or punishes length by more",
}


class _Tried(NamedTuple):
    """An answer and its score, beside those of the bare answer: where it is right, and where it is wrong."""

    answer: Around
    score: float
    right: float
    wrong: float


def reward_answer(probed: Probed) -> Outcome:
    """A right answer stays one whatever stands before it, and a number with the right one in it is none.

    Of those forms alone in which some words before it do no harm: a reward may well want nothing but the answer.
    """
    if unsteady(probed):
        return Outcome(None, "its scores are not the same each time (see reward-repeats)")
    bare = {(said.index, said.form): (right, wrong) for said, right, wrong in probed.exchanged()}
    answers = [(each, score) for each, score in probed.around.items() if score is not None]
    tried = [_Tried(each, score, *bare[each.index, each.form]) for each, score in answers]
    plain = _bearing([each for each in tried if each.answer.kind == PLAIN])
    tried = [each for each in tried if each.answer.form in plain]
    for kind, what in _DECIDES.items():
        mine = [each for each in tried if each.answer.kind == kind]
        if lost := _mostly([each for each in mine if each.score <= each.wrong], mine):
            earns = f"{shown(lost.answer.text)} earns {lost.score:.6g}, and the answer alone {lost.right:.6g}"
            return Outcome(False, f"{what}: {earns}{where_to_look(probed)}")
    inside = [each for each in tried if each.answer.kind == INSIDE]
    if 2 * len(_rows(inside)) < len(_rows(tried)):  # of questions in words, one whose answer is a number says little
        inside = []
    if taken := _mostly([each for each in inside if each.score == each.right > each.wrong], inside):
        earns = f"{shown(taken.answer.text)} earns {taken.score:.6g}, as the right answer does"
        return Outcome(False, f"a number that only contains the right one is right: {earns}{where_to_look(probed)}")
    if not plain:
        return Outcome(None, "no form was found in which a right answer earns more, with words before it")
    return Outcome(
        True, f"{len(tried)} answers with other words before them, or within a longer number: as they should"
    )


def _bearing(plain: Sequence[_Tried]) -> set[str]:
    """The forms in which right answers with a few plain words before them earn more than all wrong ones."""
    worst: dict[str, float] = {}
    for each in plain:
        worst[each.answer.form] = max(each.wrong, worst.get(each.answer.form, each.wrong))
    return set(worst) - {each.answer.form for each in plain if each.score <= worst[each.answer.form]}


def _rows(tried: Sequence[_Tried]) -> set[int]:
    return {each.answer.index for each in tried}


def _mostly(found: Sequence[_Tried], of: Sequence[_Tried]) -> _Tried | None:
    """The first one, if it is so in all forms, and half of the rows of each: in one alone it may be meant."""
    forms = {each.answer.form for each in of}
    counts = [(_count(found, form), _count(of, form)) for form in forms]
    return found[0] if found and all(2 * some >= every for some, every in counts) else None


def _count(tried: Sequence[_Tried], form: str) -> int:
    return sum(each.answer.form == form for each in tried)


__all__ = ["reward_answer"]
