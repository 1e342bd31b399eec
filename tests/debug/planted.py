"""Secrets of every kind, made up, and the shapes in which a program holds them: material for tests of the redaction."""

from __future__ import annotations

import base64
import json
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy
from hypothesis import strategies as st

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
DIGITS = "0123456789"
WORD = LETTERS + DIGITS
BASE64 = WORD + "+/"
HEX = "0123456789abcdef"
UPPER = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
AWKWARD = WORD + "!@#$%^*_+-.~?/:"  # of a password; spaces and quotes are for shapes that quote


@dataclass(frozen=True)
class Secret:
    """What is planted, and what of it must not be seen: a run of six of these characters is a leak."""

    text: str
    core: str

    def leaks(self, view: str) -> str:
        """What of it stands in a view; empty where nothing does."""
        plain = view.replace("\\\\", "\\").replace("\\n", "\n")
        size = min(6, len(self.core))
        return next((p for k in range(len(self.core) - size + 1) if (p := self.core[k : k + size]) in plain), "")


@dataclass(frozen=True)
class Kind:
    """One kind of secret: how it is made, and under which name a program keeps it."""

    name: str  # of a variable that holds it
    texts: st.SearchStrategy[Secret]
    by_look: bool = True  # it is known without its name


def run(alphabet: str, size: int) -> st.SearchStrategy[str]:
    """Random characters with a digit and letters of both cases among them, where the alphabet has those."""
    drawn = st.lists(st.sampled_from(alphabet), min_size=size, max_size=size).map("".join)
    return drawn.filter(
        lambda text: len(set(text)) > min(size, 12) / 2 and (alphabet == DIGITS or _is_mixed(text, alphabet))
    )


def _is_mixed(text: str, alphabet: str) -> bool:
    groups = (set("abcdefghijklmnopqrstuvwxyz"), set("ABCDEFGHIJKLMNOPQRSTUVWXYZ"), set(DIGITS))
    return all(group & set(text) for group in groups if group & set(alphabet))


def made(form: str, alphabet: str = WORD, size: int = 32) -> st.SearchStrategy[Secret]:
    """`form` with random characters in it."""
    return run(alphabet, size).map(lambda core: Secret(form.format(core), core))


def pem(kind: str, *, cut: bool = False) -> st.SearchStrategy[Secret]:
    def block(body: str) -> Secret:
        lines = "\n".join(body[k : k + 64] for k in range(0, len(body), 64))
        end = "" if cut else f"\n-----END {kind}PRIVATE KEY-----"
        return Secret(f"-----BEGIN {kind}PRIVATE KEY-----\n{lines}{end}", body[:60])

    return run(BASE64, 64).map(lambda core: block(core * 12))


def basic() -> st.SearchStrategy[Secret]:
    def header(password: str) -> Secret:
        core = base64.b64encode(f"user:{password}".encode()).decode()
        return Secret(f"Basic {core}", core.rstrip("="))

    return run(WORD, 14).map(header)


def token_of_three(parts: tuple[str, str, str]) -> Secret:
    return Secret(f"eyJ{parts[0]}.eyJ{parts[1]}.{parts[2]}", parts[2])


# The 25 kinds that a program of this field is likely to hold, by the formats that their makers document.
KINDS: dict[str, Kind] = {
    "password": Kind("db_password", run(AWKWARD, 16).map(lambda text: Secret(text, text)), by_look=False),
    "wandb": Kind("WANDB_API_KEY", run(HEX, 40).map(lambda text: Secret(text, text)), by_look=False),
    "aws secret": Kind("aws_secret_access_key", run(BASE64, 40).map(lambda text: Secret(text, text)), by_look=False),
    "aws id": Kind("aws_access_key_id", made("AKIA{}", UPPER, 16)),
    "hugging face": Kind("hf_token", made("hf_{}", LETTERS, 34)),
    "openai": Kind("openai_api_key", made("sk-proj-{}", WORD, 48)),
    "openai of old": Kind("openai_api_key", made("sk-{}", WORD, 48)),
    "anthropic": Kind("anthropic_api_key", made("sk-ant-api03-{}", WORD, 93)),
    "github": Kind("github_token", made("ghp_{}", WORD, 36)),
    "github, fine": Kind("github_token", made("github_pat_{}", WORD, 60)),
    "gitlab": Kind("gitlab_token", made("glpat-{}", WORD, 20)),
    "slack": Kind("slack_token", made("xoxb-123456789012-{}", WORD, 24)),
    "stripe": Kind("stripe_key", made("sk_live_{}", WORD, 24)),
    "google": Kind("google_key", made("AIza{}", WORD, 35)),
    "jwt": Kind("jwt", st.tuples(run(WORD, 20), run(WORD, 30), run(WORD, 43)).map(token_of_three)),
    "rsa": Kind("private_key", pem("RSA ")),
    "openssh": Kind("private_key", pem("OPENSSH ")),
    "ec, cut": Kind("private_key", pem("EC ", cut=True)),
    "pkcs8": Kind("private_key", pem("")),
    "url": Kind("dsn", made("postgresql://user:{}@db.internal:5432/rl", WORD + "!$*_@", 16)),
    "azure account": Kind("connection", made("AccountName=rl;AccountKey={}==;EndpointSuffix=core", BASE64, 86)),
    "azure sas": Kind("sas_url", made("https://rl.blob.core/c?sv=2024&sig={}%3D&se=2026", WORD, 43)),
    "basic": Kind("Authorization", basic()),
    "bearer": Kind("Authorization", made("Bearer {}", WORD, 40)),
    "npm": Kind("npm_token", made("npm_{}", WORD, 36)),
}

