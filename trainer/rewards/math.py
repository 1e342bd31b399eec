"""MATH: the content of the last `\\boxed{}`, equal to the gold answer as text or as mathematics.

Text that is equal after light clean-up, and plain whole numbers, are decided here. The rest goes to the math-verify
library (https://github.com/huggingface/Math-Verify) in a child process: `checker.py` says why.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

from trainer.rewards.checker import CHECKER

MAX_ANSWER_CHARS = 1000  # longer is no final answer, and would only cost time

_BOX = re.compile(r"\\(boxed|fbox)(?![A-Za-z])\s*")
_WHOLE = re.compile(r"[-+]?[0-9]{1,100}")
_CLEAN_UP = [
    (re.compile(r"(?<=[0-9])(?:\{,\}|,\\!)\s*(?=[0-9]{3})"), ""),  # 10{,}000 and 10,\!000
    (re.compile(r"\\[!,;: ]|~|\s"), ""),  # LaTeX and other space
    (re.compile(r"\\left(?![a-z])|\\right(?![a-z])"), ""),
    (re.compile(r"\\[dt]frac"), r"\\frac"),
    (re.compile(r"\\\$|\$"), ""),
    (re.compile(r"\^(?:\\circ|\{\\circ\})"), ""),
    (re.compile(r"\\?%"), ""),
    (re.compile(r"\\(?:text|mathrm|textbf|mbox)\{([^{}]*)\}"), r"\1"),
    (re.compile(r"\.+$"), ""),
]


def last_boxed(text: str) -> str | None:
    r"""The content of the last \boxed{...}, or of the last \fbox{...} where nothing is boxed.

    Braces balance, escaped ones not counting. Without braces (`\boxed 5$`), what comes before the next `$` or the
    line's end. None if there is no box, or if the last one never closes.

    >>> last_boxed(r"so \boxed{\frac{1}{2}}.")
    '\\frac{1}{2}'
    """
    boxes = list(_BOX.finditer(text))
    boxes = [box for box in boxes if box[1] == "boxed"] or boxes
    if not boxes:
        return None
    rest = text[boxes[-1].end() :]
    if not rest.startswith("{"):
        return re.split(r"[$\n]", rest, maxsplit=1)[0].strip() or None
    return _to_closing_brace(rest)


def _to_closing_brace(text: str) -> str | None:
    """What stands between the brace that `text` begins with and its partner."""
    depth = 0
    for token in re.finditer(r"\\.|[{}]", text, re.DOTALL):  # \\. steps over \{ and \}
        depth += {"{": 1, "}": -1}.get(token[0], 0)
        if depth == 0 and token[0] == "}":
            return text[1 : token.start()]
    return None


def clean(answer: str) -> str:
    r"""
    >>> clean(r"\dfrac{1}{2}\text{ cm}.")
    '\\frac{1}{2}cm'
    """
    for pattern, replacement in _CLEAN_UP:
        answer = pattern.sub(replacement, answer)
    return answer


def equivalent(gold: str, answer: str) -> bool:
    """Whether `answer` is `gold`, as text or as mathematics. An answer that can't be decided in time is wrong.

    Raises RewardError if math-verify can't be loaded.
    """
    ours, theirs = clean(gold), clean(answer)
    if ours == theirs:
        return ours != ""
    if _WHOLE.fullmatch(ours) and _WHOLE.fullmatch(theirs):
        return int(ours) == int(theirs)
    return len(answer) <= MAX_ANSWER_CHARS and _verified(gold, answer)


@functools.lru_cache(maxsize=16384)  # the samples of one prompt give the same few answers again and again
def _verified(gold: str, answer: str) -> bool:
    return CHECKER.equal(gold, answer)


def compute_score(
    *,
    solution_str: str,
    ground_truth: Any,
    data_source: str = "",
    extra_info: Mapping[str, Any] | None = None,
) -> float:
    """1 if the last boxed answer is equivalent to the gold one, else 0."""
    answer = last_boxed(solution_str)
    return float(answer is not None and equivalent(str(ground_truth), answer))
