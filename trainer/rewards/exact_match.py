"""Question answering: the text in the last `<answer>` tag, equal to one of the accepted answers after normalisation.

Normalisation is SQuAD's (Rajpurkar et al. 2016, the official evaluation script): lower case, no punctuation, no
articles, single spaces. The tag, the targets and the penalty are Search-R1's (verl `search_r1_like_qa_em.py`).
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from typing import Any

MAX_TAGS = 10  # more opening or closing tags than this is a response that games the tag; it earns a quarter

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """
    >>> normalise("  The  Beatles! ")
    'beatles'
    """
    bare = text.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLE.sub(" ", bare).split())


def last_answer(text: str) -> str | None:
    """
    >>> last_answer("<answer> Paris </answer> no, <answer> Rome </answer>")
    'Rome'
    """
    found = _ANSWER.findall(text)
    return found[-1].strip() if found else None


def targets(ground_truth: Any) -> list[str]:
    """The accepted answers in `{"target": [...]}`, in a list, or a lone string.

    Raises TypeError for anything else.
    """
    wanted = ground_truth["target"] if isinstance(ground_truth, Mapping) and "target" in ground_truth else ground_truth
    if isinstance(wanted, str):
        return [wanted]
    if isinstance(wanted, (list, tuple)) and all(isinstance(target, str) for target in wanted):
        return list(wanted)
    raise TypeError(f'ground_truth must be {{"target": [texts]}}, a list of texts or a text, not {ground_truth!r:.80}')


def compute_score(
    *,
    solution_str: str,
    ground_truth: Any,
    data_source: str = "",
    extra_info: Mapping[str, Any] | None = None,
    format_score: float = 0.0,
    score: float = 1.0,
) -> float:
    """`score` for an accepted answer, `format_score` for another one, 0 without an `<answer>` tag."""
    accepted = {normalise(target) for target in targets(ground_truth)}
    answer = last_answer(solution_str)
    if answer is None:
        return 0.0
    if normalise(answer) not in accepted:
        return format_score
    tags = max(solution_str.count("<answer>"), solution_str.count("</answer>"))
    return score / 4 if tags > MAX_TAGS else score
