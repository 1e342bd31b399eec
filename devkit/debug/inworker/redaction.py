"""Keeps secrets out of what is shown: by the name of a value, by what stands beside it, and by the look of a text."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .insides import as_items, as_mapping, attributes, fields
from .secret_names import is_secret
from .secret_texts import REDACTED, hide

__all__ = [
    "LONGEST_SECRET", "REDACTED", "hidden_items", "hidden_pairs", "is_secret", "last_name", "redact", "scrub",
    "scrub_command", "scrub_start", "secrets_among", "secrets_of_frames", "without",
]  # fmt: skip

LONGEST_SECRET = 512  # of which a part could be left where a text is cut
_SHORTEST_KNOWN = 8  # a shorter one would be found in harmless text
_LAST_NAME = re.compile(r"(\w+)\W*$")
_OPTION = re.compile(r"--?[A-Za-z][\w-]*")
_LOGINS = ("sshpass", "mysql", "mariadb", "login", "curl", "redis-cli")
_KEY = re.compile(r"\w{32,100}")
_MOST = 50  # values that are looked into, for what a frame knows to be secret

Pairs = Sequence[tuple[Any, Any]]


def redact(name: object, value: Any) -> Any:
    """The value, or `<redacted>` if its name says that it is a secret.

    >>> redact("api_key", "abc"), redact("eos_token", "</s>"), redact("HF_TOKEN", "abc"), redact("tokens", [1, 2])
    ('<redacted>', '</s>', '<redacted>', [1, 2])
    """
    return REDACTED if is_secret(name, value) else value


def last_name(expression: str) -> str:
    """The name that an expression ends with, by which its value may be a secret.

    >>> last_name("settings.db_password"), last_name("keys['api_key']"), last_name("step + 1")
    ('db_password', 'api_key', '1')
    """
    found = _LAST_NAME.search(expression)
    return found[1] if found else ""


def hidden_pairs(pairs: Pairs) -> frozenset[int]:
    """Which of a mapping's pairs, or an object's attributes, are secret: by their names, or by the name in them.

    >>> hidden_pairs([("user", "me"), ("password", "x")]), hidden_pairs([("name", "DB_PASSWORD"), ("value", "x")])
    (frozenset({1}), frozenset({1}))
    """
    hidden = {index for index, (name, value) in enumerate(pairs) if is_secret(name, value)}
    places = {_plain(name): index for index, (name, _) in enumerate(pairs) if isinstance(name, (str, bytes))}
    if (at := places.get("value")) is not None:
        named = [pairs[places[key]][1] for key in ("name", "key") if key in places]
        hidden |= {at for name in named if is_secret(name, pairs[at][1])}
    return frozenset(hidden)


def _plain(name: str | bytes) -> str:
    return (name.decode("latin-1") if isinstance(name, bytes) else name).strip("_")


def hidden_items(items: Sequence[Any], size: int) -> frozenset[int]:
    """Which of a list's first items are secret by what is before them, in a list of so many items.

    >>> hidden_items(("password", "x"), 2), hidden_items(["prog", "--api-key", "x", "-v"], 4)
    (frozenset({1}), frozenset({2}))
    """
    texts = [_text(item) for item in items]
    if not any(texts):
        return frozenset()
    if size == 2 == len(items) and is_secret(texts[0], items[1]):
        return frozenset({1})
    return frozenset(_of_options(texts) | _of_key_file(texts))


def _of_options(texts: Sequence[str]) -> set[int]:
    hidden = set()
    login = ""
    for index, text in enumerate(texts):
        login = next((name for name in _LOGINS if name in text[:200].rpartition("/")[2]), login)
        following = texts[index + 1] if index + 1 < len(texts) else ""
        if following and not following.startswith("--") and _takes_a_secret(text, following, login):
            hidden.add(index + 1)
        if login.startswith(("mysql", "maria", "sshpass")) and text.startswith("-p") and len(text) > 2:
            hidden.add(index)
        if _KEY.fullmatch(text) and _is_wandb_login(texts[:index]):
            hidden.add(index)
    return hidden


def _is_wandb_login(before: Sequence[str]) -> bool:
    words = [text for text in before[-8:] if not text.startswith("--")]
    return words[-1:] == ["login"] and words[-2:-1] != [] and words[-2].endswith("wandb")


def _takes_a_secret(option: str, following: str, login: str) -> bool:
    if not _OPTION.fullmatch(option[:200]):
        return False
    if option == "-p":
        return login not in ("", "curl", "redis-cli") and not following.startswith("-")
    if option == "-a":
        return login == "redis-cli"
    if option in ("-u", "--user", "--proxy-user"):
        return login == "curl" and ":" in following
    return is_secret(option.strip("-").replace("-", "_"), following)


def _of_key_file(texts: Sequence[str]) -> set[int]:
    """The lines of a private key that was read line by line."""
    hidden: set[int] = set()
    inside = False
    for index, text in enumerate(texts):
        inside = inside or ("-----BEGIN" in text and "PRIVATE KEY" in text)
        if inside:
            hidden.add(index)
        inside = inside and "-----END" not in text
    return hidden


def _text(value: Any) -> str:
    if isinstance(value, str):
        return str.__str__(value)
    return bytes(value).decode("latin-1") if isinstance(value, (bytes, bytearray)) else ""


# ---- texts


def scrub(text: str, *, code: bool = False) -> str:
    """The text without what is secret in it, or is a secret of this process's environment.

    >>> scrub("curl -H 'Authorization: Bearer abcdefgh12345' https://me:pass@host/")
    "curl -H 'Authorization: <redacted>' https://<redacted>@host/"
    """
    return hide(without(text, _secrets_of_environment()), code=code)


def scrub_start(text: str, length: int, *, code: bool = False) -> str:
    """The first characters of `scrub(text)`, of which the rest need not be read; and no part of a secret at the end.

    >>> scrub_start("Bearer abcdefgh12345 and more", 19), scrub_start("plain words", 5)
    ('Bearer <redacted> a', 'plain')
    """
    if len(text) <= length + LONGEST_SECRET:
        return scrub(text, code=code)[:length]
    return scrub(text[: length + LONGEST_SECRET], code=code)[:-LONGEST_SECRET][:length]


def scrub_command(words: Sequence[str], length: int) -> str:
    """A process's command line, of which anybody may see the beginning.

    >>> scrub_command(["mysql", "-pS3cret", "rl"], 80), scrub_command(["run", "--api-key", "x y"], 80)
    ('mysql <redacted> rl', 'run --api-key <redacted>')
    """
    hidden = hidden_items(words, len(words))
    shown = (REDACTED if at in hidden else word for at, word in enumerate(words))
    return scrub_start(" ".join(shown).strip(), length)


# ---- values that are known to be secret, wherever else they stand


def without(document: Any, secrets: Iterable[str]) -> Any:
    """A text, or a document's texts, with `<redacted>` for each of these.

    >>> without({"said": ["no login with correct-horse"]}, ["correct-horse"])
    {'said': ['no login with <redacted>']}
    """
    secrets = tuple(secrets)
    if not secrets:
        return document
    if isinstance(document, str):
        for secret in secrets:
            document = document.replace(secret, REDACTED)
        return document
    if isinstance(document, dict):
        return {without(name, secrets): without(value, secrets) for name, value in document.items()}
    if isinstance(document, list):
        return [without(each, secrets) for each in document]
    return document


def secrets_among(names: Mapping[str, Any]) -> tuple[str, ...]:
    """The texts that a frame's variables, or what is right below them, have under a secret's name."""
    found: set[str] = set()
    pairs = list(names.items())
    _collect(pairs, found)
    for _, value in pairs[:_MOST]:
        _collect(_pairs_in(value), found)
    return tuple(sorted(found, key=len, reverse=True))


def secrets_of_frames(error: BaseException) -> tuple[str, ...]:
    """The same of all frames that an exception has come through."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return tuple({secret for frame in frames for secret in secrets_among(frame.f_locals)})


