"""A reward function is asked about generated responses: as often, and in as many orders, as the time allows."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from devkit.smoke import made_up_responses as made_up
from devkit.smoke.direct_process import Answer, Call, DirectProcess, Loaded
from devkit.smoke.made_up_responses import Said
from devkit.smoke.row_reader import FileRow, RowReader

BUDGET_S = 0.8  # for all calls, where the function is fast enough for that
ROWS = (8, 4, 2)  # of the file, as many as fit
FORWARD, SWEEPS = 3, 5  # calls of each response in the first two sweeps, and with that in another order
LOAD_S, RELOAD_S = 5.0, 0.3  # what takes longer to load, and then longer to load again, is not loaded more often
AROUND_ROWS, AROUND_FORMS = 6, 4  # rows and forms of right answers with words before them
NEARLY = 0.99
FEW = 3  # forms, and kinds of odd responses, that a slow function is asked about
TAILS = {
    "a line break": "\n",
    "a space": " ",
    "<|im_end|>": "<|im_end|>",
    "<|endoftext|>": "<|endoftext|>",
    "</s>": "</s>",
    "<pad><pad>": "<pad><pad>",
}

Scores = tuple[float | None, ...]


@dataclass(frozen=True)
class Sweeps:
    """The scores of the same calls, in the first order; each pair was called twice in a row."""

    first: tuple[Scores, Scores]
    again: Scores = ()  # once more, without loading anew
    reverse: tuple[tuple[Scores, Scores], ...] = ()  # loaded anew, in the other order; twice if it differed
    forward: tuple[Scores, Scores] | None = None  # loaded anew in the first order, if the other one differed


@dataclass(frozen=True)
class Probed:
    """What came of it."""

    said: tuple[Said, ...]
    own: tuple[Answer, ...]  # each as the answer to its row
    other: tuple[Answer | None, ...]  # and with the ground truth of another row; None where all are the same
    odd: Mapping[str, Answer] = field(default_factory=dict)
    tails: Mapping[tuple[Said, str], Answer] = field(default_factory=dict)  # a response with that at its end
    sweeps: Sweeps | None = None  # None: too slow
    seconds: float = 0.0  # of a call
    loaded: Loaded = field(default_factory=Loaded)
    file: str = ""
    around: Mapping[made_up.Around, float | None] = field(default_factory=dict)  # right answers with words before them
    caught: tuple[str, ...] = ()  # by response, where all have one score: what the function raised and caught itself
    built_in: str = ""  # `file:line` of the trainer's own scorer, where that is asked

    @property
    def rows(self) -> int:
        return len({each.index for each in self.said})

    def exchanged(self) -> list[tuple[Said, float, float]]:
        """Scores of the same response: by its own row's ground truth, and by another row's."""
        return [
            (said, right.score, wrong.score)
            for said, right, wrong in zip(self.said, self.own, self.other, strict=True)
            if wrong is not None and right.score is not None and wrong.score is not None
        ]

    def telling_forms(self) -> list[str]:
        """Those in which any right ground truth earns more than all wrong ones, and by most."""
        scores = self._by_form()
        return [form for form in self.best_forms() if _apart(scores[form])]

    def best_forms(self) -> list[str]:
        """Those in which right ground truths earn by most more than wrong ones, all in all."""
        gains = {form: sum(right - wrong for right, wrong in pairs) for form, pairs in self._by_form().items()}
        best = max(gains.values(), default=0.0)
        return [form for form, gain in gains.items() if gain >= NEARLY * best > 0]

    def _by_form(self) -> dict[str, list[tuple[float, float]]]:
        scores: dict[str, list[tuple[float, float]]] = {}
        for said, right, wrong in self.exchanged():
            if "{x}" in said.form:
                scores.setdefault(said.form, []).append((right, wrong))
        return scores


def _apart(scores: Sequence[tuple[float, float]]) -> bool:
    """Whether all of the right answers earn more than each of the wrong ones."""
    return min(right for right, _ in scores) > max(wrong for _, wrong in scores)


def probe(process: DirectProcess, rows: RowReader, file: str, source: str, longest: int) -> Probed:
    """`source`: the function's text, `longest`: tokens of a response in the full run.

    Raises DevkitError if the function cannot be called here, DeadlineError if a call takes too long.
    """
    loaded = process.loaded()
    found = dict(rows.sample(file, ROWS[0]))
    said = {index: made_up.to_row(index, row, source) for index, row in found.items()}
    seconds = _seconds(process, file, said)
    fits = [n for n in ROWS if sum(map(len, list(said.values())[:n])) * 2 * SWEEPS * seconds <= BUDGET_S]
    indices = list(said)[: fits[0] if fits else ROWS[-1]]
    chosen = [each for index in indices for each in (said[index] if fits else said[index][:FEW])]
    calls = _calls(file, found, indices, chosen)
    odd = made_up.odd(longest)
    kinds = list(odd) if fits else list(odd)[:FEW]
    probed = Probed(
        said=tuple(chosen),
        own=(),
        other=(),
        odd={kind: process.call(Call(file, indices[0], odd[kind])) for kind in kinds},
        seconds=seconds,
        loaded=loaded,
        file=file,
    )
    if not fits:
        answers = process.calls([call for call in calls if call])
        twice = _scores([answers[0], process.call(calls[0] or Call(file, indices[0], ""))])
        sweeps = Sweeps((twice[:1], twice[1:]))
        return _told(replace(probed, sweeps=sweeps), calls, answers)
    probed = _in_all_orders(process, probed, calls)
    if len({answer.score for answer in probed.own}) == 1:
        return replace(probed, caught=tuple(process.caught(Call(file, each.index, each.text)) for each in probed.said))
    return replace(probed, around=_around(process, probed, found, longest))


def _around(
    process: DirectProcess, probed: Probed, found: Mapping[int, FileRow], longest: int
) -> dict[made_up.Around, float | None]:
    """Of a few rows, in the forms that tell a right answer best.

    Numbers near the right one also where a wrong answer earns as much in some row: it may be such a number.
    """
    truths = {index: made_up.truth_text(row.ground_truth) for index, row in found.items()}
    indices = list(dict.fromkeys(said.index for said in probed.said if truths[said.index]))[:AROUND_ROWS]
    asked = [
        each
        for index in indices
        for form in probed.telling_forms()[:AROUND_FORMS]
        for each in made_up.around(index, form, truths[index] or "", longest)
    ]
    asked += [
        each
        for index in indices
        for form in probed.best_forms()[:AROUND_FORMS]
        for each in made_up.near(index, form, truths[index] or "")
    ]
    return {each: process.call(Call(probed.file, each.index, each.text)).score for each in asked}


def _seconds(process: DirectProcess, file: str, said: Mapping[int, Sequence[Said]]) -> float:
    """Of a call, by the middle one of three: the first one may load what the others have."""
    first = next(iter(said.values()))[:FEW]
    return statistics.median(process.call(Call(file, each.index, each.text)).seconds for each in first) + 1e-4


def _calls(file: str, found: Mapping[int, FileRow], indices: Sequence[int], said: Sequence[Said]) -> list[Call | None]:
    """First each as the answer to its row, then each with another row's ground truth, backwards.

    So the first ground truth and the last are never the same, and what is kept of the first one shows.
    """
    others = made_up.distinct(indices, [found[index].ground_truth for index in indices])
    return [
        *(Call(file, each.index, each.text) for each in said),
        *(
            Call(file, each.index, each.text, truth_of=others[each.index]) if each.index in others else None
            for each in reversed(said)
        ),
    ]


def _in_all_orders(process: DirectProcess, probed: Probed, calls: Sequence[Call | None]) -> Probed:
    real = [call for call in calls if call]
    anew = probed.loaded.seconds <= LOAD_S and process.reload() <= RELOAD_S  # it has been asked already
    began = time.monotonic()
    answers, second = _twice(process, real)
    anew = anew and time.monotonic() - began <= BUDGET_S  # some responses may take longer than those that were timed
    first = (_scores(answers), _scores(second))
    sweeps = Sweeps(first, _scores(process.calls(real)))
    if anew:
        backward = _backward(process, real)
        sweeps = replace(sweeps, reverse=(backward,))
        if backward != first:
            process.reload()
            forward = tuple(map(_scores, _twice(process, real)))
            sweeps = replace(sweeps, reverse=(backward, _backward(process, real)), forward=(forward[0], forward[1]))
    probed = _told(replace(probed, sweeps=sweeps), calls, answers)
    return replace(probed, tails=_tails(process, probed))


def _twice(process: DirectProcess, calls: Sequence[Call]) -> tuple[list[Answer], list[Answer]]:
    pairs = [(process.call(call), process.call(call)) for call in calls]
    return [one for one, _ in pairs], [two for _, two in pairs]


def _backward(process: DirectProcess, calls: Sequence[Call]) -> tuple[Scores, Scores]:
    process.reload()
    one, two = _twice(process, calls[::-1])
    return _scores(one)[::-1], _scores(two)[::-1]


def _tails(process: DirectProcess, probed: Probed) -> dict[tuple[Said, str], Answer]:
    """Of each row's best response."""
    best: dict[int, tuple[float, Said]] = {}
    for said, answer in zip(probed.said, probed.own, strict=True):
        if answer.score is not None and (said.index not in best or answer.score > best[said.index][0]):
            best[said.index] = (answer.score, said)
    return {
        (said, name): process.call(Call(probed.file, said.index, said.text + tail))
        for _, said in best.values()
        for name, tail in TAILS.items()
    }


def _told(probed: Probed, calls: Sequence[Call | None], answers: Sequence[Answer]) -> Probed:
    given = iter(answers)
    found = [next(given) if call else None for call in calls]
    half = len(probed.said)
    own = tuple(answer for answer in found[:half] if answer is not None)
    return replace(probed, own=own, other=tuple(found[half:][::-1]))


def _scores(answers: Sequence[Answer]) -> Scores:
    return tuple(answer.score for answer in answers)
