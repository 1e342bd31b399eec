"""Calls in what a model says, and answers cut to their length: verl's format `hermes`. Pure; standard library only.

<tool_call>
{"name": "search", "arguments": {"query": "Faust"}}
</tool_call>
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

HERMES = "hermes"
LEFT, RIGHT, MIDDLE = "left", "right", "middle"  # which side of an answer is cut off
_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


@dataclass(frozen=True)
class Call:
    """One call: `arguments` are as the model gave them, whatever it gave."""

    name: str
    arguments: Any


def calls_in(text: str) -> tuple[list[Call], int]:
    """The calls in their order, and how many more there are that cannot be read.

    As verl's `HermesToolParser`: a call is JSON with `name` and `arguments`, anything else is passed over.

    >>> calls_in('So: <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call><tool_call>add 1</tool_call>')
    ([Call(name='add', arguments={'a': 1})], 1)
    """
    found, unread = list[Call](), 0
    for content in _CALL.findall(text):
        try:
            said = json.loads(content)
            name, arguments = said["name"], said["arguments"]
        except (ValueError, TypeError, KeyError, RecursionError):
            unread += 1
            continue
        if isinstance(name, str):
            found.append(Call(name, arguments))
        else:
            unread += 1
    return found, unread


def cut(text: str, most: int, side: str) -> str:
    """At most `most` characters of a longer text, and a mark where the others were.

    As verl since May 2026: `left` keeps the end. Before, `left` and `right` were the other way round.

    >>> cut("abcdef", 4, "left"), cut("abcdef", 4, "right"), cut("abcdef", 4, "middle"), cut("abcd", 4, "left")
    ('(truncated)...cdef', 'abcd...(truncated)', 'ab...(truncated)...ef', 'abcd')
    """
    if len(text) <= most:
        return text
    if side == LEFT:
        return "(truncated)..." + text[len(text) - most :]
    if side == RIGHT:
        return text[:most] + "...(truncated)"
    half = most // 2
    return text[:half] + "...(truncated)..." + text[len(text) - half :]
