"""The server: Search-R1's `/retrieve`, `/health`, over aiohttp.

It takes the dialects of that API, too: SkyRL's `query` (one text), and a `topk` that is missing or null. Questions
wait for one another in one thread (`waiting.py`); `/health` answers meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable
from typing import Any

from aiohttp import web

from trainer.errors import RetrieverError
from trainer.retrieval import api
from trainer.retrieval.index import Index
from trainer.retrieval.waiting import Asked, Searches

MOST_BYTES = 2**24  # of a request
MOST_QUERIES = 4096  # in a request
MOST_TOPK = 1000
BACKLOG = 1024  # connections that wait to be taken
_END_S = 5.0  # that requests under way have, once the server is to end


class _Refused(ValueError):
    """A request that is none; the message goes back with status 422, as FastAPI has it."""


class Server:
    """Answers for one corpus."""

    def __init__(self, index: Index, topk: int) -> None:
        """`topk` is of requests that name none."""
        self._index, self._topk = index, topk
        self._began, self._answered = time.monotonic(), 0
        self._searches = Searches(index)

    async def run(self, listener: socket.socket, ready: Callable[[], None], end: asyncio.Event) -> None:
        """Serves on a socket that is bound, from before `ready` is called until `end` is set.

        Raises RetrieverError where another process has come to listen there meanwhile.
        """
        runner = web.AppRunner(self.app(), access_log=None, shutdown_timeout=_END_S)
        await runner.setup()
        try:
            try:
                listener.listen(BACKLOG)
            except OSError as error:
                host, port, *_ = listener.getsockname()
                raise _no_address(host, port, error) from error
            await web.SockSite(runner, listener, backlog=BACKLOG).start()
            ready()
            await end.wait()
        finally:
            await runner.cleanup()
            self._searches.close()

    def app(self) -> web.Application:
        app = web.Application(client_max_size=MOST_BYTES)
        app.router.add_post(api.PATH, self._retrieve)
        app.router.add_get(api.HEALTH, self._health)
        return app

    async def _retrieve(self, request: web.Request) -> web.Response:
        try:
            question = asked(await request.read(), self._topk)
        except _Refused as error:
            return web.json_response({"error": str(error)}, status=422)
        body = await self._searches.answer(question)
        self._answered += len(question.queries)
        return web.Response(body=body, content_type="application/json")

    async def _health(self, _request: web.Request) -> web.Response:
        return web.json_response(
            {
                "digest": self._index.corpus.digest,
                "passages": len(self._index.corpus),
                "corpus": self._index.corpus.name,
                "topk": self._topk,
                "index_seconds": round(self._index.seconds, 3),
                "uptime_seconds": round(time.monotonic() - self._began, 1),
                "queries": self._answered,
                **self._index.said(),
            }
        )


def asked(body: bytes, topk: int) -> Asked:
    """What a request asks; `topk` is that of one which does not say. Raises ValueError that says what is wrong."""
    try:
        request = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise _Refused(f"the request is no JSON: {error}") from error
    if not isinstance(request, dict):
        raise _Refused('the request is no object such as {"queries": ["..."], "topk": 3, "return_scores": true}')
    queries = request["queries"] if "queries" in request else request.get("query")
    queries = [queries] if isinstance(queries, str) else queries
    if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
        raise _Refused("queries is no list of texts")
    if len(queries) > MOST_QUERIES:
        raise _Refused(f"{len(queries)} queries in one request; at most {MOST_QUERIES}")
    return Asked(queries, _topk(request.get("topk"), topk), _flag(request.get("return_scores")))


def _topk(value: Any, default: int) -> int:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_TOPK:
        raise _Refused(f"topk is no whole number from 1 to {MOST_TOPK}")
    return value


def _flag(value: Any) -> bool:
    if value is not None and not isinstance(value, bool):
        raise _Refused("return_scores is neither true nor false")
    return bool(value)


def bind(host: str, port: int) -> socket.socket:
    """A socket that does not listen yet: who connects meanwhile is refused at once. 0: a port that is free.

    Raises RetrieverError for an address that is not to be had.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
        except BaseException:
            listener.close()
            raise
    except (OSError, OverflowError, UnicodeError) as error:
        raise _no_address(host, port, error) from error
    return listener


def _no_address(host: str, port: int, error: Exception) -> RetrieverError:
    return RetrieverError(
        f"cannot listen at {host}:{port}: {getattr(error, 'strerror', None) or error}",
        hint="another server may have that port: give another one with --port, or 0 for one that is free",
    )


def url_of(listener: socket.socket, host: str) -> str:
    """Where a client on the same node finds it, or, of a server that listens on all interfaces, one anywhere.

    >>> with bind("127.0.0.1", 0) as listener:
    ...     url_of(listener, "127.0.0.1") == f"http://127.0.0.1:{listener.getsockname()[1]}/retrieve"
    True
    """
    name = socket.gethostname() if host in ("0.0.0.0", "::") else host
    return f"http://{f'[{name}]' if ':' in name else name}:{listener.getsockname()[1]}{api.PATH}"
