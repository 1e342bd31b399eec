"""The retriever of this process's node: what the trainer tells its ranks, and what their environments inherit."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from trainer.errors import ConfigError
from trainer.retrieval.client import Retriever

VARIABLE = "TRAINER_RETRIEVER"  # {"url", "topk", "timeout", "retries"} as JSON


def here() -> Retriever:
    """The one that `retriever.url` or `retriever.serve` gives this node. Raises ConfigError where there is none."""
    said = os.environ.get(VARIABLE)
    if not said:
        raise ConfigError(
            "this run has no retriever",
            hint="give retriever.url=http://HOST:PORT/retrieve of a running one, or retriever.serve=CORPUS.jsonl",
        )
    return Retriever(**json.loads(said))


def variables(retriever: Retriever) -> Mapping[str, str]:
    """What processes need in their environment for `here` to give `retriever`.

    >>> os.environ.update(variables(Retriever("http://127.0.0.1:8000/retrieve", topk=5)))
    >>> here()
    Retriever(url='http://127.0.0.1:8000/retrieve', topk=5, timeout=30.0, retries=3)
    >>> del os.environ[VARIABLE]
    """
    return {VARIABLE: json.dumps(vars(retriever))}
