"""The retriever of this process's node: what the trainer gives its ranks, and what their environments inherit."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from trainer.errors import ConfigError
from trainer.retrieval.client import Retriever

VARIABLE = "TRAINER_RETRIEVER"  # {"url", "topk", "timeout", "retries"} as JSON; or, by hand, a URL


def here() -> Retriever:
    """The one that `retriever.url` or `retriever.serve` gives this node. Raises ConfigError where there is none.

    Without a run, TRAINER_RETRIEVER=URL in the environment gives one.
    """
    said = os.environ.get(VARIABLE)
    if not said:
        raise ConfigError(
            "there is no retriever here",
            hint="give retriever.url=http://HOST:PORT/retrieve of a running one, or retriever.serve=CORPUS.jsonl; "
            f"without a run, set {VARIABLE}=URL",
        )
    return Retriever(**json.loads(said)) if said.startswith("{") else Retriever(said)


def variables(retriever: Retriever) -> Mapping[str, str]:
    """What processes need in their environment for `here` to give `retriever`."""
    return {VARIABLE: json.dumps(vars(retriever))}


@contextmanager
def given(retriever: Retriever) -> Iterator[None]:
    """Within it, `here` gives `retriever`, in this process and in what it starts.

    >>> with given(Retriever("http://127.0.0.1:8000/retrieve", topk=5)):
    ...     here()
    Retriever(url='http://127.0.0.1:8000/retrieve', topk=5, timeout=30.0, retries=3)
    """
    before = os.environ.get(VARIABLE)
    os.environ.update(variables(retriever))
    try:
        yield
    finally:
        del os.environ[VARIABLE]
        if before is not None:
            os.environ[VARIABLE] = before
