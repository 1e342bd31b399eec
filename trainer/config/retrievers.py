"""What must hold of the keys `retriever.*` of a run with an environment."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from trainer.config.files import FILE, kind_of
from trainer.config.problems import Note, Problem
from trainer.config.retriever_schema import RetrieverConfig
from trainer.config.schema import Config
from trainer.errors import DataError
from trainer.retrieval import corpus, http

_URL, _SERVE = "retriever.url", "retriever.serve"
_DEFAULTS = RetrieverConfig()
# Of a command without an environment, `unmet.py` says what Search-R1's own keys ask for.
OURS = ("serve", "timeout")


def retriever_problems(config: Config) -> Iterator[Problem]:
    """One of `url` and `serve`, each of use."""
    retriever = config.retriever
    if config.agent.env is None:
        return
    if retriever.url is not None and retriever.serve is not None:
        message = f"{_URL}={retriever.url} and {_SERVE}={retriever.serve} are two retrievers"
        yield Problem(_SERVE, message, f"leave out {_SERVE} to use the one that runs, {_URL} to have one started")
    if retriever.url is not None:
        try:
            http.split(retriever.url)
        except ValueError as error:
            hint = "such as http://127.0.0.1:8000/retrieve"
            yield Problem(_URL, f"{_URL}={retriever.url} is {error}", hint)
    if retriever.serve is not None:
        yield from _corpus_problems(retriever.serve)


def _corpus_problems(path: str) -> Iterator[Problem]:
    """Of its first row: the others take time, and are looked at by the servers."""
    if kind_of(path) != FILE:
        yield Problem(_SERVE, f"{_SERVE}={path} is not a file", "give a corpus of JSON lines that every node can read")
        return
    try:
        corpus.look(path)
    except DataError as error:
        yield Problem(_SERVE, f"{_SERVE}: {error.message}", error.hint)


def retriever_notes(config: Config) -> Iterator[Note]:
    """Keys that do nothing as they stand, and what a URL means on several nodes."""
    retriever = config.retriever
    changed = [name for name, value in vars(retriever).items() if value != getattr(_DEFAULTS, name)]
    if config.agent.env is None:
        for name in changed:
            if name in OURS:
                yield Note("inert", f"retriever.{name}", f"retriever.{name} has no effect: agent.env is null")
        return
    if retriever.url is None and retriever.serve is None:
        for name in changed:
            yield Note("inert", f"retriever.{name}", f"retriever.{name} has no effect: there is no {_URL} or {_SERVE}")
        return
    turn_s = config.agent.turn_timeout
    if turn_s is not None and retriever.timeout >= turn_s:
        message = (
            f"retriever.timeout={retriever.timeout:g} is not less than agent.turn_timeout={turn_s:g}: "
            "a slow search will count as an environment that hangs"
        )
        yield Note("here", "retriever.timeout", message)
    if retriever.url is not None and config.trainer.nnodes > 1 and is_loopback(retriever.url):
        message = f"{_URL}={retriever.url} is each node's own: one must run on every node; {_SERVE} starts them"
        yield Note("here", _URL, message)


def is_loopback(url: str) -> bool:
    """Whether a URL means the node that asks.

    >>> is_loopback("http://127.0.0.1:8000/retrieve"), is_loopback("http://[::1]/"), is_loopback("http://10.0.0.7:8000")
    (True, True, False)
    """
    try:
        host = http.split(url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
