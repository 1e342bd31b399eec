"""What must hold of the keys `retriever.*` of a run with an environment."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from trainer.agent.source import SEARCH
from trainer.config.files import FILE, folder_findings, kind_of
from trainer.config.problems import Note, Problem
from trainer.config.retriever_schema import RetrieverConfig
from trainer.config.schema import Config
from trainer.errors import DataError
from trainer.retrieval import corpus, http
from trainer.retrieval.kinds import KINDS
from trainer.retrieval.kinds import kind_of as kind_of_encoder

_ENCODER, _KIND = "retriever.encoder", "retriever.encoder_kind"
_URL, _SERVE = "retriever.url", "retriever.serve"
_DEFAULTS = RetrieverConfig()


def retriever_problems(config: Config) -> Iterator[Problem]:
    """One of `url` and `serve`, each of use."""
    retriever = config.retriever
    if config.agent.env is None:
        return
    if config.agent.env == SEARCH and retriever.url is None and retriever.serve is None:
        message = f"neither {_URL} nor {_SERVE} is given, and agent.env={SEARCH} asks a retriever"
        hint = f"give {_SERVE}=CORPUS.jsonl, or {_URL}=http://HOST:PORT/retrieve of a running one"
        yield Problem(_URL, message, hint, ("agent.env",))
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
        yield from (each for each in _encoder_findings(retriever) if isinstance(each, Problem))


def _encoder_findings(retriever: RetrieverConfig) -> Iterator[Problem | Note]:
    """Of its folder, without loading it."""
    name = retriever.encoder
    if name is None:
        return
    yield from folder_findings(_ENCODER, name, weights=True, tokenizer=True)
    if retriever.encoder_kind is None and kind_of_encoder(name) is None:
        message = f"which kind of encoder {_ENCODER}={name} is does not show in its name"
        yield Problem(_KIND, message, f"say it: {_KIND}={'|'.join(KINDS)}", (_ENCODER,))


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
            yield Note("inert", f"retriever.{name}", f"retriever.{name} has no effect: agent.env is null")
        return
    if retriever.url is None and retriever.serve is None:
        for name in changed:
            yield Note("inert", f"retriever.{name}", f"retriever.{name} has no effect: there is no {_URL} or {_SERVE}")
        return
    if retriever.serve is not None:
        yield from (each for each in _encoder_findings(retriever) if isinstance(each, Note))
    elif retriever.encoder is not None:
        message = f"{_ENCODER} has no effect: the server at {_URL} finds passages in its own way"
        yield Note("inert", _ENCODER, message)
    if retriever.encoder_kind is not None and (retriever.encoder is None or retriever.serve is None):
        yield Note("inert", _KIND, f"{_KIND} has no effect without {_SERVE} and {_ENCODER}")
    turn_s = config.agent.turn_timeout
    if turn_s is not None and retriever.timeout >= turn_s and config.agent.env != SEARCH:
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
