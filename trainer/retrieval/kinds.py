"""Encoders of queries and passages, as Search-R1 uses them: what stands before a text, and what is taken of its tokens.

(`search_r1/search/index_builder.py` and `retrieval_server.py` of PeterGriffinJin/Search-R1.) DPR is none of them: its
queries and passages have a model each.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MOST_TOKENS = 256  # of a query and of a passage, as in its `build_index.sh`; the rest is cut off


@dataclass(frozen=True)
class Kind:
    """All of them are normalised: a score is a cosine."""

    query: str  # before a query
    passage: str  # before a passage
    pooling: str  # "mean" of all tokens, or the first of them, "cls"


KINDS = {
    "e5": Kind("query: ", "passage: ", "mean"),
    "bge": Kind("Represent this sentence for searching relevant passages: ", "", "cls"),
    "contriever": Kind("", "", "mean"),
}
_NAMES = re.compile(rf"(?<![a-z0-9])({'|'.join(KINDS)})(?![a-z0-9])")


def kind_of(encoder: str) -> str | None:
    """The kind that the path or hub name of an encoder has in it; None where it has none, or two.

    >>> kind_of("intfloat/e5-base-v2"), kind_of("/models/BGE_small"), kind_of("/models/mine"), kind_of("/e5/bge")
    ('e5', 'bge', None, None)
    """
    found = set(_NAMES.findall(encoder.lower().replace("_", "-")))
    return found.pop() if len(found) == 1 else None
