"""Passages by an encoder: their embeddings, and faiss's flat index of inner products over them.

faiss finds a few more than are wanted, and their scores are computed once more, in double precision and the same way
whatever is asked beside them: faiss's own differ in the seventh digit between one query and many, and so would the
order of passages that are nearly the same.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainer.errors import ConfigError, DataError
from trainer.retrieval import embeddings
from trainer.retrieval.corpus import Corpus
from trainer.retrieval.embeddings import Identity, Vectors
from trainer.retrieval.encoder import Encoder
from trainer.retrieval.meeting import count

CHUNK = 4096  # passages that are encoded, and read, at a time
SPARE = 8  # found beyond those that are wanted; of more equals than these, faiss chooses which it finds
TOGETHER = 256  # queries of requests that wait together
NEAR = 1e-2  # what a passage's embedding of another device or precision may differ by, in one number
_OF_BOTH = "give an index of this corpus by this encoder, such as Search-R1's e5_Flat.index"
TELL_S = 60.0  # between lines about how far it is


class Index:
    """Which passages are about a query. One thread at a time."""

    together = TOGETHER

    def __init__(
        self, corpus: Corpus, path: str, encoder: Encoder, tell: Callable[[str], None], index: str | None = None
    ) -> None:
        """`path` is the corpus's file, beside which its embeddings are, or are made; or `index` is one of faiss's.

        Raises ConfigError where faiss is not installed, DataError for embeddings that can't be used or written.
        """
        began = time.monotonic()
        self.corpus, self.encoder = corpus, encoder
        identity = Identity(corpus.digest, encoder.digest, len(corpus), encoder.width)
        if index is None:
            self.path = identity.beside(path)
            vectors_ND, self.made = _vectors(self.path, path, corpus, encoder, identity, tell)
            self._faiss = library().IndexFlatIP(encoder.width)
            for start in range(0, len(corpus), CHUNK):
                self._faiss.add(np.ascontiguousarray(vectors_ND[start : start + CHUNK]))
        else:
            self.path, self.made = Path(os.path.expanduser(index)), False
            self._faiss = _read(self.path, identity)
        self._require_own("delete it: it is made again from the corpus" if index is None else _OF_BOTH)
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
        rows_K = np.sort(rows_K[rows_K >= 0])  # an index that does not look at all of them may find too few
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

    def _require_own(self, hint: str) -> None:
        """Raises DataError unless a few passages, encoded again, are as in the file, which may have been copied."""
        rows = sorted({0, len(self.corpus) // 2, len(self.corpus) - 1})
        again = self.encoder.passages([self.corpus.contents[row] for row in rows])
        try:
            there = self._faiss.reconstruct_batch(np.array(rows))
        except RuntimeError as error:
            raise _unusable(self.path, "it does not give its vectors back", _OF_BOTH) from error
        for row, one_D, other_D in zip(rows, there, again, strict=True):
            if not np.abs(one_D - other_D).max() <= NEAR:  # so that NaN is not near
                raise _unusable(self.path, f"passage {row + 1} has another vector by this encoder", hint)


def _vectors(
    kept: Path, path: str, corpus: Corpus, encoder: Encoder, identity: Identity, tell: Callable[[str], None]
) -> tuple[Vectors, bool]:
    """The embeddings of shape [N, D] in the file `kept`, and whether they were made just now."""
    found_ND = embeddings.stored(kept, identity)
    if found_ND is not None:
        return found_ND, False
    tell(_before(corpus, path, identity, encoder))
    embeddings.store(kept, identity, _encoded(corpus, encoder, tell))
    made_ND = embeddings.stored(kept, identity)
    assert made_ND is not None
    return made_ND, True


def _read(path: Path, identity: Identity) -> Any:
    """An index that faiss has written, as Search-R1's `index_builder.py` does. Raises DataError."""
    faiss = library()
    if not path.is_file():
        raise _unusable(path, "there is no such file", _OF_BOTH)
    try:
        index = faiss.read_index(str(path))
    except RuntimeError as error:
        raise _unusable(path, "faiss cannot read it", _OF_BOTH) from error
    shape, wanted = (index.ntotal, index.d), (identity.passages, identity.width)
    if shape != wanted:
        raise _unusable(
            path, f"it has {shape[0]:,} vectors of {shape[1]} numbers, not {wanted[0]:,} of {wanted[1]}", _OF_BOTH
        )
    if index.metric_type != faiss.METRIC_INNER_PRODUCT:
        raise _unusable(path, "it is not of inner products", _OF_BOTH)
    return index


def _unusable(path: Path, why: str, hint: str) -> DataError:
    return DataError(f"the embeddings {path} can't be used: {why}", hint=hint)


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
