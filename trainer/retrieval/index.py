"""What a server needs of an index, and how one is made: by BM25, or by an encoder."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from trainer.errors import ConfigError
from trainer.retrieval import bm25, corpus
from trainer.retrieval.corpus import Corpus
from trainer.retrieval.kinds import KINDS, kind_of
from trainer.retrieval.meeting import count

MANY = 1_000_000  # passages whose index takes so long that it is worth a word


class Index(Protocol):
    """Which passages are about a query. One thread at a time."""

    corpus: Corpus
    seconds: float  # that it took to be made
    together: int  # queries that are better searched at once than one after the other

    def search(self, queries: Sequence[str], topk: int) -> list[list[tuple[int, float]]]:
        """Rows and scores of the best `topk` passages of each query, best first; of equals, the first in the corpus."""
        ...

    def said(self) -> Mapping[str, str]:
        """What `/health` says of it, beside the corpus."""
        ...


@runtime_checkable
class Embedded(Index, Protocol):
    """One by an encoder."""

    path: Path  # of its embeddings
    made: bool  # just now, and not by an earlier server


@dataclass(frozen=True)
class Source:
    """What an index is made of."""

    path: str  # of the corpus
    encoder: str | None = None  # a folder or a hub name; None: BM25
    kind: str | None = None  # one of KINDS; None: the one that the encoder's name has in it
    device: str = "cpu"  # the encoder's
    index: str | None = None  # a file of faiss's with the encoder's embeddings; None: the one beside the corpus

    def require(self) -> None:
        """Raises ConfigError where a package is missing, or the kind of the encoder is not known."""
        if self.encoder is None:
            bm25.library()
            return
        from trainer.retrieval import dense

        dense.library()
        self.known_kind()

    def known_kind(self) -> str:
        """Raises ConfigError."""
        kind = self.kind or kind_of(self.encoder or "")
        if kind is None:
            *most, last = KINDS
            raise ConfigError(
                f"which kind of encoder {self.encoder} is does not show in its name",
                hint=f"say it: {', '.join(most)} or {last}, as --encoder-kind or retriever.encoder_kind",
            )
        return kind


def made(source: Source, tell: Callable[[str], None]) -> Index:
    """The index of a corpus; `tell` gets lines about what takes long.

    Raises ConfigError: a package is missing; ModelError: the encoder can't be used; DataError: the corpus, or what is
    kept of its embeddings.
    """
    source.require()
    if source.encoder is None:
        read = corpus.read(source.path)
        if len(read) > MANY:
            tell(f"indexing {count(len(read))} takes minutes")
        return bm25.Index(read)
    from trainer.retrieval import dense
    from trainer.retrieval.encoder import Encoder

    encoder = Encoder(source.encoder, source.known_kind(), source.device)  # before a corpus, which takes longer
    return dense.Index(corpus.read(source.path), os.path.expanduser(source.path), encoder, tell, source.index)
