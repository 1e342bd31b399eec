"""The keys `retriever.*`: where environments find passages. A part of `schema.Config`."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.retrieval.client import TIMEOUT_S, TOPK  # their one place: the client has no configuration


@dataclass(frozen=True)
class RetrieverConfig:
    """Search-R1's `url` and `topk`, the others ours."""

    url: str | None = None  # of a running one, as each node that plays episodes reaches it: http://HOST:PORT/retrieve
    serve: str | None = None  # ours: a corpus, JSON lines: the run starts a retriever of it on each of those nodes
    encoder: str | None = None  # ours: with serve, a model: passages by its embeddings, not by BM25
    encoder_kind: str | None = None  # ours: for an encoder whose name does not have one of these in it
    topk: int = TOPK  # passages per query
    timeout: float = TIMEOUT_S  # ours: seconds for a search, all its tries included
