"""What a list begins with, where that is plain data. No code of the program runs."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

SHOWN = 2  # items, and of numbers the last one, too
INNER = 3  # items of a list in a list
LENGTH = 60  # characters in all
_NUMBERS = (int, float, bool)
_PLAIN = (str, *_NUMBERS, type(None))


def first_items(value: Any, size: int) -> str:
    """
    >>> first_items(range(9), 9), first_items([("calculator", 37)], 1), first_items([[1]] * 9, 9)
    ('[0, 1, ..., 8]', "[('calculator', 37)]", '[[1], [1], ...]')
    >>> first_items([object()] * 9, 9), first_items(["a" * 90] * 9, 9), first_items(["--api-key", "x1"], 2)
    ('', '', '')
    """
    from .redaction import hidden_items, scrub

    items = list(islice(value, SHOWN + 1))
    if not items or not all(_is_plain(each) for each in items) or hidden_items(items, size):
        return ""
    shown = [repr(each) for each in items[: SHOWN if size > SHOWN else size]]
    if size > SHOWN:
        shown += ["...", *_last(value, items)]
    text = f"[{', '.join(shown)}]"
    return text if len(text) <= LENGTH and scrub(text) == text else ""


def _last(value: Any, items: Iterable[Any]) -> list[str]:
    """Of numbers: what a text before it makes a secret is not known of an item by itself."""
    if type(value) in (set, frozenset) or any(type(each) not in _NUMBERS for each in items):
        return []
    last = value[-1]
    return [repr(last)] if type(last) in _NUMBERS else []


def _is_plain(value: Any) -> bool:
    from .redaction import hidden_items

    if type(value) in (list, tuple):
        return (
            len(value) <= INNER and all(type(each) in _PLAIN for each in value) and not hidden_items(value, len(value))
        )
    return type(value) in _PLAIN
