"""Texts and documents without secrets, for who gives them to others: by the rules that the debugger has for values."""

from __future__ import annotations

from typing import Any

from devkit.debug.inworker.redaction import REDACTED, hidden_items, hidden_pairs, scrub


def text(words: str) -> str:
    """
    >>> text("export WANDB_API_KEY=abc123 STEP=4; curl --password hunter2 https://me:pw@host/")
    'export WANDB_API_KEY=<redacted> STEP=4; curl --password <redacted> https://<redacted>@host/'
    >>> text("Authorization: Token abc def")
    'Authorization: <redacted>'
    """
    return scrub(words)


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
