"""The server: what it finds, what it takes and refuses, many at once, and its command line."""

from __future__ import annotations

import asyncio
import json
import math
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.pace import stretched
from tests.trainer.retrievers import PASSAGES, corpus_of, serving
from tests.trainer.runs import DEADLINE_S, running, wait_until_gone
from trainer.errors import RetrieverError, RetrieverWrong
from trainer.retrieval import Passage, Retriever, bm25
from trainer.retrieval.server import Server, asked, bind

GOETHE = Passage("0", '"Goethe"', "German writer of Faust, a tragedy (1749-1832)")


def post(url: str, body: bytes) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body), timeout=stretched(20)) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_the_client_finds_what_the_corpus_holds() -> None:
    with serving() as url:
        retriever = Retriever(url, topk=2)
        faust, writers, number, nothing, empty, stop = retriever.search(
            ["who wrote Faust?", "writer", "atomic number 74", "quark", "", "of the"]
        )
        assert [(each.id, each.title, each.text) for each in faust] == [("0", GOETHE.title, GOETHE.text)]
        assert [each.id for each in writers] == ["0", "1"] and number[0].id == "2"
        assert nothing == empty == stop == []
        health = retriever.health()
        assert (health.digest, health.passages) == ("d", 4)
        assert health.said["queries"] == 6 and health.said["corpus"] == "corpus.jsonl"
        assert health.said["index_seconds"] >= 0 and health.said["uptime_seconds"] >= 0


def test_scores_are_bm25s() -> None:
    """Against the formula of Robertson and Zaragoza with Lucene's idf, by hand."""
    words = {name: re.findall(r"\w+", text.lower()) for name, text in PASSAGES.items()}
    stopped = {"of", "the", "a", "and"}
    kept = {name: Counter(word for word in each if word not in stopped) for name, each in words.items()}
    mean = sum(sum(each.values()) for each in kept.values()) / len(kept)

    def score(name: str, query: str) -> float:
        total = 0.0
        for word in query.split():
            holding = sum(word in each for each in kept.values())
            idf = math.log(1 + (len(kept) - holding + 0.5) / (holding + 0.5))
            times, length = kept[name][word], sum(kept[name].values())
            total += idf * times / (times + bm25.K1 * (1 - bm25.B + bm25.B * length / mean))
        return total

    for query in ("writer", "writer faust 1749", "short stories german"):
        [found] = bm25.Index(corpus_of()).search([query], 4)
        wanted = sorted(((score(name, query), -row) for row, name in enumerate(PASSAGES)), reverse=True)
        assert [row for row, _ in found] == [-row for value, row in wanted if value > 0]
        assert [value for _, value in found] == pytest.approx([value for value, _ in wanted if value > 0], rel=1e-5)


def test_the_best_are_those_of_sorting_them_all() -> None:
    dice = np.random.default_rng(1)
    for topk in (1, 3, 50):
        scores = dice.integers(0, 20, 40).astype(np.float32)
        order = sorted((row for row in range(40) if scores[row] > 0), key=lambda row: (-scores[row], row))
        wanted = [(row, float(scores[row])) for row in order[:topk]]
        assert bm25.best(scores.copy(), topk) == wanted


def test_a_corpus_without_a_word_finds_nothing() -> None:
    assert bm25.Index(corpus_of({"0": "the", "1": "..."})).search(["the", "who"], 3) == [[], []]


