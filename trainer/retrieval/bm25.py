"""BM25 over a corpus, by the library bm25s: its tokens, its index and its scores; the best few are found here.

The library's own `retrieve` sorts all passages by `numpy.argpartition`, which takes 20 times as long as all the rest
where most scores are 0 (`benchmarks/retrieval.py`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trainer.errors import ConfigError
from trainer.retrieval.corpus import Corpus

# Lucene's, as Search-R1's BM25 has them (`pyserini`); words of one character count: years, numbers, symbols.
K1, B, METHOD = 0.9, 0.4, "lucene"
_WORDS = r"(?u)\b\w+\b"


class Index:
    """Which passages are about a query. Safe in threads: nothing of it changes."""

    together = 1  # queries of several requests take as long as one after the other

    def __init__(self, corpus: Corpus) -> None:
        """Raises ConfigError where bm25s is not installed."""
        began = time.monotonic()
        self._library = library()
        self.corpus = corpus
        tokens = self._library.tokenize(corpus.contents, token_pattern=_WORDS, stopwords="en", show_progress=False)
        self._bm25: Any = None
        if any(tokens.ids):  # without a single word there is nothing to index, and the library would raise
            self._bm25 = self._library.BM25(method=METHOD, k1=K1, b=B, backend="numpy")
            self._bm25.index(tokens, show_progress=False)
        self.seconds = time.monotonic() - began  # that it took

    def search(self, queries: Sequence[str], topk: int) -> list[list[tuple[int, float]]]:
        """Rows and scores of the best `topk` passages of each query, best first; of equals, the first in the corpus.

        A passage that has no word of the query is not among them.
        """
        if self._bm25 is None:
            return [[] for _ in queries]
        words = self._library.tokenize(
            list(queries), token_pattern=_WORDS, stopwords="en", return_ids=False, show_progress=False
        )
        return [self._best(found, topk) for found in words]

    def said(self) -> Mapping[str, str]:
        """What `/health` says of it, beside the corpus."""
        return {"method": "bm25"}

    def _best(self, words: list[str], topk: int) -> list[tuple[int, float]]:
        ids = self._bm25.get_tokens_ids(words)
        return best(self._bm25.get_scores_from_ids(ids), topk) if ids else []


def best(scores: np.ndarray[Any, Any], topk: int) -> list[tuple[int, float]]:
    """Places and values of the largest positive ones, largest first; of equals, the first. Overwrites them in `scores`.

    >>> best(np.array([0.0, 2.0, 3.0, 2.0]), 2)
    [(2, 3.0), (1, 2.0)]
    """
    found = []
    for _ in range(min(topk, len(scores))):
        place = int(scores.argmax())
        score = float(scores[place])
        if score <= 0:
            break
        found.append((place, score))
        scores[place] = 0
    return found


def library() -> Any:
    """bm25s. Raises ConfigError where it is not installed."""
    try:
        import bm25s
    except ImportError as error:
        raise ConfigError(
            "bm25s is not installed, by which passages are found",
            hint="pip install 'ray-devkit[search]' on every node that serves them",
        ) from error
    return bm25s
