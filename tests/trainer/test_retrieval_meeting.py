"""Nodes and their retrievers: the first look at each, their comparison, and how environments get at theirs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from tests.trainer.retrievers import PASSAGES, corpus_of, http, misbehaving, serving
from trainer.agent.homes import Houses, answered
from trainer.agent.source import Source
from trainer.config import load
from trainer.config.schema import Config
from trainer.errors import ConfigError, DeadlineError, RetrieverDown, RetrieverWrong, TrainerError
from trainer.retrieval import Retriever, here, nodes
from trainer.retrieval.meeting import CANARIES, Met, meet, require_same
from trainer.retrieval.node import VARIABLE, given, variables
from trainer.worker import WorkerInfo


@pytest.fixture(autouse=True)
def _no_retriever(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(VARIABLE, raising=False)
    yield
    os.environ.pop(VARIABLE, None)  # what `meet` has set


ENVIRONMENT = """
from trainer.retrieval import here

class Asks:
    def reset(self, *, seed):
        return here().url, {}

    def step(self, action):
        [[first, *_]] = here().search([action])
        return first.title, 1.0, True, False, {}

    def close(self):
        pass
"""


@pytest.mark.parametrize("isolate", [True, False])
def test_an_environment_has_its_processes_retriever(isolate: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as url:
        for name, value in variables(Retriever(url, topk=2, timeout=20.0)).items():
            monkeypatch.setenv(name, value)
        with closing(Houses(Source("asks.py:Asks", ENVIRONMENT), isolate=isolate)) as houses:
            home = houses.home()
            assert take(home, "reset", 1) == url
            assert take(home, "step", "who wrote Faust?") == '"Goethe"'
            home.end()


def take(home: Any, what: str, argument: Any) -> str:
    home.ask(what, argument)
    assert answered([home], 60) == {0}
    return str(home.take().text)


def test_without_one_it_says_how_to_have_one() -> None:
    with pytest.raises(ConfigError, match="there is no retriever here") as caught:
        here()
    assert "retriever.serve" in caught.value.hint


def test_meeting_one_makes_it_this_processs() -> None:
    with serving() as url:
        met = meet(Retriever(url, topk=2))
        assert here() == Retriever(url, topk=2)
    assert (met.url, met.digest, met.passages) == (url, "d", 4) and met.seconds > 0
    assert str(met) == f"4 passages, digest d, at {url}"


def test_meeting_search_r1s_own() -> None:
    documents = [{"document": {"id": "1", "contents": '"A"\nb'}, "score": 1.0}]
    answer = json.dumps({"result": [documents, [], documents]}).encode()
    with misbehaving(http(b'{"detail":"Not Found"}', "404 Not Found"), http(answer)) as server:
        met = meet(Retriever(server.url, topk=1))
        assert json.loads(server.requests[1].partition(b"\r\n\r\n")[2])["queries"] == list(CANARIES)
    assert met.digest is None and met.found == {(CANARIES[i], "1", '"A"', "b") for i in (0, 2)}
    assert "does not say what it holds" in str(met)


ONE = Met("http://127.0.0.1:8000/retrieve", "aa", 3, frozenset({("q", str(i)) for i in range(4)}), 0.01)


def test_alike_are_alike() -> None:
    near = replace(ONE, found=frozenset({("q", "0"), ("q", "1"), ("q", "x")}))
    for others in ([], [ONE], [near], [replace(near, url="http://other:1/")]):
        require_same({"a": ONE, **{f"b{i}": each for i, each in enumerate(others)}})
    nothing = replace(ONE, digest=None, found=frozenset())
    require_same({"a": nothing, "b": nothing})


def test_the_one_that_is_another_is_named() -> None:
    other = replace(ONE, digest="bb", passages=2)
    with pytest.raises(RetrieverWrong) as caught:
        require_same({"a": other, "b": ONE, "c": ONE})
    assert caught.value.message == (
        "the retrievers of two nodes hold different passages: node a has 2 passages, digest bb, at "
        "http://127.0.0.1:8000/retrieve; node b has 3 passages, digest aa, at http://127.0.0.1:8000/retrieve"
    )
    by_model = replace(ONE, encoder="ee")
    with pytest.raises(
        RetrieverWrong, match="two nodes find passages by different encoders: node b has 3 passages, "
    ) as caught:
        require_same({"a": ONE, "b": by_model, "c": ONE})
    assert "digest aa, encoder ee, at" in caught.value.message and "encoder" in caught.value.hint
    require_same({"a": by_model, "b": by_model})
    silent = replace(ONE, digest=None)
    with pytest.raises(RetrieverWrong, match="two nodes find different passages: node b has a retriever that does not"):
        require_same({"a": silent, "b": replace(silent, found=frozenset({("q", "0"), ("q", "x")}))})
    with pytest.raises(RetrieverWrong, match="hold different passages: node b has a retriever that does not say"):
        require_same({"a": ONE, "b": silent})


class FakeRanks:
    """Three ranks on two nodes; each meets what it is given."""

    name = "ppo"

    def __init__(self) -> None:
        where = [("n1", "10.0.0.1"), ("n1", "10.0.0.1"), ("n2", "10.0.0.2")]
        self.infos = [WorkerInfo(rank, ip, 100 + rank, node) for rank, (node, ip) in enumerate(where)]
        self.given: dict[int, Retriever] = {}

    def meet_retrievers(self, retrievers: Any) -> dict[int, Met | TrainerError]:
        self.given = dict(retrievers)
        found: dict[int, Met | TrainerError] = {}
        for rank, retriever in retrievers.items():
            try:
                found[rank] = meet(retriever)
            except TrainerError as error:
                found[rank] = error
        return found


@pytest.fixture
def two_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    known = [{"NodeID": f"n{i}", "NodeManagerAddress": f"10.0.0.{i}"} for i in (1, 2, 3)]
    monkeypatch.setattr(nodes.ray, "nodes", lambda: known)


def config(*words: str) -> Config:
    return load(["agent.env=frozen_lake", *words]).config


@pytest.mark.usefixtures("two_nodes")
def test_every_rank_that_plays_meets_the_url() -> None:
    with serving() as url:
        ranks, said = FakeRanks(), list[str]()
        with nodes.retrievers(config(f"retriever.url={url}", "retriever.topk=2"), ranks, said.append):
            assert ranks.given == dict.fromkeys(range(3), Retriever(url, topk=2))
        [line] = said
        assert line.startswith(f"retriever: 4 passages, digest d, at {url}; a search from node 10.0.0.")
        mapped = config(f"retriever.url={url}", "trainer.device_mapping={actor:[0,1],rollout:[2]}")
        with nodes.retrievers(mapped, ranks, said.append):
            assert list(ranks.given) == [2]


def test_a_run_without_one_asks_nothing() -> None:
    for words in (("agent.env=frozen_lake",), ("agent.env=null", "retriever.url=http://127.0.0.1:9/retrieve")):
        with nodes.retrievers(config(*words), FakeRanks(), pytest.fail):
            pass


@pytest.mark.usefixtures("two_nodes")
def test_a_dead_one_is_named_with_its_node() -> None:
    words = ("retriever.url=http://127.0.0.1:9/retrieve", "retriever.timeout=1")
    with (
        pytest.raises(RetrieverDown, match=r"node 10\.0\.0\.1: no retriever answers at http://127\.0\.0\.1:9/retrieve"),
        nodes.retrievers(config(*words), FakeRanks(), pytest.fail),
    ):
        pytest.fail("it has begun")


@pytest.mark.usefixtures("two_nodes")
def test_started_ones_are_each_nodes_own_and_another_corpus_on_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given servers of two corpora in place of those that Ray would start."""
    other = corpus_of({"9": '"Else"\nSomething else'}, digest="e")
    ended = []
    with serving() as one, serving(other) as two:
        served = {"n1": nodes.Served(one, 1, 4, "d", 0.1), "n2": nodes.Served(two, 2, 1, "e", 0.1)}
        monkeypatch.setattr(nodes.Servers, "start", lambda self, source, topk, named, limit_s: served)
        monkeypatch.setattr(nodes.Servers, "close", lambda self: ended.append(self))
        ranks = FakeRanks()
        asked = nodes.retrievers(config("retriever.serve=c.jsonl"), ranks, lambda line: None)
        with pytest.raises(RetrieverWrong) as caught, asked:
            pytest.fail("it has begun")
        assert [each.url for each in ranks.given.values()] == [one, one, two] and len(ended) == 1
        assert f"node 10.0.0.2 has 1 passage, digest e, at {two}; node 10.0.0.1 has 4 passages" in caught.value.message
        assert len(PASSAGES) == 4


def test_one_that_takes_too_long_to_index_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes.ray, "wait", lambda pending, timeout: ([], list(pending)))
    with pytest.raises(DeadlineError, match=r"not indexed within 5 s on node 10\.0\.0\.1, 10\.0\.0\.2"):
        nodes.Servers("ppo")._gathered({1: "n1", 2: "n2"}, {"n1": "10.0.0.1", "n2": "10.0.0.2"}, "c.jsonl", 5.0)


def test_by_hand_a_url_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "http://10.0.0.7:8000/retrieve")
    assert here() == Retriever("http://10.0.0.7:8000/retrieve")
    with given(Retriever("http://127.0.0.1:1/x", topk=1)):
        assert here().topk == 1
    assert here().topk == 3