def test_the_api_and_its_dialects() -> None:
    with serving(topk=1) as url:
        scored = post(url, b'{"queries": ["faust", "quark"], "topk": null, "return_scores": true}')
        document = {"id": "0", "contents": PASSAGES["0"]}
        assert scored[0] == 200 and scored[1]["result"][1] == []
        [[found], _] = scored[1]["result"]
        assert found["document"] == document and found["score"] > 0 and found.keys() == {"document", "score"}
        assert post(url, b'{"queries": ["faust"]}') == (200, {"result": [[document]]})  # without scores, their default
        assert post(url, b'{"query": "faust", "topk": 3, "return_scores": false}') == (200, {"result": [[document]]})
        assert post(url, b'{"queries": [], "topk": 3}') == (200, {"result": []})
        status, said = post(url, b"{")
        assert status == 422 and said["error"].startswith("the request is no JSON")
        with pytest.raises(RetrieverWrong, match="answered 404 Not Found"):
            Retriever(url.replace("/retrieve", "/search")).search(["faust"])


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"\xff", "no JSON"),
        (b"[]", "no object"),
        (b"{}", "queries is no list of texts"),
        (b'{"queries": [1]}', "queries is no list of texts"),
        (b'{"queries": null, "query": 3}', "queries is no list of texts"),
        (json.dumps({"queries": ["a"] * 5000}).encode(), "5000 queries in one request; at most 4096"),
        (b'{"queries": ["a"], "topk": 0}', "topk is no whole number from 1 to 1000"),
        (b'{"queries": ["a"], "topk": true}', "topk is no whole number"),
        (b'{"queries": ["a"], "topk": 2.0}', "topk is no whole number"),
        (b'{"queries": ["a"], "topk": 100000}', "topk is no whole number"),
        (b'{"queries": ["a"], "return_scores": "yes"}', "return_scores is neither"),
        (b"[" * 100_000, "no JSON"),
    ],
)
def test_what_is_no_request(body: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        asked(body, 3)


def test_sixty_four_clients_at_once_get_each_its_own_answer() -> None:
    passages = {str(i): f'"Number {i}"\nword{i} and word{i + 1}' for i in range(200)}

    def ask(i: int) -> bool:
        found = Retriever(url, topk=1, timeout=stretched(30)).search([f"word{i} word{i + 1}", f"word{i}"])
        return found[0][0].id == str(i) and len(found) == 2

    with serving(corpus_of(passages)) as url, ThreadPoolExecutor(64) as pool:
        assert all(pool.map(ask, [i % 200 for i in range(256)]))


def test_a_port_that_is_taken_or_none() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(RetrieverError, match=f"cannot listen at 127.0.0.1:{port}: Address already in use"):
            bind("127.0.0.1", port)
    for host, port in (("127.0.0.1", 99999), ("no-such-host.invalid", 0)):
        with pytest.raises(RetrieverError, match="cannot listen at"):
            bind(host, port)


def test_two_that_bind_one_port_before_either_listens() -> None:
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with bind("127.0.0.1", port) as second:  # as the system has it
            first.listen()
            served = Server(bm25.Index(corpus_of()), 3).run(second, lambda: pytest.fail("it listens"), asyncio.Event())
            with pytest.raises(RetrieverError, match=f"cannot listen at 127.0.0.1:{port}: Address already in use"):
                asyncio.run(served)


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "trainer.retrieval", *words]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_serves_until_it_is_ended(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "corpus.jsonl").write_text(json.dumps({"id": 3, "contents": PASSAGES["0"]}))
    with running(command("--corpus", "corpus.jsonl", "--port", "0"), tmp_path) as run:
        line = run.wait_for_line("retriever at ", DEADLINE_S)
        found = re.fullmatch(
            r"retriever at (http://127\.0\.0\.1:\d+/retrieve): 1 passage of corpus\.jsonl, digest (\w{16}), .*", line
        )
        assert found, line
        assert Retriever(found[1]).search(["faust"])[0][0].id == "3"
        assert Retriever(found[1]).health().digest == found[2]
        run.process.send_signal(number)
        assert run.wait() == 0, run.text
        assert wait_until_gone(run.mark) == [] and len(run.lines) == 1


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "required: --corpus"),
        (("--corpus", "gone.jsonl", "--port", "0"), 2, "the corpus gone.jsonl cannot be read: No such file"),
        (("--corpus", "bad.jsonl", "--port", "0"), 2, "bad.jsonl, row 1: it is no object: 3"),
        (("--corpus", "bad.jsonl", "--port", "0", "--topk", "0"), 2, "--topk 0"),
        (("--corpus", "bad.jsonl", "--port", "70000"), 1, "cannot listen at 127.0.0.1:70000"),
    ],
)
def test_what_is_wrong_is_one_error(tmp_path: Path, words: tuple[str, ...], code: int, said: str) -> None:
    (tmp_path / "bad.jsonl").write_text("3\n")
    done = subprocess.run(command(*words), cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S)
    error, hint = done.stderr.splitlines()
    assert done.returncode == code and done.stdout == ""
    assert error.startswith("error: ") and said in error and hint.startswith("hint: ")
