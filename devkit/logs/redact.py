"""Text and documents without secrets, for who gives them to others. By devkit's rules for values, and names in text."""

from __future__ import annotations

import re
from typing import Any

from devkit.debug.inworker.redaction import REDACTED, is_secret, scrub

# NAME=value and "name": "value", as a shell, JSON, YAML or Python has them; --name value, as a command line has it.
_ASSIGNED = re.compile(
    r"""(?P<name>[A-Za-z_][\w.-]*)(?P<between>\\?["']?\s*[:=]\s*\\?["']?)(?P<value>[^\s"',;&|)}\]\\]+)"""
)
_OPTION = re.compile(r"""(?P<name>--[A-Za-z][\w-]*)(?P<between>["',]*\s+["']?)(?P<value>[^\s"',-][^\s"',]*)""")
_ENVIRONMENT = re.compile(r"(?:^|_)(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|PWD|CREDENTIALS?)$")
_HEADER = re.compile(
    r"(?im)((?:proxy-)?authorization|cookie|set-cookie|x-api-key)(['\"]?\s*[:=]\s*['\"]?)([^\r\n'\"]+)"
)
_URL = re.compile(r"(?<=://)[^\s/:@]+:[^\s/@]+(?=@)|(?<=://)[^\s/:@]{8,}(?=@)")
_KEY_BLOCK = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)


def is_secret_name(name: str, value: Any = "text") -> bool:
    """
    >>> [is_secret_name(name) for name in ("WANDB_API_KEY", "HF_TOKEN", "DB_PASSWORD", "eos_token", "key", "step")]
    [True, True, True, False, False, False]
    """
    plain = name.strip("-").replace("-", "_")
    return bool(_ENVIRONMENT.search(plain) and plain.isupper() and "_" in plain) or is_secret(plain, value)


def text(words: str) -> str:
    """
    >>> text("export WANDB_API_KEY=abc123 STEP=4; curl --password hunter2 https://me:pw@host/")
    'export WANDB_API_KEY=<redacted> STEP=4; curl --password <redacted> https://<redacted>@host/'
    >>> text("Authorization: Token abc def")
    'Authorization: <redacted>'
    """
    words = _KEY_BLOCK.sub(REDACTED, words)
    words = _HEADER.sub(rf"\1\2{REDACTED}", words)
    words = _URL.sub(REDACTED, words)
    for pattern in (_ASSIGNED, _OPTION):
        words = pattern.sub(_named, words)
    return scrub(words)


def _named(found: re.Match[str]) -> str:
    name, between, value = found["name"], found["between"], found["value"]
    return f"{name}{between}{REDACTED}" if value != REDACTED and is_secret_name(name, value) else found[0]


def document(value: Any, name: str = "") -> Any:
    """The same of what JSON can hold; a text that is JSON itself is looked into as text."""
    if isinstance(value, dict):
        return {key: document(each, str(key)) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [document(each, name) for each in value]
    if isinstance(value, str):
        return REDACTED if name and value and is_secret_name(name, value) else text(value)
    return value
