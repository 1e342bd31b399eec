"""Search-R1's rewards of v0.3: the answer, the order of tags, and whether the answer was found.

                     tags in order                                       not in order
    right answer     1                                                   1 - structure
    wrong answer     structure, + retrieval if a target was retrieved    final
    no answer        structure, + retrieval if a target was retrieved    0

`verl/utils/reward_score/qa_em_format.py` of PeterGriffinJin/Search-R1. With all three scores 0 it is plain exact match.
The prompt is not looked at, so an answer is the last `<answer>`, where the original leaves out the prompt's example;
and the tags count from where the model begins to speak, whatever its chat template writes there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainer.rewards.exact_match import last_answer, normalise, targets

EXACT, CONTAINED = "em", "subem"
TURNS = "turns"  # of `extra_info`: the actions and observations of a conversation
_TAG = re.compile(r"(</?(?:think|search|information|answer)>)")
_INFORMATION = re.compile(r"<information>(.*?)</information>", re.DOTALL)
_ORDER = {  # which tag may come where; what it opens is named by it
    ("start", "<think>"): "think",
    ("think", "</think>"): "thought",
    ("thought", "<search>"): "search",
    ("search", "</search>"): "asked",
    ("asked", "<information>"): "information",
    ("information", "</information>"): "informed",
    ("informed", "<think>"): "think",
    ("thought", "<answer>"): "answer",
    ("answer", "</answer>"): "end",
}
_OPEN = frozenset({"think", "search", "information", "answer"})


@dataclass(frozen=True)
class SearchScorer:
    """A `Scorer`. `matches`: em, the answer is a target; subem, it contains one."""

    structure: float = 0.0
    final: float = 0.0
    retrieval: float = 0.0
    matches: str = EXACT

    def __call__(
        self,
        *,
        data_source: str = "",
        solution_str: str,
        ground_truth: Any,
        extra_info: Mapping[str, Any] | None = None,
    ) -> dict[str, float]:
        """`score`, and `em`: 1 for a right answer, else 0. Raises TypeError for a ground truth of another form.

        In a conversation only what the model itself said can be an answer, and only what it was told is retrieved.
        """
        accepted = targets(ground_truth)
        said, told = _parts(solution_str, extra_info or {})
        answer = last_answer(said)
        right = answer is not None and is_right(answer, accepted, self.matches)
        ordered = is_in_order(solution_str)
        found = ordered and any(normalise(target) in normalise(text) for text in told for target in accepted)
        return {"score": self._score(answer, right, ordered, found), "em": float(right)}

    def _score(self, answer: str | None, right: bool, ordered: bool, found: bool) -> float:
        if right:
            return 1.0 if ordered else 1.0 - self.structure
        if ordered:
            return self.structure + (self.retrieval if found else 0.0)
        return 0.0 if answer is None else self.final


def is_right(answer: str, accepted: list[str], matches: str = EXACT) -> bool:
    """Equal to a target after SQuAD's normalisation, or with `subem` holding one.

    >>> is_right("The Faust", ["faust"]), is_right("my Faust", ["faust"]), is_right("my Faust", ["faust"], "subem")
    (True, False, True)
    """
    given, wanted = normalise(answer), [normalise(target) for target in accepted]
    return given in wanted if matches == EXACT else any(target in given for target in wanted)


def is_in_order(text: str) -> bool:
    """Whether think, (search, information, think) any number of times, and an answer follow upon one another.

    Between the tags stands white space alone.

    >>> is_in_order("<think>a</think><search>b</search><information>c</information><think>d</think><answer>e</answer>")
    True
    >>> is_in_order("<search>b</search><information>c</information><answer>e</answer>")
    False
    """
    state = "start"
    for part in _TAG.split(text):
        if _TAG.fullmatch(part):
            if (state, part) not in _ORDER:
                return False
            state = _ORDER[state, part]
        elif part.strip() and state not in _OPEN:
            return False
    return state == "end"


def _parts(solution_str: str, extra_info: Mapping[str, Any]) -> tuple[str, list[str]]:
    """What the model said, and what it was told."""
    turns = extra_info.get(TURNS)
    if turns is None:
        return _INFORMATION.sub("", solution_str), _INFORMATION.findall(solution_str)
    told = [turn["observation"] for turn in turns]
    return "".join(turn["action"] for turn in turns), [text for text in told if "<information>" in text]


def compute_score_subem(
    *, data_source: str = "", solution_str: str, ground_truth: Any, extra_info: Mapping[str, Any] | None = None
) -> float:
    """1 for an answer that contains a target, else 0 (`qa_em.compute_score_subem`): for a reward file of one's own."""
    scorer = SearchScorer(matches=CONTAINED)
    return scorer(solution_str=solution_str, ground_truth=ground_truth, extra_info=extra_info)["score"]
