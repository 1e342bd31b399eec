"""The client of the dashboard against servers that are not what it hopes for. The real one: test_ray_cluster.py."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from devkit.debug.dashboard import Dashboard
from devkit.debug.rest import Url
from devkit.debug.tokens import Token
from devkit.errors import DeadlineError, DevkitError, UnreachableError, UsageError
from tests.pace import stretched

VERSION = {"version": "4", "ray_version": "2.60.0", "session_name": "session_x_1"}
SECRET = "s3cret-token"


class Server:
    """A real HTTP server with the answers of a test: path -> (status, type, body)."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, str, bytes]] = {}
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.connections = 0
        self.hang_up_after_answer = False
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                outer.connections += 1
                super().setup()

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                outer.requests.append((self.command, self.path, dict(self.headers), body))
                path = self.path.partition("?")[0]
                status, kind, content = outer.answers.get(path, (404, "text/plain", b"404: Not Found"))
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
                self.close_connection = outer.hang_up_after_answer  # without having said so

            do_GET = do_POST = do_PUT = answer

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def json(self, path: str, document: Any, status: int = 200) -> None:
        self.answers[path] = (status, "application/json", json.dumps(document).encode())

    def text(self, path: str, text: str, status: int, kind: str = "text/plain") -> None:
        self.answers[path] = (status, kind, text.encode())

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    with closing(Server()) as server:
        yield server


@pytest.fixture
def dashboard(server: Server) -> Iterator[Dashboard]:
    with Dashboard(server.url, Token(SECRET, "RAY_AUTH_TOKEN"), timeout=5.0) as dashboard:
        yield dashboard


def state_answer(rows: Any) -> dict[str, Any]:
    return {"result": True, "msg": "", "data": {"result": {"total": len(rows), "result": rows}}}


