"""A retriever for tests: a server with Search-R1's API that says what it is told to, or does what servers do."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Found = Callable[[str], list[str]]  # a query -> `contents` of passages


@dataclass
class Stub:
    """What a test sees of it."""

    url: str = ""
    queries: list[str] = field(default_factory=list)
    answers: bool = True  # False: it waits
    status: int = 200


@contextmanager
def retriever(found: Found) -> Iterator[Stub]:
    stub = Stub()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            stub.queries += asked["queries"]
            until = time.monotonic() + 30
            while not stub.answers and time.monotonic() < until:
                time.sleep(0.05)
            result = [
                [{"document": {"id": str(i), "contents": text}, "score": 1.0} for i, text in enumerate(found(query))]
                for query in asked["queries"]
            ]
            body = json.dumps({"result": result}).encode()
            self.send_response(stub.status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    class Server(ThreadingHTTPServer):
        daemon_threads, request_queue_size = True, 128

    server = Server(("127.0.0.1", 0), Handler)
    stub.url = f"http://127.0.0.1:{server.server_address[1]}/retrieve"
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield stub
    finally:
        stub.answers = True
        server.shutdown()
        server.server_close()
