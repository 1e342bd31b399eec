"""The user's reward function, and whether each score of the run is what it gives for the right row.

A mistake that no reasonable reward function has is a failure. What may be meant so (a reward of form alone, one that is
0 until a task is solved, a judge that changes its mind) is told as skipped, in words. For the trainer's own scorers,
whose forms are known, it is a failure, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from devkit.smoke.checks.outcome import Outcome
from devkit.smoke.direct_process import Answer
from devkit.smoke.made_up_responses import ALL, NONSENSE, Said, named, number_in, shown
from devkit.smoke.probing import Probed, Sweeps

ROUNDED = 1e-6  # relative; scores go on in fp32, which rounds by 6e-8
SLOW_S = 10.0  # of a step of the full run, for rewards alone
PAIRS = 6  # responses that another ground truth judges differently: fewer may be less by chance
SIGNED = 2  # rows with negative ground truths, and without: fewer may be less by chance
SHOWN = 3  # rows that are named


# ---------------------------------------------------------------------------------------- the scores of the pipeline


@dataclass(frozen=True)
class Placed:
    """The scores of a batch, as the run had them."""

    labels: tuple[str, ...]  # of each row
    scores: tuple[float, ...]  # at the last token of each response
    elsewhere: tuple[float, ...]  # the sum of what stands before and after it


def first(placed: Placed, most: int) -> Placed:
    return Placed(placed.labels[:most], placed.scores[:most], placed.elsewhere[:most])


def _same(a: float, b: float | None) -> bool:
    return b is not None and abs(a - b) <= ROUNDED * max(1.0, abs(b))


def off(placed: Placed, direct: Sequence[Answer]) -> list[int]:
    """Rows whose score is another one than a direct call gives."""
    return [
        i
        for i, (score, answer) in enumerate(zip(placed.scores, direct, strict=True))
        if not answer.problem and not _same(score, answer.score)
    ]


def scores_of_rows(
    placed: Placed,
    direct: Sequence[Answer],
    again: Sequence[Answer],
    suspects: Mapping[str, Sequence[Answer]],
    look: str,
) -> Outcome:
    """Each score stands at its response's last token, and is what a direct call with its row of the file gives.

    `again`: once more for the rows that are off, one after the other; `suspects`: what a direct call gives if one thing
    is wrong, by its name.
    """
    problems = [answer.problem for answer in direct if answer.problem]
    if problems and len(problems) == len(direct):
        return Outcome(None, f"a direct call {problems[0]}, but the ranks had a score: nothing to compare")
    wrong = off(placed, direct)
    if any(answer.score != direct[i].score for i, answer in zip(wrong * 4, again, strict=False)):
        return Outcome(None, "the reward changes from call to call (see reward-repeats): nothing to compare")
    if wrong:
        row = wrong[0]
        why = _suspect(placed, suspects)
        said = (
            f"{placed.labels[row]} was scored {placed.scores[row]:.6g}, but a direct call gives {direct[row].score:.6g}"
        )
        return Outcome(False, f"{why}{said} ({len(wrong)} of {len(direct)} responses): {look}")
    strewn = [i for i, score in enumerate(placed.elsewhere) if score]
    if strewn:
        said = f"{placed.labels[strewn[0]]} has a score at other tokens than its last"
        return Outcome(False, f"{said} ({len(strewn)} of {len(direct)} responses): {look}")
    unlike = len(set(placed.scores))
    return Outcome(
        True, f"{len(direct)} scores of a step as by direct calls with their rows of the file, {unlike} unlike"
    )


def _suspect(placed: Placed, suspects: Mapping[str, Sequence[Answer]]) -> str:
    for name, answers in suspects.items():
        if all(_same(score, answer.score) for score, answer in zip(placed.scores, answers, strict=True)):
            return f"{name}: "
    return ""


# ------------------------------------------------------------------------------------------------ the function itself


def reward_calls(probed: Probed, step_rows: int, ranks: int) -> Outcome:
    """It gives a finite number whatever a model says. `step_rows`: responses of a full step, scored by the ranks."""
    where = where_to_look(probed)
    for response, answer in _answered(probed):
        if answer.problem:
            to = f"the response {shown(response.text)} to row {response.index}"
            return Outcome(False, f"it {answer.problem} for {to}: a run would stop there{where}")
    for kind, answer in probed.odd.items():
        if answer.problem:
            return Outcome(False, f"it {answer.problem} for {kind}: a run would stop there{where}")
    cost = probed.seconds * step_rows / max(1, ranks)
    speed = f"{probed.seconds * 1000:.2g} ms a call"
    if cost > SLOW_S:
        said = f"it takes {probed.seconds:.2g} s a call: {cost:.0f} s of each full step"
        return Outcome(None, f"{said}, for {step_rows:,} responses on {ranks} ranks{where}")
    kinds = {answer.kind for _, answer in _answered(probed)}
    boolean = ", a bool, which counts as 0 or 1" if "bool" in kinds else ""
    count = len(probed.own) + len(probed.odd)
    return Outcome(True, f"a number for each of {count} generated responses, odd ones among them{boolean}; {speed}")


def reward_repeats(probed: Probed) -> Outcome:
    """The same response to the same row has the same score: called again, in another order, after others."""
    sweeps = probed.sweeps
    if sweeps is None:
        return Outcome(None, "it was not called often enough")
    for one, other in _repeated(sweeps):
        if unlike := _unlike(one, other):
            said = f"it gave {unlike[0]:.6g} and then {unlike[1]:.6g} for the same response to the same row"
            why = "it is random, calls a judge, or counts its calls"
            return Outcome(_if_meant(probed), f"{said}: {why}{where_to_look(probed)}")
    if not sweeps.reverse:
        slow = "that takes too long" if sweeps.again else "a call takes too long"
        return Outcome(
            None if not sweeps.again else True, f"the same score again; not checked in another order: {slow}"
        )
    backward = sweeps.reverse[0][0]
    if unlike := _unlike(sweeps.first[0], backward):
        if len(sweeps.reverse) < 2 or sweeps.reverse[1] != sweeps.reverse[0] or sweeps.forward != sweeps.first:
            return Outcome(None, f"it changes from run to run: it is random or calls a judge{where_to_look(probed)}")
        said = (
            f"the same response to the same row earns {unlike[0]:.6g} or {unlike[1]:.6g}, by what was scored before it"
        )
        return Outcome(False, f"{said}: it keeps state between calls{where_to_look(probed)}")
    return Outcome(True, f"{len(backward)} scores are the same again and in another order")


def unsteady(probed: Probed) -> bool:
    """Whether any two scores of the same call differ."""
    sweeps = probed.sweeps
    if sweeps is None:
        return False
    pairs = [*_repeated(sweeps), *((sweeps.first[0], backward[0]) for backward in sweeps.reverse)]
    return any(_unlike(one, other) for one, other in pairs)


def telling_form(probed: Probed) -> str:
    """The form in which the right ground truth is told best from another one; all of them, if none is."""
    gains = {said.form: right - wrong for said, right, wrong in probed.exchanged() if "{x}" in said.form}
    best = max(gains, key=lambda form: abs(gains[form]), default=ALL)
    return best if gains.get(best) else ALL


def _repeated(sweeps: Sweeps) -> list[tuple[Sequence[float | None], Sequence[float | None]]]:
    pairs: list[tuple[Sequence[float | None], Sequence[float | None]]] = [sweeps.first]
    pairs += [(sweeps.first[0], sweeps.again)] if sweeps.again else []
    return pairs + list(sweeps.reverse)


def _unlike(one: Sequence[float | None], other: Sequence[float | None]) -> tuple[float, float] | None:
    found = [(a, b) for a, b in zip(one, other, strict=True) if a is not None and b is not None and a != b]
    return found[0] if found else None


def reward_truth(probed: Probed) -> Outcome:
    """It tells the ground truth's own text from nonsense, by the ground truth."""
    own = [(said, answer.score) for said, answer in _answered(probed) if answer.score is not None]
    where, bad = where_to_look(probed), _if_meant(probed)
    where += ", or at the ground truths" if probed.built_in else ""
    if not own:
        return Outcome(None, "it gave no score (see reward-calls)")
    tried = f"{len(own)} generated responses to {probed.rows} rows"
    others = [answer.score for answer in (*probed.other, *probed.odd.values()) if answer and answer.score is not None]
    if len({*others, *(score for _, score in own)}) == 1:
        value = f"it gave {own[0][1]:.6g} to all of {tried}, the ground truth's own text among them"
        if probed.loaded.reads.get("solution_str") is False:
            return Outcome(False, f"it never looks at the response: {value}{where}")
        if len(set(probed.caught)) == 1 and probed.caught[0]:
            return Outcome(False, f"each call raises {probed.caught[0]}, and catches it itself: {value}{where}")
        if own[0][1] > 0:
            return Outcome(False, f"{value}, and nonsense, too{where}")
        return Outcome(
            bad, f"{value}: unless it requires a format that was not tried, nothing can be learned from it{where}"
        )
    if unsteady(probed):
        return Outcome(
            None, "its scores are not the same each time (see reward-repeats): what determines them is unknown"
        )
    pairs = probed.exchanged()
    if pairs and all(right == wrong for _, right, wrong in pairs):
        why = f"it ignores the ground truth: with another row's, all of {tried} have the same scores"
        if probed.loaded.reads.get("ground_truth"):
            return Outcome(False, f"{why}, although it reads it: are both of one type, and is it in the score?{where}")
        meant = "that is right for a format-only reward, or one for a format that was not tried"
        return Outcome(bad, f"{why}; {meant}{where}")
    differ = [(said, right, wrong) for said, right, wrong in pairs if right != wrong]
    rows = {said.index for said, _, _ in differ}
    if len(differ) >= PAIRS and len(rows) >= min(3, probed.rows) and all(right < wrong for _, right, wrong in differ):
        said, right, wrong = differ[0]
        earns = f"{shown(said.text)} earns {right:.6g} where it is the ground truth, and {wrong:.6g} where it is not"
        return Outcome(False, f"a right answer earns less than a wrong one: {earns}{where}")
    return _told_from_nonsense(probed, own, bad, where)


