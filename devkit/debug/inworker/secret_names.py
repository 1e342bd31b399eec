"""Which names say that their value is a secret: of variables, keys, fields, environment variables and options."""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache
from itertools import pairwise
from typing import Any

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
# A word of a name that makes it one of a secret, whatever the value is.
_SECRET = frozenset({
    "password", "passwords", "passwd", "passphrase", "passcode", "pwd", "secret", "secrets", "credential",
    "credentials", "creds", "authorization", "apikey", "apikeys", "authkey", "cookie", "cookies", "bearer", "jwt",
    "netrc",
})  # fmt: skip
_SECRET_ENDS = ("password", "passwd", "passphrase", "apikey", "secretkey", "accesskey", "privatekey", "authtoken")
_KEYS_OF = frozenset({
    "api", "access", "secret", "private", "signing", "signature", "encryption", "ssh", "account", "auth", "hmac",
    "master", "storage", "google", "azure", "openai", "anthropic", "stripe", "wandb", "aws", "service", "deploy",
    "license", "admin", "session",
})  # fmt: skip
_PASS_OF = frozenset({
    "db", "user", "smtp", "mail", "email", "sql", "mysql", "pg", "postgres", "mongo", "redis", "ssh", "sudo", "root",
    "admin", "login", "ldap", "proxy",
})  # fmt: skip
_AUTH_OF = frozenset({
    "basic", "http", "https", "proxy", "digest",
})  # fmt: skip
# A tokenizer's tokens are no secrets. What is called just `token`, or `..._token`, and is a text, may be one.
_TOKENS_OF_TEXT = frozenset({
    "eos", "bos", "pad", "padding", "unk", "sep", "cls", "mask", "special", "next", "prev", "last", "first", "stop",
    "start", "end", "num", "max", "min", "n", "per", "image", "video", "audio", "think", "tool", "prompt", "response",
    "input", "output", "new", "target", "draft", "begin", "of", "add", "chat", "im", "eot", "eom", "eod", "fim",
    "vocab", "sub", "word", "char", "generated", "sampled", "bad", "suppress", "forced", "answer", "reasoning",
    "observation", "action", "newline", "separator", "delimiter", "lang", "language", "extra", "additional",
    "control",
})  # fmt: skip
# `password_file` is a path, `secret_name` a name: of these a person needs to know.
_ABOUT = frozenset({
    "file", "files", "path", "dir", "folder", "name", "names", "len", "length", "count", "type", "kind", "policy",
    "mode", "enabled", "required", "env", "var", "expiry",
})  # fmt: skip
_ENVIRONMENT = re.compile(r"[A-Z0-9_]+_(?:KEY|TOKEN|SECRET|PASS|PASSWORD|PASSWD|PWD|CREDENTIALS?)")
_FOLDER = re.compile(r"[/~.]|[A-Za-z]:[\\/]|\\\\|\w[\w.]*\(|$")  # or a call that gives one
LONGEST_NAME = 200


class Nature(Enum):
    """What a value may be by its name."""

    NOTHING = "no secret"
    SECRET = "a secret, be it a text, a number or a list of them"
    TOKEN = "a secret if it is a text, or holds one, and is no token of a text"
    BARE_TOKEN = "a secret if it is a text, and no token of one"
    TEXT = "a secret if it is a text, or a user with a password"
    LOGIN = "a secret if it is a user with a password"
    ADDRESS = "a secret if it has a password in it"
    PWD = "a secret if it is a text, and no folder: the shell's working folder has that name, too"


def is_secret(name: object, value: Any) -> bool:
    """Whether a variable or key of this name and value should not be shown.

    >>> [is_secret(name, "abc") for name in ("api_key", "HF_TOKEN", "dbPassword", "eos_token", "key", "step")]
    [True, True, True, False, False, False]
    >>> is_secret("token", 17), is_secret("password", 17), is_secret("password", None)
    (False, True, False)
    """
    if value is None or isinstance(value, (bool, type)):
        return False
    if isinstance(name, (bytes, bytearray)):
        name = bytes(name).decode("utf-8", "replace")
    if not isinstance(name, str) or not 1 < len(name) <= LONGEST_NAME:
        return False
    nature = _nature(str(name))
    return nature != Nature.NOTHING and _is_held(nature, value)


@lru_cache(maxsize=4096)
def _nature(name: str) -> Nature:
    """What a value of this name may be. A program has few names, and each is looked at many times."""
    words = [word.lower() for word in _WORDS.findall(name) if not word.isdigit()]
    if not words or words[-1] in _ABOUT:
        return Nature.NOTHING
    if words == ["pwd"]:
        return Nature.PWD
    *before, last = words
    if any(word in _SECRET or word.endswith(_SECRET_ENDS) for word in words):
        return Nature.SECRET
    if any(first in _KEYS_OF and second in ("key", "keys") for first, second in pairwise(words)):
        return Nature.SECRET
    if last == "token":
        return Nature.NOTHING if _TOKENS_OF_TEXT.intersection(before) else Nature.TOKEN if before else Nature.BARE_TOKEN
    if last == "auth":
        return Nature.LOGIN if not _AUTH_OF.intersection(before) else Nature.TEXT
    is_of_environment = _ENVIRONMENT.fullmatch(name) is not None and not _TOKENS_OF_TEXT.intersection(before)
    if is_of_environment or (last in ("pass", "pw") and _PASS_OF.intersection(before[-1:])):
        return Nature.TEXT
    return Nature.ADDRESS if name == "netloc" else Nature.NOTHING


def _is_held(nature: Nature, value: Any) -> bool:
    """Whether a value is what its name may stand for."""
    if nature == Nature.SECRET:
        return not callable(value)
    if nature == Nature.LOGIN or (nature == Nature.TEXT and isinstance(value, (tuple, list))):
        is_pair = isinstance(value, (tuple, list)) and len(value) == 2
        return is_pair and all(isinstance(each, (str, bytes)) for each in value)
    if not isinstance(value, (str, bytes, bytearray)):
        return nature == Nature.TOKEN and _is_opaque(value)
    if nature == Nature.PWD:
        return _FOLDER.match(value if isinstance(value, str) else bytes(value).decode("latin-1")) is None
    if nature == Nature.ADDRESS:
        return (b"@" if not isinstance(value, str) else "@") in value  # type: ignore[operator]
    return nature == Nature.TEXT or not _is_token_of_text(value)


def _is_opaque(value: Any) -> bool:
    """An object around a text, as configurations have: no figure, no collection, no array."""
    plain = (int, float, complex, list, tuple, dict, set, frozenset)
    return not isinstance(value, plain) and not callable(value) and not hasattr(type(value), "shape")


def _is_token_of_text(value: Any) -> bool:
    """
    >>> [_is_token_of_text(text) for text in ("<|im_end|>", "[PAD]", "Ġthe", b"hf_abc")]
    [True, True, True, False]
    """
    if not isinstance(value, str):
        return False
    return value.startswith(("Ġ", "▁", "##")) or (value[:1] + value[-1:]) in ("<>", "[]")
