"""Passages by an encoder: their embeddings, and faiss's flat index of inner products over them.

faiss finds a few more than are wanted, and their scores are computed once more, in double precision and the same way
whatever is asked beside them: faiss's own differ in the seventh digit between one query and many, and so would the
order of passages that are nearly the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from trainer.errors import ConfigError, DataError
from trainer.retrieval import embeddings
from trainer.retrieval.corpus import Corpus
from trainer.retrieval.embeddings import Identity, Vectors
from trainer.retrieval.encoder import Encoder
from trainer.retrieval.meeting import count

CHUNK = 4096  # passages that are encoded, and read, at a time
SPARE = 8  # found beyond those that are wanted
TOGETHER = 256  # queries of requests that wait together
NEAR = 1e-2  # what a passage's embedding of another device or precision may differ by, in one number
TELL_S = 60.0  # between lines about how far it is


class Index:
    """Which passages are about a query. One thread at a time."""

    together = TOGETHER

    def __init__(self, corpus: Corpus, path: str, encoder: Encoder, tell: Callable[[str], None]) -> None:
        """`path` is the corpus's file, beside which its embeddings are, or are made.

        Raises ConfigError where faiss is not installed, DataError for embeddings that can't be used or written.
        """
        began = time.monotonic()
        self.corpus, self.encoder = corpus, encoder
        identity = Identity(corpus.digest, encoder.digest, len(corpus), encoder.width)
        self.path = identity.beside(path)
        vectors_ND = embeddings.stored(self.path, identity)
        self.made = vectors_ND is None  # just now
        if vectors_ND is None:
            tell(_before(corpus, path, identity, encoder))
            embeddings.store(self.path, identity, _encoded(corpus, encoder, tell))
            vectors_ND = embeddings.stored(self.path, identity)
            assert vectors_ND is not None
        self._require_own(vectors_ND)
        self._faiss = library().IndexFlatIP(encoder.width)
        for start in range(0, len(corpus), CHUNK):
            self._faiss.add(np.ascontiguousarray(vectors_ND[start : start + CHUNK]))
        self.seconds = time.monotonic() - began

    def search(self, queries: Sequence[str], topk: int) -> list[list[tuple[int, float]]]:
        """Rows and cosines of the best `topk` passages of each query, best first; of equals, the first in the corpus.

        Raises ModelError where the encoder gives numbers that are not finite.
        """
        if not queries:
            return []
        queries_QD = self.encoder.queries(queries)
        _, rows_QK = self._faiss.search(queries_QD, min(topk + SPARE, len(self.corpus)))
        return [self._best(query_D, rows_K, topk) for query_D, rows_K in zip(queries_QD, rows_QK, strict=True)]

    def _best(self, query_D: Any, rows_K: Any, topk: int) -> list[tuple[int, float]]:
        rows_K = np.sort(rows_K)
        vectors_KD = self._faiss.reconstruct_batch(rows_K).astype(np.float64)
        scores_K = (vectors_KD * query_D.astype(np.float64)).sum(1)  # not BLAS: a row's is the same wherever it stands
        return [(int(rows_K[i]), float(scores_K[i])) for i in np.argsort(-scores_K, kind="stable")[:topk]]

    def said(self) -> Mapping[str, str]:
        encoder = self.encoder
        return {
            "method": "dense",
            "encoder": encoder.name,
            "encoder_kind": encoder.kind,
            "encoder_digest": encoder.digest,
        }

    def _require_own(self, vectors_ND: Vectors) -> None:
        """Raises DataError unless a few passages, encoded again, are as in the file, which may have been copied."""
        rows = sorted({0, len(self.corpus) // 2, len(self.corpus) - 1})
        again = self.encoder.passages([self.corpus.contents[row] for row in rows])
        for row, vector_D in zip(rows, again, strict=True):
            if not np.abs(vectors_ND[row] - vector_D).max() <= NEAR:  # so that NaN is not near
                raise DataError(
                    f"the embeddings {self.path} can't be used: passage {row + 1} has another one by this encoder",
                    hint="delete it: it is made again from the corpus",
                )


def _encoded(corpus: Corpus, encoder: Encoder, tell: Callable[[str], None]) -> Iterator[Vectors]:
    began = said = time.monotonic()
    for start in range(0, len(corpus), CHUNK):
        yield encoder.passages(corpus.contents[start : start + CHUNK])
        done, now = min(start + CHUNK, len(corpus)), time.monotonic()
        if now - said > TELL_S:
            left_s = (now - began) / done * (len(corpus) - done)
            tell(f"{done:,} of {count(len(corpus))} embedded, about {left_s / 60:.0f} minutes left")
            said = now


def _before(corpus: Corpus, path: str, identity: Identity, encoder: Encoder) -> str:
    beside = embeddings.others(path, identity)
    other = f"; those beside it are another encoder's: {', '.join(beside)}" if beside else ""
    return f"embedding {count(len(corpus))} by {encoder.name}, kept in {identity.beside(path)}{other}"


def library() -> Any:
    """faiss. Raises ConfigError where it is not installed."""
    try:
        import faiss
    except ImportError as error:
        raise ConfigError(
            "faiss is not installed, by which passages are found from an encoder's embeddings",
            hint="pip install 'ray-devkit[dense]' on every node that serves them",
        ) from error
    return faiss
