"""What stands around a right answer, and what a user's reward function makes of that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from devkit.smoke.checks.outcome import Outcome
from devkit.smoke.checks.users_own import unsteady, where_to_look
from devkit.smoke.made_up_responses import BEHIND, BEYOND, INSIDE, NEXT, PASSED, PLAIN, SIGN, WHOLE, Around, shown
from devkit.smoke.probing import Probed

_DECIDES = {
    "other words": "words before a right answer make it wrong",
    "several lines": "line breaks before a right answer make it wrong (does a pattern lack re.DOTALL?)",
    "numbers": "a number before a right answer is taken for it",
    "many words": "a right answer behind many words is wrong: it does not look so far, or punishes length by more",
}


_BARE = "{x}"
FEWEST_ROWS = 2  # with numbers: one may be a name or a year


class _Tried(NamedTuple):
    """An answer and its score, beside those of the bare answer: where it is right, and where it is wrong."""

    answer: Around
    score: float
    right: float
    wrong: float
    bare: str  # the right answer alone, in the same form

    @property
    def passes(self) -> bool:
        """As much as the right answer, which earns more than a wrong one."""
        return self.score == self.right > self.wrong


def reward_answer(probed: Probed) -> Outcome:
    """A right answer stays one whatever stands before it; one with the right one in it, or near it, is none.

    What stands before it is looked at in those forms alone in which some words there do no harm: a reward may well want
    nothing but the answer.
    """
    if unsteady(probed):
        return Outcome(None, "its scores are not the same each time (see reward-repeats)")
    tried = _tried(probed)
    plain = _bearing(_of_kind(tried, PLAIN))
    borne = [each for each in tried if each.answer.form in plain]
    where = where_to_look(probed)
    if failed := _lost(borne) or _inside(borne) or _near(tried) or _whole(tried):
        return Outcome(False, failed + where)
    if not plain:
        return _only_bare(tried, where)
    if told := _next(tried) or _passed(borne):
        return Outcome(None, told + where)
    return Outcome(
        True, f"{len(borne)} answers with other words around them, or within a longer number: as they should"
    )


def _tried(probed: Probed) -> list[_Tried]:
    bare = {(said.index, said.form): (right, wrong, said.text) for said, right, wrong in probed.exchanged()}
    answers = [(each, score) for each, score in probed.around.items() if score is not None]
    return [_Tried(each, score, *bare[key]) for each, score in answers if (key := (each.index, each.form)) in bare]


def _lost(borne: Sequence[_Tried]) -> str:
    """Words before a right answer that make it wrong."""
    for kind, what in _DECIDES.items():
        mine = _of_kind(borne, kind)
        if lost := _mostly([each for each in mine if each.score <= each.wrong], mine):
            return f"{what}: {shown(lost.answer.text)} earns {lost.score:.6g}, and the answer alone {lost.right:.6g}"
    return ""


def _inside(borne: Sequence[_Tried]) -> str:
    inside = _of_kind(borne, INSIDE)
    if 2 * len(_rows(inside)) < len(_rows(borne)):  # of questions in words, one whose answer is a number says little
        return ""
    taken = _passing(inside)
    return f"a number that only contains the right one is right: {_earns(taken)}" if taken else ""


def _near(tried: Sequence[_Tried]) -> str:
    """Wrong numbers that are right: too far away, on both sides, for a tolerance that is meant; or without a sign."""
    if taken := _on_both_sides(tried, BEYOND):
        return f"a number near the right one is right: {_earns(taken)}"
    signless = _of_kind(tried, SIGN)  # metrics of question answering leave out punctuation, and such a number is rare
    taken = _passing(signless) if len(_rows(signless)) >= FEWEST_ROWS else None
    return f"a negative number is right without its sign: {_earns(taken)}" if taken else ""


def _whole(tried: Sequence[_Tried]) -> str:
    """Where all ground truths are like 72.0: whether 72 is wrong. Beside others, one decimal may be asked for."""
    mine = _of_kind(tried, WHOLE)
    if len(_rows(mine)) < FEWEST_ROWS or _rows(mine) != _rows(tried):
        return ""
    lost = _mostly([each for each in mine if each.score <= each.wrong < each.right], mine)
    if not lost:
        return ""
    earns = f"{shown(lost.answer.text)} earns {lost.score:.6g}, and {shown(lost.bare)} {lost.right:.6g}"
    return f"a whole number is wrong without its .0: {earns}; are the ground truths from a column of floats?"


def _next(tried: Sequence[_Tried]) -> str:
    if taken := _on_both_sides(tried, NEXT):
        return f"the numbers beside the right one are right: {_earns(taken)}; is so much tolerance meant?"
    return ""


def _passed(borne: Sequence[_Tried]) -> str:
    taken = _passing(_of_kind(borne, PASSED))
    what = "a response with the right number in it is right, though its last answer is another"
    return f"{what}: {_earns(taken)}; right where any mention counts" if taken else ""


def _only_bare(tried: Sequence[_Tried], where: str) -> Outcome:
    """What is known where words before a right answer always make it wrong."""
    # A form of several tags begins with one for thoughts: words have their place in it.
    tried = [each for each in tried if each.answer.form.count("{x}") == 1]
    plain, behind = _of_kind(tried, PLAIN), _of_kind(tried, BEHIND)
    first = _mostly([each for each in plain if each.score <= each.wrong < each.right], plain)
    if first and (after := _passing(behind)):
        what = "the answer earns only at the very beginning of the response: words before it make it wrong"
        earns = f"{shown(first.answer.text)} earns {first.score:.6g}, and {shown(after.answer.text)} {after.score:.6g}"
        marked = all(each.answer.form != _BARE for each in plain)  # a marker is there to be found among other words
        return Outcome(False if marked else None, f"{what}: {earns}{where}")
    worst = max((max(each.wrong, each.score if each.score < each.right else 0.0) for each in _wrong(tried)), default=0)
    if less := _mostly([each for each in plain if each.score < worst and each.score < each.right], plain):
        what = "a right answer behind a few words earns less than a wrong one alone"
        earns = f"{shown(less.answer.text)} earns {less.score:.6g}, and a wrong answer up to {worst:.6g}"
        return Outcome(None, f"{what}: {earns}; right where the response is to be nothing but the answer{where}")
    return Outcome(None, "no form was found in which a right answer earns more, with words before it")


def _wrong(tried: Sequence[_Tried]) -> list[_Tried]:
    """Those that say what wrong answers earn, in forms in which words before a right one were tried."""
    forms = {each.answer.form for each in _of_kind(tried, PLAIN)}
    return [each for each in tried if each.answer.kind in (PLAIN, *NEXT) and each.answer.form in forms]


def _of_kind(tried: Sequence[_Tried], kind: str) -> list[_Tried]:
    return [each for each in tried if each.answer.kind == kind]


def _passing(tried: Sequence[_Tried]) -> _Tried | None:
    return _mostly([each for each in tried if each.passes], tried)


def _on_both_sides(tried: Sequence[_Tried], kinds: tuple[str, str]) -> _Tried | None:
    """Above and below in the same row, and in two rows at least: one side alone has the right one's score by chance."""
    above, below = (_of_kind(tried, kind) for kind in kinds)
    known = {(each.answer.index, each.answer.form) for each in below if each.passes}
    both = [each for each in above if each.passes and (each.answer.index, each.answer.form) in known]
    return _mostly(both, above) if len(_rows(both)) >= FEWEST_ROWS else None


def _earns(taken: _Tried) -> str:
    return f"{shown(taken.answer.text)} earns {taken.score:.6g}, as the right answer {shown(taken.bare)} does"


def _bearing(plain: Sequence[_Tried]) -> set[str]:
    """The forms in which right answers with a few plain words before them earn more than all wrong ones."""
    worst: dict[str, float] = {}
    for each in plain:
        worst[each.answer.form] = max(each.wrong, worst.get(each.answer.form, each.wrong))
    return set(worst) - {each.answer.form for each in plain if each.score <= worst[each.answer.form]}


def _rows(tried: Sequence[_Tried]) -> set[int]:
    return {each.answer.index for each in tried}


def _mostly(found: Sequence[_Tried], of: Sequence[_Tried]) -> _Tried | None:
    """The shortest one, if it is so in all forms, and half of the rows of each: in one alone it may be meant."""
    forms = {each.answer.form for each in of}
    counts = [(_count(found, form), _count(of, form)) for form in forms]
    mostly = all(2 * some >= every for some, every in counts)
    return min(found, key=lambda each: len(each.answer.text)) if found and mostly else None


def _count(tried: Sequence[_Tried], form: str) -> int:
    return sum(each.answer.form == form for each in tried)


__all__ = ["reward_answer"]
