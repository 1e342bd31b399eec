"""The client against servers that misbehave: each failure is one error of its kind, with URL and hint, in time."""

from __future__ import annotations

import contextlib
import json
import pickle
import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pace import stretched
from tests.trainer.retrievers import http, misbehaving
from trainer.errors import RetrieverDown, RetrieverError, RetrieverSlow, RetrieverWrong
from trainer.retrieval import Health, Passage, Retriever, api, client
from trainer.retrieval import http as request

GOOD = json.dumps(
    {"result": [[{"document": {"id": "7", "contents": '"Munro"\nWriter\nof stories'}, "score": 2.5}]]}
).encode()
MUNRO = Passage("7", '"Munro"', "Writer\nof stories", 2.5)


def of(url: str, timeout: float = 20.0, retries: int = 0) -> Retriever:
    return Retriever(url, topk=1, timeout=timeout, retries=retries)


def test_a_request_is_search_r1s_and_an_answer_becomes_passages() -> None:
    with misbehaving(http(GOOD)) as server:
        assert of(server.url).search(["who?"]) == [[MUNRO]]
        head, _, body = server.requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /retrieve HTTP/1.1\r\n") and b"Content-Type: application/json" in head
    assert json.loads(body) == {"queries": ["who?"], "topk": 1, "return_scores": True}


def test_no_queries_ask_nothing_and_one_text_is_no_list() -> None:
    assert of("http://127.0.0.1:9/retrieve").search([]) == []
    with pytest.raises(TypeError, match="a list of queries"):
        of("http://127.0.0.1:9/retrieve").search("who?")


def test_half_characters_of_a_query_are_replaced() -> None:
    with misbehaving(http(GOOD)) as server:
        of(server.url).search(["a\ud800b"])
        assert json.loads(server.requests[0].partition(b"\r\n\r\n")[2])["queries"] == ["a\ufffdb"]


ANSWERS: dict[str, tuple[Any, str]] = {
    "empty": (b"", "it is empty"),
    "cut off where the length says so": (GOOD[:-9], "it is no JSON"),
    "no JSON": (b"<html>busy</html>", "it is no JSON (Expecting value"[:13]),
    "no object": (b"[]", "no list `result`"),
    "without a result": (b'{"error": "index"}', "no list `result`"),
    "too few": (b'{"result": []}', "0 lists of passages for 1 queries"),
    "too many": (b'{"result": [[], []]}', "2 lists of passages for 1 queries"),
    "no list for a query": (b'{"result": [7]}', "the passages of a query are no list: 7"),
    "no document": (b'{"result": [[{"document": 7, "score": 1}]]}', "a document is no object: 7"),
    "a document of another kind": (b'{"result": [[{"document": {"id": 1}, "score": 1}]]}', "neither contents nor"),
    "a score that is none": (b'{"result": [[{"document": {"contents": "a"}, "score": "x"}]]}', "a score is no number"),
    "an infinite score": (b'{"result": [[{"document": {"contents": "a"}, "score": 1e999}]]}', "a score is not finite"),
    "a huge score": (b'{"result": [[{"document": {"contents": "a"}, "score": %s}]]}' % (b"9" * 400), "not finite"),
    "a number of too many digits": (b'{"result": %s}' % (b"9" * 5000), "it is no JSON"),
    "brackets without end": (b"[" * 100_000, "it is no JSON"),
    "no text": (b"\xff\xfe\x00\xd8", "it is no JSON"),
}


@pytest.mark.parametrize(("body", "said"), ANSWERS.values(), ids=ANSWERS)
def test_an_answer_that_is_none_is_wrong(body: bytes, said: str) -> None:
    with misbehaving(http(body)) as server, pytest.raises(RetrieverWrong) as caught:
        of(server.url).search(["who?"])
    assert said in caught.value.message and server.url in caught.value.message and caught.value.hint
    assert "\n" not in caught.value.message and len(caught.value.message) < 400


