"""Requests that wait for a free connection of aiohttp and of httpx, as a response keeps the only one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import aiohttp
import httpx
import pytest

from devkit.debug.inworker import locks, primitives
from devkit.debug.inworker.words import CONNECTION
from tests.debug.conftest import eventually

BODY = 4 * 1024**2  # more than a client takes of a response that nobody reads


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(BODY))
        self.end_headers()
        try:
            self.wfile.write(b"x" * BODY)
        except OSError:
            self.close_connection = True

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def server() -> Iterator[str]:
    serves = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    serves.daemon_threads = True
    thread = threading.Thread(target=serves.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{serves.server_port}/"
    finally:
        serves.shutdown()
        thread.join()
        serves.server_close()


async def told(waits: Any) -> str:
    """What is told of a request while another one keeps the only connection."""
    task = asyncio.create_task(waits, name="second")
    while True:
        await asyncio.sleep(0)
        found = [each["what"] for each in primitives.describe({}, {}) if each["thread"] == "task second"]
        if any(each.startswith(CONNECTION) for each in found):
            task.cancel()
            return str(found[0])


@pytest.mark.parametrize("limit", ["limit", "limit_per_host"])
def test_a_request_of_aiohttp_waits_for_a_response_that_nobody_reads(limit: str) -> None:
    async def main(url: str) -> str:
        connector = aiohttp.TCPConnector(**{limit: 1})
        async with aiohttp.ClientSession(connector=connector) as session:
            kept = await session.get(url)

            async def asks() -> None:
                await session.get(url)

            try:
                return await told(asks())
            finally:
                kept.close()

    with server() as url:
        said = asyncio.run(main(url))
    which = " to this host" if limit == "limit_per_host" else ""
    assert said == f"{CONNECTION} of an aiohttp.TCPConnector: all 1{which} are in use ({limit}=1)"


def test_a_request_of_httpx_waits_for_a_stream_that_nobody_closes() -> None:
    async def main(url: str) -> str:
        async with httpx.AsyncClient(limits=httpx.Limits(max_connections=1), timeout=None, trust_env=False) as client:

            async def asks() -> None:
                await client.get(url)

            async with client.stream("GET", url):
                return await told(asks())

    with server() as url:
        assert asyncio.run(main(url)) == f"{CONNECTION} of httpx: all 1 are in use (max_connections=1)"


def test_so_does_a_thread() -> None:
    with server() as url, httpx.Client(limits=httpx.Limits(max_connections=1), timeout=None, trust_env=False) as client:

        def asks() -> None:
            client.get(url)

        thread = threading.Thread(target=asks, name="second")
        with client.stream("GET", url):
            thread.start()

            def look() -> str:
                known = primitives.describe(*locks.innermost("devkit"))
                return next((each["what"] for each in known if each["thread"] == "second"), "")

            said = eventually(look, "the second request waits")
        thread.join()
    assert said == f"{CONNECTION} of httpx: all 1 are in use (max_connections=1)"
