"""A retriever as this node reaches it: whether it answers, and what it holds. It speaks Search-R1's API."""

from __future__ import annotations

import hashlib
import http.client
import json
import socket
import time
from typing import Any
from urllib.parse import urlsplit

from .facts import RetrieverFacts

# What servers that say nothing of their corpus are compared by.
CANARIES = ["history of the city", "who was born in 1912", "the largest number"]
_MOST = 2**24  # bytes of an answer


def ask(url: str, topk: int, seconds: float) -> RetrieverFacts:
    """What it answers within that time; why it does not, is told."""
    end = time.monotonic() + seconds
    try:
        began = time.monotonic()
        said = _answer(url, "POST", end, {"queries": CANARIES, "topk": topk, "return_scores": True})
        took_s, found = time.monotonic() - began, _found(said)
    except socket.gaierror as error:
        return RetrieverFacts(url, f"its host is not known: {error.strerror}")
    except TimeoutError:
        return RetrieverFacts(url, f"no answer within {seconds:g} s")
    except (OSError, http.client.HTTPException) as error:
        return RetrieverFacts(url, getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"[:200])
    except ValueError as error:
        return RetrieverFacts(url, str(error)[:200])
    health = _health(url, end)
    digest, passages, encoder = health.get("digest"), health.get("passages"), health.get("encoder_digest")
    return RetrieverFacts(
        url,
        digest=digest if isinstance(digest, str) else "",
        passages=passages if isinstance(passages, int) else 0,
        found=found,
        seconds=round(took_s, 6),
        encoder=encoder if isinstance(encoder, str) else "",
    )


def _health(url: str, end: float) -> dict[str, Any]:
    """What ours says of itself; Search-R1's own server says nothing."""
    whole = urlsplit(url)
    try:
        said = _answer(whole._replace(path="/health", query="").geturl(), "GET", end, None)
    except (OSError, ValueError, http.client.HTTPException):
        return {}
    return said if isinstance(said, dict) else {}


def _answer(url: str, method: str, end: float, body: Any) -> Any:
    whole = urlsplit(url)
    kind = http.client.HTTPSConnection if whole.scheme == "https" else http.client.HTTPConnection
    line = kind(whole.hostname or "", whole.port, timeout=max(0.1, end - time.monotonic()))
    try:
        path = (whole.path or "/") + (f"?{whole.query}" if whole.query else "")
        sent = None if body is None else json.dumps(body)
        line.request(method, path, sent, {"Content-Type": "application/json"} if sent else {})
        answer = line.getresponse()
        if answer.status != 200:
            raise ValueError(f"it answered {answer.status} {answer.reason}")
        text = answer.read(_MOST)
    finally:
        line.close()
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # the latter of brackets without end
        raise ValueError("its answer is no JSON") from None


def _found(said: Any) -> str:
    """A digest of what was found. Raises ValueError for what is no answer of this API."""
    result = said.get("result") if isinstance(said, dict) else None
    if not isinstance(result, list) or len(result) != len(CANARIES) or not all(isinstance(r, list) for r in result):
        raise ValueError("its answer has no list of passages for each query")
    documents = [[hit.get("document", hit) if isinstance(hit, dict) else hit for hit in hits] for hits in result]
    return hashlib.sha256(json.dumps(documents, sort_keys=True).encode()).hexdigest()[:12]
