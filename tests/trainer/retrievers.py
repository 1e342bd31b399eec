"""Servers for the tests of retrieval: ours in a thread, and one over a bare socket that does as it is told."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from trainer.retrieval import bm25
from trainer.retrieval.corpus import Corpus
from trainer.retrieval.index import Index
from trainer.retrieval.server import Server, bind, url_of

PASSAGES = {
    "0": '"Goethe"\nGerman writer of Faust, a tragedy (1749-1832)',
    "1": '"Munro"\nBritish writer of short stories (1870-1916)',
    "2": '"Tungsten"\nAtomic number 74, symbol W',
    "3": '"The"\nof and the',  # words that nobody looks for
}


def corpus_of(passages: dict[str, str] = PASSAGES, digest: str = "d") -> Corpus:
    return Corpus("corpus.jsonl", list(passages), list(passages.values()), digest)


@contextmanager
def serving(corpus: Corpus | None = None, topk: int = 3, index: Index | None = None) -> Iterator[str]:
    """The URL of a server of ours: of `index`, or of BM25 over `corpus`."""
    server = Server(index or bm25.Index(corpus or corpus_of()), topk)
    listener, ready = bind("127.0.0.1", 0), threading.Event()
    loop, end = asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(server.run(listener, ready.set, end)))
    thread.start()
    try:
        assert ready.wait(30)
        yield url_of(listener, "127.0.0.1")
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join(30)
        listener.close()
        loop.close()


class Misbehaving:
    """One connection after the other; `answers[n]` is what becomes of the n-th, the last of all that follow."""

    def __init__(self, answers: Sequence[Callable[[socket.socket], Any]]) -> None:
        self._answers, self.requests = answers, []  # type: ignore[var-annotated]
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/retrieve"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            with connection:
                asked = self._request(connection)
                if asked == b"end":
                    return
                self.requests.append(asked)
                try:
                    self._answers[min(len(self.requests), len(self._answers)) - 1](connection)
                except OSError:  # the client has left
                    continue

    @staticmethod
    def _request(connection: socket.socket) -> bytes:
        read = b""
        while b"\r\n\r\n" not in read and read != b"end":
            if not (part := connection.recv(65536)):
                break
            read += part
        head, _, body = read.partition(b"\r\n\r\n")
        length = next((int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"Content-Len")), 0)
        while len(body) < length:
            body += connection.recv(65536)
        return head + b"\r\n\r\n" + body if body else read

    def close(self) -> None:
        with socket.create_connection(self._listener.getsockname()) as last:
            last.sendall(b"end")
        self._thread.join(30)
        self._listener.close()


@contextmanager
def misbehaving(*answers: Callable[[socket.socket], Any]) -> Iterator[Misbehaving]:
    server = Misbehaving(answers)
    try:
        yield server
    finally:
        server.close()


def http(body: bytes, status: str = "200 OK", length: int | None = None) -> Callable[[socket.socket], None]:
    """An answer, whose length may be another than it says."""
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body) if length is None else length}\r\n\r\n".encode()
    return lambda connection: connection.sendall(head + body)
