"""Passages for queries: a server that speaks Search-R1's API, and the client that environments use.

    python -m trainer.retrieval --corpus FILE        a server
    here().search(["who wrote Faust"])               -> one list of passages per query

What an environment imports of this is standard library only: `here`, `Retriever` and what they give.
"""

from trainer.retrieval.api import Health, Passage
from trainer.retrieval.client import Retriever
from trainer.retrieval.node import here

__all__ = ["Health", "Passage", "Retriever", "here"]
