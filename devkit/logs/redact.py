"""Texts and documents without secrets, for who gives them to others: by the rules that the debugger has for values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

from devkit.debug.inworker.redaction import REDACTED, hidden_items, hidden_pairs, scrub

_SHORTEST = 4  # characters of what is looked for elsewhere
# What may be a part of one: whatever stands between blanks and quotes, and the words in that.
_PARTS = tuple(re.compile(rf"{part}{{{_SHORTEST},}}") for part in (r"[^\s'\"`=:,;<>()]", r"\w"))


def text(words: str) -> str:
    """
    >>> text("export WANDB_API_KEY=abc123 STEP=4; curl --password hunter2 https://me:pw@host/")
    'export WANDB_API_KEY=<redacted> STEP=4; curl --password <redacted> https://<redacted>@host/'
    >>> text("Authorization: Token abc def")
    'Authorization: <redacted>'
    """
    return scrub(words)


def hidden(words: str) -> tuple[str, ...]:
    """What `text` leaves out of it, as far as that can be told from what is left.

    >>> hidden("export WANDB_API_KEY=abc123 STEP=4")
    ('abc123',)
    """
    found, at = [], 0
    for before, behind in pairwise(text(words).split(REDACTED)):
        begin = words.find(before, at) + len(before)
        end = words.find(behind, begin) if behind else len(words)
        if begin < len(before) or end < 0:
            break
        found.append(words[begin:end])
        at = end
    return tuple(found)


def without(words: str, secrets: Sequence[str]) -> str:
    """`text`, and neither these nor a word out of one of them.

    >>> without("no such key: abc123, and ${xyz9} is not set", ["abc123 def", "p$xyz9"])
    'no such key: <redacted>, and ${<redacted>} is not set'
    """
    known, begins = _known(tuple(secrets))

    def shown(found: re.Match[str]) -> str:
        return REDACTED if found[0][:_SHORTEST] in begins and found[0] in known else found[0]

    words = text(words)
    for part in _PARTS:
        words = part.sub(shown, words)
    return words


@lru_cache(maxsize=1)
def _known(secrets: tuple[str, ...]) -> tuple[str, frozenset[str]]:
    """Secrets as one text, of which no part goes over an end of a line, and what parts may begin with.

    A file may have thousands, and is quoted hundreds of times.
    """
    known = "\n".join(secret for secret in secrets if len(secret) >= _SHORTEST)
    return known, frozenset(known[at : at + _SHORTEST] for at in range(len(known)))


def document(value: Any) -> Any:
    """The same of what JSON can hold; a text that is JSON itself is looked into as text.

    >>> document({"env": {"HF_TOKEN": "abc"}, "argv": ["--password", "abc"], "step": 3})
    {'env': {'HF_TOKEN': '<redacted>'}, 'argv': ['--password', '<redacted>'], 'step': 3}
    """
    if isinstance(value, dict):
        pairs = list(value.items())
        hidden = hidden_pairs(pairs)
        return {text(str(key)): REDACTED if at in hidden else document(each) for at, (key, each) in enumerate(pairs)}
    if isinstance(value, (list, tuple)):
        hidden = hidden_items(value, len(value))
        return [REDACTED if at in hidden else document(each) for at, each in enumerate(value)]
    return text(value) if isinstance(value, str) else value


def texts(value: Any) -> Any:
    """The same of a document whose names are devkit's own: none of them says that what it names is a secret.

    >>> texts({"token": {"mode": "token"}, "found": ["https://me:pw@host/", 7]})
    {'token': {'mode': 'token'}, 'found': ['https://<redacted>@host/', 7]}
    """
    if isinstance(value, dict):
        return {name: texts(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [texts(each) for each in value]
    return text(value) if isinstance(value, str) else value
