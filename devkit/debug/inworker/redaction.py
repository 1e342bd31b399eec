"""Keeps secrets out of what is shown: by the name of the variable, and by the look of the text."""

from __future__ import annotations

import os
import re
from itertools import pairwise
from typing import Any

REDACTED = "<redacted>"

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SECRET_WORDS = frozenset(
    {
        "password",
        "passwords",
        "passwd",
        "passphrase",
        "secret",
        "secrets",
        "credential",
        "credentials",
        "authorization",
        "apikey",
        "cookie",
        "cookies",
        "bearer",
    }
)
_KEYS_OF = frozenset({"api", "access", "secret", "private", "signing", "encryption", "ssh", "account", "auth"})
# A tokenizer's tokens are no secrets. What is called just `token`, or `..._token`, and is a text, may be one.
_TOKENS_OF_TEXT = frozenset(
    {
        "eos",
        "bos",
        "pad",
        "padding",
        "unk",
        "sep",
        "cls",
        "mask",
        "special",
        "next",
        "prev",
        "last",
        "first",
        "stop",
        "start",
        "end",
        "num",
        "max",
        "min",
        "n",
        "per",
        "image",
        "video",
        "audio",
        "think",
        "tool",
        "prompt",
        "response",
        "input",
        "output",
        "new",
        "target",
        "draft",
        "begin",
        "of",
        "add",
    }
)
_LOOKS_SECRET = re.compile(
    r"(?i:\b(?:bearer|basic)\s+)[\w.~+/=-]{8,}"
    r"|\bhf_[A-Za-z0-9]{16,}|\bsk-[\w-]{16,}|\bgh[pousr]_[A-Za-z0-9]{16,}|\bgithub_pat_\w{16,}"
    r"|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bxox[abprs]-[\w-]{10,}|\beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*"
    r"|(?<=://)[^\s/:@]+:[^\s/@]+(?=@)"
)
LONGEST_SECRET = 512  # of which a part could be left where a text is cut
_SHORTEST_KNOWN_SECRET = 8  # a shorter one would be found in harmless text


def redact(name: object, value: Any) -> Any:
    """The value, or `<redacted>` if its name says that it is a secret.

    >>> redact("api_key", "abc"), redact("eos_token", "</s>"), redact("HF_TOKEN", "abc"), redact("tokens", [1, 2])
    ('<redacted>', '</s>', '<redacted>', [1, 2])
    """
    return REDACTED if is_secret(name, value) else value


def is_secret(name: object, value: Any) -> bool:
    """Whether a variable or key of this name and value should not be shown."""
    if value is None or isinstance(value, bool):
        return False
    if isinstance(name, bytes):
        name = name.decode("utf-8", "replace")
    if not isinstance(name, str):
        return False
    words = [word.lower() for word in _WORDS.findall(name[:200])]
    if not words:
        return False
    if _SECRET_WORDS.intersection(words) or _names_a_key(words):
        return not isinstance(value, type) and not callable(value)
    is_text = isinstance(value, (str, bytes, bytearray))
    return is_text and words[-1] == "token" and not _TOKENS_OF_TEXT.intersection(words)


def _names_a_key(words: list[str]) -> bool:
    return any(first in _KEYS_OF and second in ("key", "keys") for first, second in pairwise(words))


def scrub(text: str) -> str:
    """The text without what looks like a secret, or is one of this process's environment.

    >>> scrub("curl -H 'Authorization: Bearer abcdefgh12345' https://me:pass@host/")
    "curl -H 'Authorization: <redacted>' https://<redacted>@host/"
    """
    for secret in _secrets_of_environment():
        if secret in text:
            text = text.replace(secret, REDACTED)
    return _LOOKS_SECRET.sub(REDACTED, text)


def scrub_start(text: str, length: int) -> str:
    """The first characters of `scrub(text)`, of which the rest need not be read; and no part of a secret at the end.

    >>> scrub_start("Bearer abcdefgh12345 and more", 12), scrub_start("plain words", 5)
    ('<redacted> a', 'plain')
    """
    if len(text) <= length + LONGEST_SECRET:
        return scrub(text)[:length]
    return scrub(text[: length + LONGEST_SECRET])[:-LONGEST_SECRET][:length]


_known: tuple[int, list[str]] = (-1, [])


def _secrets_of_environment() -> list[str]:
    """Values of secret variables, and the cluster's token, which may be in a file instead.

    Looked up again when the number of variables changed, since this runs for every text.
    """
    global _known
    size = len(os.environ)
    if _known[0] != size:
        values = [value for name, value in list(os.environ.items()) if is_secret(name, value)] + [_token()]
        _known = (size, [value for value in values if len(value) >= _SHORTEST_KNOWN_SECRET])
    return _known[1]


def _token() -> str:
    from .auth import cluster_token

    try:
        return cluster_token()
    except Exception:  # noqa: BLE001 - a Ray that can't read its token is not connected either: there is none to hide
        return ""