def _told_from_nonsense(probed: Probed, own: Sequence[tuple[Said, float]], bad: bool | None, where: str) -> Outcome:
    best: dict[int, tuple[Said, float]] = {}
    nonsense: dict[int, tuple[Said, float]] = {}
    for said, score in own:
        into = best if said.form else nonsense
        if said.index not in into or score > into[said.index][1]:
            into[said.index] = (said, score)
    if not best:
        return Outcome(None, "its ground truths are not text")
    lost = [index for index in best if best[index][1] <= nonsense[index][1]]
    if lost:
        names = ", ".join(map(str, lost[:SHOWN])) + (" ..." if len(lost) > SHOWN else "")
        if signless := _signs_lost(probed, lost, list(best)):
            return Outcome(False, f"{signless} ({names}){where}")
        earns = "the ground truth's own text earns no more than nonsense in any common format"
        why = f"{earns}, in {len(lost)} of {len(best)} rows ({names})"
        return Outcome(bad if len(lost) == len(best) else None, f"{why}{where}")
    said, score = max(best.values(), key=lambda pair: pair[1])
    nothing = max(score for _, score in nonsense.values())
    return Outcome(True, f"the ground truth as {named(said.form)} earns {score:.6g}, nonsense {nothing:.6g}")


def _signs_lost(probed: Probed, lost: Sequence[int], rows: Sequence[int]) -> str:
    """Whether right answers earn nothing exactly where they are negative numbers."""
    numbers = {said.index: number_in(said.text) for said in probed.said if said.form == "{x}"}
    negative = [index for index in rows if (number := numbers.get(index)) is not None and number < 0]
    if len(lost) < SIGNED or len(rows) - len(lost) < SIGNED or negative != list(lost):
        return ""
    what = "a right answer that is a negative number earns no more than nonsense in any common format"
    return f"{what}: is its sign lost? In all {len(lost)} such rows of {len(rows)}"