def _collect(pairs: Pairs, found: set[str]) -> None:
    for index in hidden_pairs(pairs):
        value = _text(pairs[index][1])
        if _SHORTEST_KNOWN <= len(value) <= LONGEST_SECRET and not (value.isalpha() and value.islower()):
            found |= {value, repr(value)[1:-1]}


def _pairs_in(value: Any) -> Pairs:
    if value is None or isinstance(value, (str, bytes, int, float, type)) or callable(value):
        return []
    mapping = as_mapping(value)
    if mapping is not None:
        return list(dict.items(mapping))[:_MOST]
    named = fields(value)
    if named is not None:
        return named
    items = as_items(value, _MOST)
    if items is not None:
        return [tuple(each) for each in items if type(each) in (tuple, list) and len(each) == 2]
    return attributes(value)[:_MOST]


_known: tuple[int, tuple[str, ...]] = (-1, ())


def _secrets_of_environment() -> tuple[str, ...]:
    """Values of secret variables, and the cluster's token, which may be in a file instead.

    Looked up again when the number of variables changed, since this runs for every text.
    """
    global _known
    size = len(os.environ)
    if _known[0] != size:
        values = [value for name, value in list(os.environ.items()) if is_secret(name, value)] + [_token()]
        _known = (size, tuple(value for value in values if len(value) >= _SHORTEST_KNOWN))
    return _known[1]


def _token() -> str:
    from .auth import cluster_token

    try:
        return cluster_token()
    except Exception:  # noqa: BLE001 - a Ray that can't read its token is not connected either: there is none to hide
        return ""