Shape = Callable[[str, str], Any]  # (name of a variable, text) -> a value as a program holds it


@dataclass
class Holder:
    """A dataclass with a field of any name."""

    user: str
    inner: Any


class Plain:
    """An object with an attribute of any name."""

    def __init__(self, name: str, text: str) -> None:
        self.user = "me"
        setattr(self, name, text)


def record(name: str, text: str) -> Any:
    return namedtuple("Login", ["user", name])("me", text)


def option(name: str) -> str:
    return "--" + name.lower().replace("_", "-")


STRUCTURES: dict[str, Shape] = {
    "dict": lambda name, text: {"user": "me", name: text},
    "nested": lambda name, text: {"services": [{"db": {name: text}}]},
    "bytes in a dict": lambda name, text: {name.encode(): text.encode()},
    "dataclass": lambda name, text: Holder("me", SimpleNamespace(**{name: text})),
    "attribute": Plain,
    "namedtuple": record,
    "nested namedtuple": lambda name, text: [{"login": record(name, text)}],
    "pairs": lambda name, text: [("user", "me"), (name, text)],
    "one pair": lambda name, text: (name, text),
    "pairs of bytes": lambda name, text: [(name.encode(), text.encode())],
    "name and value": lambda name, text: [{"name": name, "value": text}],
    "arguments": lambda name, text: ["prog", option(name), text, "--verbose"],
    "arguments with =": lambda name, text: ["prog", f"{option(name)}={text}", "--verbose"],
}
# The name stands in the text itself.
TEXTS: dict[str, Shape] = {
    "environment": lambda name, text: f"HOME=/root\n{name.upper()}={text}\nLANG=C",
    "export": lambda name, text: f"export {name.upper()}='{text}' LANG=C",
    "log line": lambda name, text: f"2026-11-23 05:20:44 INFO connect with {name}={text} on rank 3",
    "log line with a colon": lambda name, text: f"INFO {name}: {text}",
    "json": lambda name, text: json.dumps({"user": "me", name: text, "rank": 3}),
    "json in json": lambda name, text: json.dumps({"text": json.dumps({name: text, "rank": 3})}),
    "yaml": lambda name, text: f"user: me\n{name}: '{text}'\nrank: 3\n",
    "repr": lambda name, text: f"Login(user='me', {name}={text!r}, rank=3)",
    "repr of pairs": lambda name, text: f"[('user', 'me'), ({name!r}, {text!r})]",
    "repr of arguments": lambda name, text: repr(["prog", option(name), text, "--verbose"]),
    "command": lambda name, text: f"prog {option(name)} {text} --verbose",
    "manifest": lambda name, text: f"env:\n- name: {name.upper()}\n  value: {text}\n- name: LANG\n  value: C\n",
}
# It has to be known by its look.
NAMELESS: dict[str, Shape] = {
    "f-string": lambda name, text: f"cannot log in with {text} on rank 3",
    "item": lambda name, text: ["a", text, "b"],
    "key": lambda name, text: {text: 1},
    "bytes": lambda name, text: text.encode(),
    "bytearray": lambda name, text: {"x": bytearray(text.encode())},
    "numpy bytes": lambda name, text: numpy.bytes_(text.encode()),
    "array of bytes": lambda name, text: numpy.array([text.encode()]),
    "array of texts": lambda name, text: numpy.array([text, "b"], dtype=object),
    "lines": lambda name, text: (text + "\n").splitlines(keepends=True),
}
