"""The client: queries in, passages out, or one error that names the URL. Standard library only."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPException, IncompleteRead, RemoteDisconnected, responses

from trainer.errors import RetrieverDown, RetrieverSlow, RetrieverWrong
from trainer.retrieval import api, http
from trainer.retrieval.api import Health, NoAnswer, Passage

FIRST_WAIT_S = 0.25  # before the second try; doubled with each
TIMEOUT_S, RETRIES, TOPK = 30.0, 3, 3
_AGAIN = frozenset({429, 500, 502, 503, 504})  # statuses that may pass
_DRAW = random.SystemRandom()  # of waits: no draw of an environment's own depends on it


@dataclass(frozen=True)
class Retriever:
    """A server that speaks Search-R1's API. Safe in threads and after a fork: it keeps no connection.

    `timeout` is in seconds, for a whole call with all its tries; so no call takes longer, whatever the server does.
    `retries` are tries after the first, with growing waits between them: of a connection that is refused or breaks, of
    the statuses 429, 500, 502, 503 and 504.
    """

    url: str  # http://HOST:PORT/retrieve
    topk: int = TOPK  # passages per query
    timeout: float = TIMEOUT_S
    retries: int = RETRIES

    def search(self, queries: Sequence[str]) -> list[list[Passage]]:
        """The best passages of each query, best first; of one that matches nothing, none. No queries: nothing is asked.

        Raises RetrieverDown, RetrieverSlow, RetrieverWrong.
        """
        if isinstance(queries, str):
            raise TypeError("search takes a list of queries, not one text")
        if not queries:
            return []
        answer = self._ask(self.url, api.request(queries, self.topk), _many(len(queries), "query", "queries"))
        if answer.status != 200:
            raise self._refused(answer)
        try:
            return [found[: self.topk] for found in api.passages(answer.body, len(queries))]
        except NoAnswer as error:
            raise RetrieverWrong(
                f"the answer of the retriever at {self.url} is of no use: {error}",
                hint="is it a server with Search-R1's /retrieve? its own log may say what happened",
            ) from error

    def health(self) -> Health:
        """What the server says of itself. Without /health, as Search-R1's own, it says nothing.

        Raises RetrieverDown, RetrieverSlow, and RetrieverWrong for a status that says that it is unwell.
        """
        parts = http.split(self.url)
        address = parts._replace(path=parts.path.rpartition("/")[0] + api.HEALTH, query="", fragment="").geturl()
        answer = self._ask(address, None, "whether it is well")
        if answer.status in _AGAIN:
            raise self._refused(answer)
        return api.health(answer.body) if answer.status == 200 else Health()

    def _ask(self, url: str, body: bytes | None, what: str) -> http.Answer:
        """The last of the tries that the deadline allows, whatever its status."""
        began = time.monotonic()
        deadline = began + self.timeout
        wait_s = FIRST_WAIT_S
        for tried in range(1, self.retries + 2):
            answer, failure = None, None
            try:
                answer = http.ask(url, body, http.left(deadline))
            except TimeoutError as error:
                raise self._slow(what) from error
            except http.TooLong as error:
                raise RetrieverWrong(
                    f"the answer of the retriever at {self.url} is too long: {error}",
                    hint="lower retriever.topk, or cut its passages",
                ) from error
            except (OSError, HTTPException) as error:
                failure = error
            if answer is not None and answer.status not in _AGAIN:
                return answer
            wait = wait_s * _DRAW.uniform(0.5, 1.0)
            if tried > self.retries or time.monotonic() + wait >= deadline:
                if answer is not None:
                    return answer
                raise self._down(failure, tried, time.monotonic() - began) from failure
            time.sleep(wait)
            wait_s *= 2
        raise AssertionError("the last try returns or raises")

    def _down(self, why: BaseException | None, tries: int, seconds: float) -> RetrieverDown:
        return RetrieverDown(
            f"no retriever answers at {self.url}: {_reason(why)} ({_many(tries, 'try', 'tries')} in {seconds:.1f} s)",
            hint="start it, or see why it ended: python -m trainer.retrieval --corpus FILE; "
            "127.0.0.1 means the node that asks",
        )

    def _slow(self, what: str) -> RetrieverSlow:
        return RetrieverSlow(
            f"the retriever at {self.url} gave no answer within {self.timeout:g} s to {what}",
            hint="is its node busy, or does it still load its index? retriever.timeout is how long to wait",
        )

    def _refused(self, answer: http.Answer) -> RetrieverWrong:
        said = " ".join(answer.body[:200].decode(errors="replace").split())
        name = answer.reason or responses.get(answer.status, "")
        return RetrieverWrong(
            f"the retriever at {self.url} answered {answer.status} {name}".rstrip() + (f": {said}" if said else ""),
            hint="its own log says why; the URL's path is /retrieve at Search-R1's servers and at ours",
        )


def _many(count: int, one: str, more: str) -> str:
    return f"{count} {one if count == 1 else more}"


def _reason(error: BaseException | None) -> str:
    if isinstance(error, RemoteDisconnected):
        return "it hung up without an answer"
    if isinstance(error, IncompleteRead):
        return "it hung up in the middle of its answer"
    if isinstance(error, HTTPException):
        return "its answer is no HTTP"
    return (getattr(error, "strerror", None) or " ".join(str(error).split())).lower() or type(error).__name__