@pytest.mark.parametrize("status", ["404 Not Found", "422 Unprocessable", "307 Temporary Redirect", "401 No"])
def test_another_status_is_wrong_and_is_not_tried_again(status: str) -> None:
    with misbehaving(http(b'{"detail":\n"no"}', status)) as server, pytest.raises(RetrieverWrong) as caught:
        of(server.url, retries=3).search(["who?"])
    assert f"answered {status}" in caught.value.message and '{"detail": "no"}' in caught.value.message
    assert len(server.requests) == 1


Breaks = Callable[[socket.socket], Any]
BREAKS: dict[str, tuple[Breaks, str]] = {
    "500": (http(b"oops", "500 Internal Server Error"), "answered 500 Internal Server Error: oops"),
    "503": (http(b"", "503 Service Unavailable"), "answered 503 Service Unavailable"),
    "hangs up": (lambda connection: None, "it hung up without an answer (2 tries"),
    "hangs up in the headers": (
        lambda connection: connection.sendall(b"HTTP/1.1 200 OK\r\nConte"),
        "it hung up in the",
    ),
    "hangs up in the body": (http(GOOD[:20], length=len(GOOD)), "it hung up in the middle of its answer"),
    "speaks no HTTP": (lambda connection: connection.sendall(b"SSH-2.0-OpenSSH\r\n"), "its answer is no HTTP"),
    "resets": (
        lambda connection: connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0"),
        "connection reset by peer",
    ),
}


@pytest.mark.parametrize(("breaks", "said"), BREAKS.values(), ids=BREAKS)
def test_what_may_pass_is_tried_again(breaks: Breaks, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "FIRST_WAIT_S", 0.05)
    with misbehaving(breaks, breaks, http(GOOD)) as server:
        assert of(server.url, retries=2).search(["who?"]) == [[MUNRO]]
        assert len(server.requests) == 3
    with misbehaving(breaks) as server, pytest.raises(RetrieverError) as caught:
        of(server.url, retries=1).search(["who?"])
    assert len(server.requests) == 2 and server.url in caught.value.message
    assert said in caught.value.message, caught.value
    assert isinstance(caught.value, RetrieverWrong if said.startswith("answered") else RetrieverDown)


def test_a_dead_one_is_named_with_its_tries() -> None:
    with socket.create_server(("127.0.0.1", 0)) as once:
        url = f"http://127.0.0.1:{once.getsockname()[1]}/retrieve"
    with pytest.raises(RetrieverDown, match=r"connection refused \(2 tries in \d") as caught:
        of(url, retries=1).search(["who?"])
    assert url in caught.value.message and "--corpus" in caught.value.hint
    copied = pickle.loads(pickle.dumps(caught.value))
    assert type(copied) is RetrieverDown and copied.hint == caught.value.hint
    with pytest.raises(RetrieverDown, match=r"not known|resolution"):
        of("http://no-such-host.invalid/retrieve").search(["who?"])


