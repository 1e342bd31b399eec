"""What the texts of a data file's rows say: prompts, ground truths, published answers. Pure."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from devkit.smoke.made_up_responses import truth_text


def holds(text: str, truth: Any) -> bool:
    """Whether a ground truth stands in a text, as a word of its own; thousands may have separators.

    >>> holds("so 1,200 + 1", "1200"), holds("12000", "1200"), holds("", "1")
    (True, False, False)
    """
    said = (truth_text(truth) or "").replace(",", "")
    return bool(said) and re.search(rf"(?<!\w){re.escape(said)}(?!\w)", text.replace(",", "")) is not None


def text_of(prompt: Any) -> str:
    """What a prompt says, roles aside."""
    return (
        prompt if isinstance(prompt, str) else "\n".join(str(each.get("content") or "") for each in messages_of(prompt))
    )


def messages_of(prompt: Any) -> list[Mapping[str, Any]]:
    """Those of a list; of a text, none."""
    return [each for each in prompt if isinstance(each, Mapping)] if isinstance(prompt, list) else []


def holds_messages(prompt: Any) -> bool:
    """Whether a text is a list of messages, written as JSON or as Python writes it.

    >>> holds_messages('[{"role": "user", "content": "1 + 1"}]'), holds_messages("[{'role': 'user', 'content': ''}]")
    (True, True)
    >>> holds_messages([{"role": "user", "content": "1 + 1"}]), holds_messages("[1, 2]"), holds_messages("[{no")
    (False, False, False)
    """
    if not isinstance(prompt, str) or not re.match(r"\s*\[\s*{", prompt):
        return False
    for read in (json.loads, ast.literal_eval):
        try:
            found = read(prompt.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        return all(isinstance(each, Mapping) and {"role", "content"} <= each.keys() for each in found)
    return False


def in_order(texts: Sequence[str]) -> bool:
    """Whether they rise or fall all the way, numbers in them by their size; also if neighbours are the same.

    >>> in_order(["9", "10", "10"]), in_order(["row 10", "row 9"]), in_order(["1", "3", "2"]), in_order(["-3", "-2.5"])
    (True, True, False, True)
    """
    keys = [_size(text) for text in texts]
    return all(a <= b for a, b in pairwise(keys)) or all(a >= b for a, b in pairwise(keys))


def _size(text: str) -> tuple[tuple[float, str], ...]:
    """Its parts, numbers among them, such that those of two texts can be compared."""
    if number := re.fullmatch(r"\s*(-?\d+(?:\.\d+)?)\s*", text.replace(",", "")):
        return ((float(number[1]), ""),)
    parts = re.split(r"(\d+)", text)
    return tuple((float(part), "") if i % 2 else (float("-inf"), part) for i, part in enumerate(parts))
