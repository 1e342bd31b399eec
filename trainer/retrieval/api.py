"""Search-R1's API for retrievers: what is asked, and what an answer holds. Pure.

    POST /retrieve {"queries": ["..."], "topk": 3, "return_scores": true}
    -> {"result": [[{"document": {"id": "0", "contents": "\\"Title\\"\\ntext"}, "score": 12.3}, ...], ...]}
    GET  /health   -> {"digest": "...", "passages": 137, ...}        ours; Search-R1's own server has none

(`search_r1/search/retrieval_server.py` and `search_r1/llm_agent/generation.py` of PeterGriffinJin/Search-R1.)
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PATH = "/retrieve"
HEALTH = "/health"
_SHOWN = 80  # characters of what was answered, in a message


class NoAnswer(ValueError):
    """Something else than an answer of this API; the message says what is wrong with it."""


@dataclass(frozen=True)
class Passage:
    """What was found. `title` is the first line of `contents` as it stands: in quotes where the corpus has them.

    >>> Passage.of({"id": 7, "contents": '"Munro"\\nBritish writer.'}, 1.5)
    Passage(id='7', title='"Munro"', text='British writer.', score=1.5)
    """

    id: str
    title: str
    text: str
    score: float = 0.0  # larger is better; 0 where the server gives none

    @classmethod
    def of(cls, document: Any, score: Any = 0.0) -> Passage:
        """Of a document as servers send it. Raises NoAnswer."""
        if not isinstance(document, Mapping):
            raise NoAnswer(f"a document is no object: {_shown(document)}")
        contents, title, text = document.get("contents"), document.get("title"), document.get("text")
        if isinstance(contents, str):
            title, _, text = contents.partition("\n")
        if not isinstance(title, str) or not isinstance(text, str):
            raise NoAnswer(f"a document has neither contents nor title and text: {_shown(document)}")
        return cls(clean(str(document.get("id", ""))), clean(title), clean(text), _score(score))


@dataclass(frozen=True)
class Health:
    """What a server says of itself; None: it does not say."""

    digest: str | None = None  # of the corpus
    passages: int | None = None
    said: Mapping[str, Any] = field(default_factory=dict)  # all of it

    @property
    def encoder(self) -> str | None:
        """The digest of the encoder by which passages are found; None by none, as by BM25."""
        digest = self.said.get("encoder_digest")
        return digest if isinstance(digest, str) and digest else None


def request(queries: Sequence[str], topk: int) -> bytes:
    """The body of a POST."""
    return json.dumps({"queries": [clean(query) for query in queries], "topk": topk, "return_scores": True}).encode()


def passages(body: bytes, count: int) -> list[list[Passage]]:
    """One list for each of `count` queries. Raises NoAnswer."""
    answer = _parsed(body)
    result = answer.get("result") if isinstance(answer, Mapping) else None
    if not isinstance(result, list):
        raise NoAnswer(f"there is no list `result` in it: {_shown(answer)}")
    if len(result) != count:
        raise NoAnswer(f"there are {len(result)} lists of passages for {count} queries")
    return [_found(found) for found in result]


def health(body: bytes) -> Health:
    """What is said, of which anything may be missing."""
    try:
        said = _parsed(body)
    except NoAnswer:
        return Health()
    if not isinstance(said, Mapping):
        return Health()
    digest, many = said.get("digest"), said.get("passages")
    return Health(
        digest if isinstance(digest, str) and digest else None,
        many if isinstance(many, int) and not isinstance(many, bool) else None,
        said,
    )


def clean(text: str) -> str:
    """`text` without halves of characters, which could not be written as UTF-8.

    >>> clean("Faust"), clean("\\ud83d\\ude00") == chr(0x1F600), clean("a\\ud800") == "a\\ufffd"
    ('Faust', True, True)
    """
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _found(found: Any) -> list[Passage]:
    if not isinstance(found, list):
        raise NoAnswer(f"the passages of a query are no list: {_shown(found)}")
    pairs = [
        (each["document"], each.get("score", 0.0)) if isinstance(each, Mapping) and "document" in each else (each, 0.0)
        for each in found
    ]
    return [Passage.of(document, score) for document, score in pairs]


def _score(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise NoAnswer(f"a score is no number: {_shown(value)}")
    try:
        score = float(value)
    except OverflowError:
        score = math.inf
    if not math.isfinite(score):
        raise NoAnswer(f"a score is not finite: {_shown(value)}")
    return score


def _parsed(body: bytes) -> Any:
    if not body.strip():
        raise NoAnswer("it is empty")
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        place = f" at character {error.pos} of {len(error.doc)}" if isinstance(error, json.JSONDecodeError) else ""
        raise NoAnswer(f"it is no JSON{place}: {_shown(body.decode(errors='replace'))}") from error


def _shown(value: Any) -> str:
    text = " ".join((value if isinstance(value, str) else json.dumps(value, default=str)).split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
