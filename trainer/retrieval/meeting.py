"""A node's first look at its retriever, before the first step, and the comparison of what several nodes saw."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from trainer.errors import RetrieverWrong
from trainer.retrieval.client import Retriever
from trainer.retrieval.node import variables

# What servers that say nothing of their corpus are compared by.
CANARIES = ("history of the city", "who was born in 1912", "the largest number")
# Less than this share in common is another corpus. Not all: encoders on two kinds of GPU order near ties in two ways.
IN_COMMON = 0.5


@dataclass(frozen=True)
class Met:
    """What one node found at a URL."""

    url: str
    digest: str | None  # of the corpus; None where the server does not say
    passages: int | None
    found: frozenset[tuple[str, ...]]  # passages with the query that they answer
    seconds: float  # that the search took
    encoder: str | None = None  # its digest; None: by none, or the server does not say

    def __str__(self) -> str:
        if self.digest is None:
            return f"a retriever that does not say what it holds, at {self.url}"
        many = "" if self.passages is None else f"{count(self.passages)}, "
        by = "" if self.encoder is None else f", encoder {self.encoder}"
        return f"{many}digest {self.digest}{by}, at {self.url}"


def count(passages: int) -> str:
    """
    >>> count(1), count(2000)
    ('1 passage', '2,000 passages')
    """
    return f"{passages:,} passage{'s' * (passages != 1)}"


def meet(retriever: Retriever) -> Met:
    """Makes `retriever` that of this process and of what it starts, and looks at it. Raises as `look` does."""
    os.environ.update(variables(retriever))
    return look(retriever)


def look(retriever: Retriever) -> Met:
    """Whether it is of use. Raises RetrieverDown, RetrieverSlow, RetrieverWrong."""
    health = retriever.health()
    began = time.monotonic()
    found = retriever.search(CANARIES)
    seconds = time.monotonic() - began
    pairs = zip(CANARIES, found, strict=True)
    each = frozenset((query, hit.id, hit.title, hit.text) for query, hits in pairs for hit in hits)
    return Met(retriever.url, health.digest, health.passages, each, seconds, health.encoder)


def require_same(met: Mapping[str, Met]) -> None:
    """Raises RetrieverWrong that names a node, by which `met` is, whose retriever is another than that of most."""
    [(usual, _)] = Counter((each.digest, each.encoder) for each in met.values()).most_common(1)
    first = next(node for node, each in met.items() if (each.digest, each.encoder) == usual)
    for node, each in met.items():
        if what := _difference(met[first], each):
            raise RetrieverWrong(
                f"the retrievers of two nodes {what}: node {node} has {each}; node {first} has {met[first]}",
                hint="give all nodes the same corpus file and encoder; retriever.serve=CORPUS.jsonl starts one on each",
            )


def _difference(one: Met, other: Met) -> str:
    """Empty: none that matters."""
    if one.digest != other.digest:
        return "hold different passages"
    if one.encoder != other.encoder:
        return "find passages by different encoders"
    return "" if alike(one, other) else "find different passages"


def alike(one: Met, other: Met) -> bool:
    """Whether two have found about the same."""
    most = max(len(one.found), len(other.found))
    return len(one.found & other.found) >= IN_COMMON * most