def reward_text(probed: Probed) -> Outcome:
    """What stands at a response's end decides nothing: white space, and special tokens, which the trainer takes out."""
    if unsteady(probed):
        return Outcome(None, "its scores are not the same each time (see reward-repeats)")
    own = {said: answer.score for said, answer in _answered(probed)}
    nothing = max((own[said] or 0.0 for said in own if said.text in NONSENSE), default=0.0)
    changed: set[str] = set()
    for (said, tail), answer in probed.tails.items():
        before, after = own[said], answer.score
        if before is None or after is None or before == after:
            continue
        changed.add(tail)
        if tail.startswith("<") and after > before:
            what = f"{shown(said.text)} earns {before:.6g}, and {after:.6g} with {tail} at its end"
            return Outcome(
                None,
                f"{what}: responses are decoded without special tokens, so none ever has it{where_to_look(probed)}",
            )
        if not tail.startswith("<") and before > nothing >= after:
            what = f"{shown(said.text)} earns {before:.6g}, and {after:.6g} with {tail} at its end"
            return Outcome(_if_meant(probed), f"{what}: many models end that way{where_to_look(probed)}")
    if not probed.tails:
        return Outcome(None, "not checked: a call takes too long")
    also = f"; {', '.join(sorted(changed))} there change the score a little" if changed else ""
    return Outcome(True, f"{len(probed.tails)} responses with something at their end{also or ': the same scores'}")


def _answered(probed: Probed) -> list[tuple[Said, Answer]]:
    return list(zip(probed.said, probed.own, strict=True))


def _if_meant(probed: Probed) -> bool | None:
    """What a finding is that a user may mean so: for the trainer's own scorers, whose forms are known, a failure."""
    return False if probed.built_in else None


def where_to_look(probed: Probed) -> str:
    place = probed.loaded.place or probed.built_in
    return f": look at {place}" if place else ""
