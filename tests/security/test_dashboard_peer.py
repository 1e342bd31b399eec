"""A server at the address that somebody was told: it gets no token for others, and whatever it says is an error."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from devkit import console
from devkit.debug.dashboard import Dashboard
from devkit.debug.tokens import Token
from devkit.errors import DevkitError
from devkit.records import ErrorRecord
from tests.debug.test_dashboard import Server

TOKEN = Token("5ecret" * 8, "RAY_AUTH_TOKEN")
CALLS = {
    "version": lambda dashboard: dashboard.version(),
    "authentication_mode": lambda dashboard: dashboard.authentication_mode(),
    "nodes": lambda dashboard: dashboard.nodes(),
    "workers": lambda dashboard: dashboard.workers(),
    "tasks": lambda dashboard: dashboard.tasks(),
    "actors": lambda dashboard: dashboard.actors(),
    "placement_groups": lambda dashboard: dashboard.placement_groups(),
    "usage": lambda dashboard: dashboard.usage(),
    "jobs": lambda dashboard: dashboard.jobs(),
    "job": lambda dashboard: dashboard.job("j"),
    "submit_job": lambda dashboard: dashboard.submit_job("x"),
    "stop_job": lambda dashboard: dashboard.stop_job("j"),
    "list_logs": lambda dashboard: dashboard.list_logs("n", "*"),
    "log_file": lambda dashboard: dashboard.log_file("n", "f"),
    "has_package": lambda dashboard: dashboard.has_package("p.zip"),
    "put_package": lambda dashboard: dashboard.put_package("p.zip", b""),
}


class Fixed:
    """A server that says the same to everybody, whatever is asked."""

    def __init__(self) -> None:
        self.words = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                with client, suppress(OSError):
                    client.settimeout(5)
                    client.recv(65536)
                    client.sendall(self.words)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def elsewhere() -> Iterator[Server]:
    with closing(Server()) as server:
        yield server


@pytest.fixture(scope="module")
def fixed() -> Iterator[Fixed]:
    with closing(Fixed()) as server:
        yield server


def answer(body: bytes, status: str = "200 OK", kind: str = "application/json", more: str = "") -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n{more}\r\n"
    )
    return head.encode("latin-1", "replace") + body


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "307 Again", "308 There"])
def test_nobody_is_led_to_another_host(fixed: Fixed, elsewhere: Server, status: str) -> None:
    fixed.words = answer(b"", status, more=f"Location: {elsewhere.url}/api/version\r\n")
    for call in CALLS.values():
        with Dashboard(fixed.url, TOKEN, timeout=5.0) as dashboard, pytest.raises(DevkitError):
            call(dashboard)
    assert elsewhere.connections == 0


WORDS = (
    *("result", "data", "msg", "total", "node_id", "node_ip", "state", "is_head_node", "worker_id", "pid", "job_id"),
    *("resources_total", "labels", "name", "ray_version", "version", "session_name", "authentication_mode", "status"),
    *("submission_id", "type", "entrypoint", "start_time", "end_time", "metadata", "driver_info", "package_exists"),
    *(
        "clusterStatus",
        "loadMetricsReport",
        "usageByNode",
        "worker_out",
        "task_id",
        "actor_id",
        "class_name",
        "bundles",
    ),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS) | st.text(max_size=3), inner),
    max_leaves=10,
)


def rows(row: Any) -> Any:
    return {"result": True, "msg": "", "data": {"result": {"total": 1, "result": row}}}


@pytest.mark.parametrize("call", CALLS)
@given(JSON | JSON.map(rows) | st.lists(st.dictionaries(st.sampled_from(WORDS), JSON), max_size=2).map(rows))
@example(rows([{"node_id": 7}]))
@example(rows(7))
@example([{"type": "SUBMISSION"}])
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_document_is_read_or_is_an_error(fixed: Fixed, call: str, document: Any) -> None:
    fixed.words = answer(json.dumps(document).encode())
    with Dashboard(fixed.url, TOKEN, timeout=5.0) as dashboard, suppress(DevkitError):
        repr(CALLS[call](dashboard))


@pytest.mark.parametrize("call", CALLS)
@given(st.binary() | st.binary().map(answer) | st.binary().map(lambda body: answer(body, "500 No", "text/plain")))
@example(b"HTTP/1.1 200 OK\r\nContent-Length: -7\r\n\r\n")
@example(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\nx")
@example(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n")
@example(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n")
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_an_answer_or_an_error(fixed: Fixed, call: str, words: bytes) -> None:
    fixed.words = words
    with Dashboard(fixed.url, TOKEN, timeout=5.0) as dashboard, suppress(DevkitError):
        repr(CALLS[call](dashboard))


def test_a_terminal_obeys_nothing_that_a_server_says(fixed: Fixed, capsys: pytest.CaptureFixture[str]) -> None:
    fixed.words = answer(b"\x1b]0;owned\x07\x1b[2Jno \x9b31m\xc2\x9b31m", "500 No", "text/plain")
    with Dashboard(fixed.url, TOKEN, timeout=5.0) as dashboard, pytest.raises(DevkitError) as raised:
        dashboard.version()
    console.report_error(ErrorRecord(raised.value.message, raised.value.hint, 1), {}, as_json=False)
    console.result().print(f"a value: {raised.value.message}")
    said = capsys.readouterr()
    assert "no" in said.err and "no" in said.out
    assert not any(mark in said.err + said.out for mark in "\x1b\x07\x9b")