def drip(connection: socket.socket) -> None:
    """A byte every now and then, which no time limit of a socket ever ends."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    for _ in range(1000):
        connection.sendall(b" ")
        time.sleep(0.05)


def drip_headers(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
    for _ in range(1000):
        connection.sendall(b"x")
        time.sleep(0.05)


def silence(connection: socket.socket) -> None:
    connection.recv(1)  # until the client leaves


@pytest.mark.parametrize("slowly", [silence, drip, drip_headers])
def test_a_slow_one_takes_no_longer_than_the_limit(slowly: Callable[[socket.socket], None]) -> None:
    with misbehaving(slowly) as server:
        began = time.monotonic()
        with pytest.raises(RetrieverSlow, match=r"no answer within 0\.4 s to 2 queries") as caught:
            of(server.url, timeout=0.4, retries=5).search(["who?", "when?"])
        assert 0.4 <= time.monotonic() - began < stretched(2.0)
    assert server.url in caught.value.message and "retriever.timeout" in caught.value.hint


def test_tries_and_their_waits_end_with_the_limit() -> None:
    with misbehaving(http(b"", "500 No")) as server:
        began = time.monotonic()
        with pytest.raises(RetrieverWrong, match="answered 500"):
            of(server.url, timeout=1.0, retries=50).search(["who?"])
        assert time.monotonic() - began < stretched(1.5) and 2 <= len(server.requests) < 10


def test_an_answer_without_end_is_not_read_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "MOST_BYTES", 1000)
    with misbehaving(http(b" " * 2000)) as server, pytest.raises(RetrieverWrong, match="too long"):
        of(server.url).search(["who?"])


def test_answers_of_other_servers() -> None:
    """Without scores, without ids (a web search), with title and text apart; more than was asked for."""
    documents = [{"contents": "one line"}, {"id": 3, "title": "T", "text": "x\ny"}, {"contents": "a\nb", "id": "0"}]
    with misbehaving(http(json.dumps({"result": [documents]}).encode())) as server:
        found = Retriever(server.url, topk=2).search(["who?"])
    assert found == [[Passage("", "one line", "", 0.0), Passage("3", "T", "x\ny", 0.0)]]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            http(b'{"digest": "ab", "passages": 3, "more": 1}'),
            Health("ab", 3, {"digest": "ab", "passages": 3, "more": 1}),
        ),
        (http(b'{"digest": 7, "passages": true}'), Health(None, None, {"digest": 7, "passages": True})),
        (http(b"fine"), Health()),
        (http(b"[1]"), Health()),
        (http(b'{"detail":"Not Found"}', "404 Not Found"), Health()),
        (http(b"", "501 Unsupported"), Health()),
    ],
)
def test_health_is_what_is_said(answer: Callable[[socket.socket], Any], said: Health) -> None:
    with misbehaving(answer) as server:
        assert of(server.url).health() == said
        assert server.requests[0].startswith(b"GET /health HTTP/1.1\r\n")


def test_health_of_one_that_is_unwell() -> None:
    with misbehaving(http(b"loading", "503 Service Unavailable")) as server, pytest.raises(RetrieverWrong, match="503"):
        of(server.url).health()


def test_a_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with misbehaving(http(GOOD)) as server:
        assert of(server.url).search(["who?"]) == [[MUNRO]]


@pytest.mark.parametrize(
    "url",
    ["", "127.0.0.1:8000/retrieve", "ftp://a/b", "http:///retrieve", "http://a:99999/", "http://u:p@a/", "http://a /"],
)
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(ValueError, match=r"http://HOST:PORT/PATH|[Pp]ort"):
        request.split(url)


def test_tls_that_is_none_is_down() -> None:
    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(RetrieverDown) as caught:
            of(f"https://127.0.0.1:{listener.getsockname()[1]}/retrieve").search(["who?"])
        thread.join()
    assert isinstance(caught.value.__cause__, ssl.SSLError)


def test_sixty_four_at_once_share_one_retriever() -> None:
    found: list[Any] = []
    with misbehaving(http(GOOD)) as server:
        retriever = of(server.url, timeout=stretched(30.0), retries=3)
        threads = [threading.Thread(target=lambda: found.append(retriever.search(["who?"]))) for _ in range(64)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert found == [[[MUNRO]]] * 64


@given(st.binary(max_size=200))
def test_any_bytes_are_passages_or_no_answer(body: bytes) -> None:
    with contextlib.suppress(api.NoAnswer):
        assert isinstance(api.passages(body, 1), list)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["document", "contents", "score", "id", "title", "text", "result"]), inner)
    ),
    max_leaves=8,
)


@given(JSON)
def test_any_json_is_passages_or_no_answer(value: Any) -> None:
    for body in (value, {"result": value}, {"result": [value]}, {"result": [[{"document": value, "score": 1}]]}):
        with contextlib.suppress(api.NoAnswer):
            [found] = api.passages(json.dumps(body).encode(), 1)
            assert all(isinstance(each, Passage) and f"{each.title}\n{each.text}".encode() for each in found)


def test_the_client_needs_the_standard_library_alone(tmp_path: Path) -> None:
    """An environment's process loads it: neither Ray nor numpy comes with it."""
    import subprocess
    import sys

    code = (
        "import sys; before = set(sys.modules); import trainer.retrieval; from trainer.retrieval import here\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)\n"
        "print(sorted(new))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['trainer']", done.stdout