def one_shot(reply: Callable[[socket.socket], None]) -> tuple[str, threading.Thread]:
    """A server that takes one connection, and does what it likes with it."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listener, listener.accept()[0] as connection:
            reply(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}", thread


def test_rows_and_filters(server: Server, dashboard: Dashboard) -> None:
    server.json("/api/v0/workers", state_answer([{"worker_id": "ab", "pid": 7, "ip": None, "unheard_of": 1}]))
    (worker,) = dashboard.workers(("is_alive", "=", "True"), ("num_paused_threads", "!=", "0"))
    assert (worker.worker_id, worker.pid, worker.ip) == ("ab", 7, "")
    query = server.requests[0][1].partition("?")[2].split("&")
    assert "filter_keys=is_alive" in query and "filter_keys=num_paused_threads" in query
    assert "filter_predicates=%21%3D" in query and "detail=1" in query and "limit=10000" in query


def test_the_token_is_sent_and_never_shown(server: Server, dashboard: Dashboard) -> None:
    server.json("/api/version", VERSION)
    assert dashboard.version().ray_version == "2.60.0"
    assert server.requests[0][2]["Authorization"] == f"Bearer {SECRET}"
    server.text("/api/version", "Forbidden: Invalid authentication token", 403)
    with pytest.raises(UnreachableError) as caught:
        dashboard.version()
    assert SECRET not in repr((caught.value.message, caught.value.hint, vars(dashboard), Token(SECRET, "x")))


def test_no_token_no_header(server: Server) -> None:
    server.json("/api/version", VERSION)
    with Dashboard(server.url, None) as dashboard:
        dashboard.version()
    assert "Authorization" not in server.requests[0][2]


def test_one_connection_serves_many_requests(server: Server, dashboard: Dashboard) -> None:
    server.json("/api/version", VERSION)
    for _ in range(3):
        dashboard.version()
    assert server.connections == 1


def test_a_kept_connection_that_the_server_has_closed_is_replaced(server: Server, dashboard: Dashboard) -> None:
    server.json("/api/version", VERSION)
    server.hang_up_after_answer = True
    assert [dashboard.version().session_name for _ in range(3)] == ["session_x_1"] * 3
    assert server.connections == 3


def test_a_submission_does_not_depend_on_a_kept_connection(server: Server, dashboard: Dashboard) -> None:
    server.json("/api/version", VERSION)
    server.json("/api/jobs/", {"submission_id": "raysubmit_1", "job_id": "raysubmit_1"})
    server.hang_up_after_answer = True
    dashboard.version()
    assert dashboard.submit_job("python x.py", metadata={"a": "b"}) == "raysubmit_1"
    sent = json.loads(server.requests[-1][3])
    assert (sent["entrypoint"], sent["metadata"], sent["runtime_env"]) == ("python x.py", {"a": "b"}, {})


def test_a_submission_is_not_sent_twice() -> None:
    """A connection that breaks leaves open whether the job was started: that is said, not tried again.

    Given a connection that was kept, and a server that takes every submission and hangs up.
    """
    received: list[bytes] = []
    version = json.dumps(VERSION).encode()
    stop = threading.Event()

    def serve(connection: socket.socket) -> None:
        with connection:
            while request := connection.recv(10_000):
                received.append(request.partition(b" HTTP")[0])
                if request.startswith(b"POST"):
                    return
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(version), version))

    def accept(listener: socket.socket) -> None:
        threads = []
        while not stop.is_set():
            with suppress(TimeoutError):
                threads.append(threading.Thread(target=serve, args=(listener.accept()[0],)))
                threads[-1].start()
        for thread in threads:
            thread.join()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.02)
        accepting = threading.Thread(target=accept, args=(listener,))
        accepting.start()
        with Dashboard(f"http://127.0.0.1:{listener.getsockname()[1]}", None, timeout=5.0) as dashboard:
            dashboard.version()
            with pytest.raises(UnreachableError, match="no dashboard answers"):
                dashboard.submit_job("python x.py")
        stop.set()
        accepting.join()
    assert received == [b"GET /api/version", b"POST /api/jobs/"]


@pytest.mark.parametrize(
    ("status", "said", "problem"),
    [
        (401, "Unauthorized: Missing authentication token", "asks for a token"),
        (403, "Forbidden: Invalid authentication token", "refuses the token of RAY_AUTH_TOKEN"),
    ],
)
def test_a_token_problem_names_the_variable(
    server: Server, dashboard: Dashboard, status: int, said: str, problem: str
) -> None:
    server.text("/api/v0/nodes", said, status)
    with pytest.raises(UnreachableError, match=problem) as caught:
        dashboard.nodes()
    assert "RAY_AUTH_TOKEN" in caught.value.hint
    assert caught.value.exit_code == 3


def test_ray_without_its_dashboard_extras(server: Server, dashboard: Dashboard) -> None:
    server.json("/api/version", VERSION)
    calls = (dashboard.nodes, dashboard.jobs, lambda: dashboard.job("j"), lambda: dashboard.put_package("a.zip", b""))
    for call in calls:
        with pytest.raises(UnreachableError, match="lacks") as caught:
            call()
        assert "pip install 'ray[default]'" in caught.value.hint


@pytest.mark.parametrize("status", [200, 302, 404, 502])
def test_another_server_is_not_taken_for_ray(server: Server, dashboard: Dashboard, status: int) -> None:
    page = "<html>Welcome to nginx</html>"
    for path in ("/api/version", "/api/authentication_mode", "/api/v0/nodes", "/api/jobs/"):
        server.text(path, page, status, "text/html")
    for call in (dashboard.version, dashboard.authentication_mode, dashboard.nodes, dashboard.jobs):
        with pytest.raises(DevkitError) as caught:
            call()
        assert "not a Ray dashboard" in caught.value.message or status == 502
        assert caught.value.hint


@pytest.mark.parametrize("reply", [b"\x00\x00\x18\x04\x00", b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 what\r\n\r\n"])
def test_a_port_that_speaks_something_else(reply: bytes) -> None:
    def answer(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(reply)

    url, thread = one_shot(answer)
    with Dashboard(url, None, timeout=5.0) as dashboard, pytest.raises(UnreachableError, match="not a Ray dashboard"):
        dashboard.version()
    thread.join()


def test_a_closed_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(UnreachableError, match=r"no dashboard answers.*refused") as caught:
        Dashboard(url, None).version()
    assert "devkit debug-cluster" in caught.value.hint


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b"])
def test_an_unknown_host(host: str) -> None:
    with pytest.raises(UnreachableError, match="is not known"):
        Dashboard(f"http://{host}:8265", None).version()


def test_a_server_that_never_answers() -> None:
    done = threading.Event()

    def wait(connection: socket.socket) -> None:
        connection.recv(1000)
        done.wait(stretched(20))

    url, thread = one_shot(wait)
    with Dashboard(url, None, timeout=0.2) as dashboard, pytest.raises(UnreachableError, match=r"within 0.2 s"):
        dashboard.version()
    done.set()
    thread.join()


def test_a_server_that_drips_meets_the_deadline_of_the_whole_answer() -> None:
    stop = threading.Event()

    def drip(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n")
        while not stop.wait(0.02):
            try:
                connection.sendall(b"x")
            except OSError:
                return

    url, thread = one_shot(drip)
    with Dashboard(url, None, timeout=0.3) as dashboard, pytest.raises(UnreachableError, match=r"within 0.3 s"):
        dashboard.version()
    stop.set()
    thread.join()


def test_what_a_traceback_says_last_is_the_error(server: Server, dashboard: Dashboard) -> None:
    server.text("/api/jobs/", "Traceback (most recent call last):\n  File x\nValueError: bad env\n", 500)
    with pytest.raises(DevkitError, match=r"500: ValueError: bad env$"):
        dashboard.jobs()
    server.json("/api/v0/tasks", {"result": False, "msg": "no such column", "data": {}}, 400)
    with pytest.raises(DevkitError, match=r"400: no such column$"):
        dashboard.tasks()


def test_a_job_that_is_not_there(server: Server, dashboard: Dashboard) -> None:
    server.text("/api/jobs/gone", "Job gone does not exist", 404)
    server.text("/api/jobs/gone/logs/tail", "Job gone does not exist", 404)
    for call in (dashboard.job, dashboard.job_logs_stream):
        with pytest.raises(DevkitError, match="no job 'gone'") as caught:
            call("gone")
        assert caught.value.exit_code == 3


def test_an_older_ray_that_knows_no_tokens(server: Server, dashboard: Dashboard) -> None:
    server.json("/api/version", VERSION)
    assert dashboard.authentication_mode() == "disabled"
    server.json("/api/authentication_mode", {"authentication_mode": "token"})
    assert dashboard.authentication_mode() == "token"


def test_a_log_file_comes_whole(server: Server, dashboard: Dashboard) -> None:
    content = bytes(range(256)) * 1000
    server.answers["/api/v0/logs/file"] = (200, "text/plain", content)
    assert dashboard.log_file("n", "a b.log") == content
    assert "lines=-1" in server.requests[0][1] and "filename=a+b.log" in server.requests[0][1]
    server.text("/api/v0/logs/file", "A file is not found at: /x/a.log", 500)
    with pytest.raises(DevkitError, match=r"no log file 'a.log' on node n: A file is not found"):
        dashboard.log_file("n", "a.log")


def test_an_empty_log_file_is_not_one_that_is_missing(server: Server, dashboard: Dashboard) -> None:
    """Ray answers both with 200 and nothing when it loses the error of the node."""
    server.answers["/api/v0/logs/file"] = (200, "text/plain", b"")
    server.json("/api/v0/logs", {"data": {"result": {"internal": ["a[1].log"]}}})
    assert dashboard.log_file("n", "a[1].log") == b""
    assert "glob=a%5B%5B%5D1%5D.log" in server.requests[-1][1]
    server.json("/api/v0/logs", {"data": {"result": {}}})
    with pytest.raises(DevkitError, match=r"no log file 'a.log' on node n$"):
        dashboard.log_file("n", "a.log")
    server.text("/api/v0/logs", "500 Internal Server Error", 500)
    with pytest.raises(DevkitError, match=r"no log file '../a.log' on node n$"):
        dashboard.log_file("n", "../a.log")


def test_packages(server: Server, dashboard: Dashboard) -> None:
    server.answers["/api/packages/gcs/a.zip"] = (200, "text/plain", b"")
    server.text("/api/packages/gcs/b.zip", "Package gcs://b.zip does not exist", 404)
    assert dashboard.put_package("a.zip", b"PK") == "gcs://a.zip"
    assert server.requests[0][0] == "PUT" and server.requests[0][3] == b"PK"
    assert (dashboard.has_package("a.zip"), dashboard.has_package("b.zip")) == (True, False)


def test_a_stream_ends_when_another_thread_closes_it() -> None:
    first_piece = threading.Event()

    def follow(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
        first_piece.wait(stretched(20))
        connection.recv(1)  # until the client hangs up

    url, thread = one_shot(follow)
    stream = Dashboard(url, None).stream_log("n", "f")
    assert next(stream) == b"hello"
    closer = threading.Thread(target=lambda: (time.sleep(0.05), stream.close()))  # while the next line waits
    closer.start()
    assert list(stream) == []
    first_piece.set()
    closer.join()
    thread.join()


def test_silence_is_a_missed_deadline() -> None:
    def follow(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        connection.recv(1)

    url, thread = one_shot(follow)
    with (
        Dashboard(url, None).stream_log("n", "f", silence=0.1) as stream,
        pytest.raises(DeadlineError, match=r"for 0.1 s"),
    ):
        next(stream)
    thread.join()


def accept_of(request: bytes) -> bytes:
    key = next(line for line in request.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key:"))
    guid = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
    return base64.b64encode(hashlib.sha1(key.split(b":")[1].strip() + guid).digest())


def test_the_log_of_a_job_is_read_from_a_websocket() -> None:
    """Frames of every length, one in two parts, a ping to answer, and the end; the first comes with the handshake."""
    from_client: list[bytes] = []

    def serve(connection: socket.socket) -> None:
        head = b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: upgrade\r\nSec-WebSocket-Accept: "
        connection.sendall(head + accept_of(connection.recv(4000)) + b"\r\n\r\n" + b"\x81\x03one")
        connection.sendall(b"\x89\x02hi")
        connection.sendall(b"\x81\x7e\x01\x00" + b"m" * 256)
        connection.sendall(b"\x81\x7f" + (70_000).to_bytes(8, "big") + b"l" * 70_000)
        connection.sendall(b"\x01\x02pa" + b"\x80\x02rt" + b"\x88\x02\x03\xe8")
        while piece := connection.recv(100):
            from_client.append(piece)

    url, thread = one_shot(serve)
    with Dashboard(url, None).job_logs_stream("j", silence=5.0) as pieces:
        assert list(pieces) == [b"one", b"m" * 256, b"l" * 70_000, b"pa", b"rt"]
    thread.join()
    frames = b"".join(from_client)
    pong, end = frames[:8], frames[8:]
    assert pong[:2] == b"\x8a\x82" and bytes(pong[6 + i] ^ pong[2 + i] for i in range(2)) == b"hi"
    assert end[:2] == b"\x88\x82"


def test_a_websocket_that_breaks_ends() -> None:
    def serve(connection: socket.socket) -> None:
        head = b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: upgrade\r\nSec-WebSocket-Accept: "
        connection.sendall(head + accept_of(connection.recv(4000)) + b"\r\n\r\n\x81\x03one\x81\x10half")

    url, thread = one_shot(serve)
    with Dashboard(url, None).job_logs_stream("j", silence=5.0) as pieces:
        assert list(pieces) == [b"one"]
    thread.join()


def test_a_stream_through_a_proxy_that_keeps_no_connection() -> None:
    def follow(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\none")
        connection.recv(1)

    url, thread = one_shot(follow)
    with Dashboard(url, None).stream_log("n", "f", silence=5.0) as stream:
        assert next(stream) == b"one"
    thread.join()


@pytest.mark.parametrize("text", ["head:8265", "ftp://head", "http://", "http://h:port", "http://user:pw@h:1", ""])
def test_what_is_no_url(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        Url.parse(text)
    assert caught.value.hint and "pw" not in caught.value.message
