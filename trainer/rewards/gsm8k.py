"""GSM8K: the number after the last `#### `, compared as text (verl `utils/reward_score/gsm8k.py`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

TAIL_CHARS = 300  # verl looks no further back; a number that far from the end is not a final answer

_STRICT = re.compile(r"#### (-?[0-9.,]+)")
_NUMBER = re.compile(r"-?(?:[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?|\.[0-9]+)")


def strict_answer(text: str) -> str | None:
    """The number after the last `#### ` near the end of `text`, commas removed.

    >>> strict_answer("6 * 200 = 1,200\\n#### 1,200")
    '1200'
    """
    found = _STRICT.findall(text[-TAIL_CHARS:])
    return found[-1].replace(",", "") if found else None


def flexible_answer(text: str) -> str | None:
    """The last number near the end of `text`, commas removed.

    verl keeps commas and a full stop that ends the sentence here, and so can't match "1,200." to 1200; this can.

    >>> flexible_answer("The 3 of them pay $1,200.")
    '1200'
    """
    found = _NUMBER.findall(text[-TAIL_CHARS:])
    return found[-1].replace(",", "") if found else None


def compute_score(
    *,
    solution_str: str,
    ground_truth: Any,
    data_source: str = "",
    extra_info: Mapping[str, Any] | None = None,
    method: str = "strict",
    format_score: float = 0.0,
    score: float = 1.0,
) -> float:
    """`score` for the right number, `format_score` for another number, 0 for none. `method`: strict | flexible."""
    answer = strict_answer(solution_str) if method == "strict" else flexible_answer(solution_str)
    if answer is None:
        return 0.0
    return score if answer == str(ground_truth) else format_score
