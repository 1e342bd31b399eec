"""A node's first look at its retriever, before the first step, and the comparison of what several nodes saw."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainer.errors import RetrieverWrong
from trainer.retrieval.client import Retriever
from trainer.retrieval.node import variables

# What servers that say nothing of their corpus are compared by: the same passages in the same order.
CANARIES = ("history of the city", "who was born in 1912", "the largest number")


@dataclass(frozen=True)
class Met:
    """What one node found at a URL."""

    url: str
    digest: str | None  # of the corpus; None where the server does not say
    passages: int | None
    answers: str  # a digest of what it found for CANARIES
    seconds: float  # that the search took

    def __str__(self) -> str:
        if self.digest is None:
            return f"a retriever that does not say what it holds, at {self.url}"
        many = "" if self.passages is None else f"{self.passages:,} passages, "
        return f"{many}digest {self.digest}, at {self.url}"


def meet(retriever: Retriever) -> Met:
    """Makes `retriever` that of this process and of what it starts, and looks whether it is of use.

    Raises RetrieverDown, RetrieverSlow, RetrieverWrong.
    """
    os.environ.update(variables(retriever))
    health = retriever.health()
    began = time.monotonic()
    found = retriever.search(CANARIES)
    seconds = time.monotonic() - began
    said = json.dumps([[(each.id, each.title, each.text) for each in passages] for passages in found])
    answers = hashlib.sha256(said.encode()).hexdigest()[:16]
    return Met(retriever.url, health.digest, health.passages, answers, seconds)


def require_same(met: Mapping[str, Met]) -> None:
    """Raises RetrieverWrong that names a node, by which `met` is, whose retriever is another than that of most."""
    for what, of in (("hold", _digest), ("find", _answers)):
        known = {node: of(each) for node, each in met.items()}
        usual = _most_common(list(known.values()))
        for node, value in known.items():
            if value != usual:
                other = next(other for other, its in known.items() if its == usual)
                raise RetrieverWrong(
                    f"the retrievers of two nodes {what} different passages: node {node} has {met[node]}; "
                    f"node {other} has {met[other]}",
                    hint="give all nodes the same corpus file; retriever.serve=CORPUS.jsonl starts one on each",
                )


def _digest(met: Met) -> str | None:
    return met.digest


def _answers(met: Met) -> str:
    return met.answers


def _most_common(values: Sequence[str | None]) -> str | None:
    """Of several that are as common, the first."""
    return max(values, key=values.count)
