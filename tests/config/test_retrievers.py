"""The keys `retriever.*`: what is refused before a run, and what is said of keys that do nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.trainer.encoders import tiny
from trainer.config import check_command, load, warning_lines
from trainer.config.absolute import absolute

Command = Callable[..., list[str]]
FILES = ("data.train_files", "data.val_files")
URL = "retriever.url=http://10.0.0.7:8000/retrieve"


@pytest.fixture
def lake(command: Command) -> Command:
    """A command on the lake, without data files."""
    return lambda *more: [word for word in command("agent.env=frozen_lake", *more) if not word.startswith(FILES)]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"id": "0", "contents": "a"}\n')
    return path


def notes(words: list[str]) -> dict[str, str]:
    return {note.key: note.message for note in check_command(words).notes if note.key.startswith("retriever.")}


def test_either_is_fine_and_nobody_takes_it_for_search_r1s(lake: Command, corpus: Path) -> None:
    for word in (URL, f"retriever.serve={corpus}"):
        words = lake(word, "retriever.topk=5", "retriever.timeout=10")
        report, resolved = check_command(words), load(words)
        assert report.ok, report.problems
        assert resolved.dialect == load(lake()).dialect and notes(words) == {}
        assert (resolved.config.retriever.topk, resolved.config.retriever.timeout) == (5, 10.0)
        assert list(warning_lines(report.notes)) == []


def test_the_corpus_is_the_drivers_path(lake: Command, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(corpus.parent)
    assert absolute(load(lake("retriever.serve=corpus.jsonl")).config).retriever.serve == str(corpus)
    assert absolute(load(lake("retriever.serve=")).config).retriever.serve is None


@pytest.mark.parametrize(
    ("words", "key", "said"),
    [
        ((URL, "retriever.serve={corpus}"), "retriever.serve", "are two retrievers"),
        (("retriever.url=10.0.0.7:8000",), "retriever.url", "is not http://HOST:PORT/PATH"),
        (("retriever.url=http://a:99999/retrieve",), "retriever.url", "Port out of range"),
        (("retriever.serve=gone.jsonl",), "retriever.serve", "gone.jsonl is not a file"),
        (("retriever.serve={bad}",), "retriever.serve", "row 1: it is no object"),
        ((URL, "retriever.topk=0"), "retriever.topk", "out of range"),
        ((URL, "retriever.topk=1001"), "retriever.topk", "out of range"),
        ((URL, "retriever.timeout=0"), "retriever.timeout", "out of range"),
        ((URL, "retriever.timeout=1e12"), "retriever.timeout", "out of range"),
    ],
)
def test_what_is_refused(lake: Command, corpus: Path, words: tuple[str, ...], key: str, said: str) -> None:
    bad = corpus.with_name("bad.jsonl")
    bad.write_text("[]\n")
    [problem] = check_command(lake(*(word.format(corpus=corpus, bad=bad) for word in words))).problems
    assert problem.key == key and said in problem.message and problem.hint


def test_what_is_said_of_it(lake: Command, command: Command, corpus: Path) -> None:
    loopback = "retriever.url=http://127.0.0.1:8000/retrieve"
    assert "is each node's own" in notes(lake(loopback, "trainer.nnodes=2"))["retriever.url"]
    assert notes(lake(loopback)) == {}
    assert "an environment that hangs" in notes(lake(URL, "retriever.timeout=60"))["retriever.timeout"]
    assert notes(lake(URL, "retriever.timeout=60", "agent.turn_timeout=null")) == {}
    assert "there is no retriever.url or" in notes(lake("retriever.topk=5"))["retriever.topk"]
    without = notes(command(URL, "retriever.topk=4", "retriever.timeout=5"))
    assert without == {
        f"retriever.{name}": f"retriever.{name} has no effect: agent.env is null" for name in ("url", "topk", "timeout")
    }


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    return tiny(tmp_path / "e5-tiny")


def test_an_encoder_is_the_drivers_path_or_a_hub_name(
    lake: Command, corpus: Path, encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(corpus.parent)
    words = lake("retriever.serve=corpus.jsonl", "retriever.encoder=e5-tiny")
    assert check_command(words).ok and notes(words) == {}
    assert absolute(load(words).config).retriever.encoder == str(encoder)
    assert load(words).dialect == load(lake()).dialect
    hub = lake("retriever.serve=corpus.jsonl", "retriever.encoder=intfloat/e5-base-v2")
    assert check_command(hub).ok and "will be downloaded from the hub" in notes(hub)["retriever.encoder"]
    assert absolute(load(hub).config).retriever.encoder == "intfloat/e5-base-v2"
    encoder.rename(corpus.parent / "mine")
    named = lake("retriever.serve=corpus.jsonl", "retriever.encoder=mine", "retriever.encoder_kind=bge")
    assert check_command(named).ok and load(named).config.retriever.encoder_kind == "bge"


@pytest.mark.parametrize(
    ("words", "key", "said"),
    [
        (("retriever.encoder=gone",), "retriever.encoder", "gone does not exist"),
        (("retriever.encoder=.",), "retriever.encoder", "has no config.json"),
        (("retriever.encoder=corpus.jsonl",), "retriever.encoder", "corpus.jsonl is a file"),
        (("retriever.encoder=./mine",), "retriever.encoder_kind", "does not show in its name"),
        (("retriever.encoder=./mine", "retriever.encoder_kind=dpr"), "retriever.encoder_kind", "dpr"),
    ],
)
def test_an_encoder_that_is_refused(
    lake: Command, encoder: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], key: str, said: str
) -> None:
    (encoder.parent / "corpus.jsonl").write_text('{"contents": "a"}\n')
    encoder.rename(encoder.parent / "mine")
    monkeypatch.chdir(encoder.parent)
    kind = () if key == "retriever.encoder_kind" else ("retriever.encoder_kind=e5",)
    problem, *_ = check_command(lake("retriever.serve=corpus.jsonl", *kind, *words)).problems
    assert problem.key == key and said in problem.message and problem.hint


def test_an_encoder_without_a_server_of_ours(lake: Command) -> None:
    said = notes(lake(URL, "retriever.encoder=intfloat/e5-base-v2", "retriever.encoder_kind=e5"))
    assert said["retriever.encoder"] == (
        "retriever.encoder has no effect: the server at retriever.url finds passages in its own way"
    )
    assert "has no effect without retriever.serve" in said["retriever.encoder_kind"]
    assert "has no effect" in notes(lake("retriever.encoder=intfloat/e5-base-v2"))["retriever.encoder"]


def test_a_search_needs_one(command: Command, corpus: Path) -> None:
    [problem] = check_command(command("agent.env=search", "agent.max_turns=2")).problems
    assert problem.key == "retriever.url" and "agent.env=search asks a retriever" in problem.message
    assert check_command(command("agent.env=search", f"retriever.serve={corpus}", "retriever.timeout=90")).ok
    # Search-R1's own default gives way
    words = command("max_turns=2", f"retriever.serve={corpus}", "data.max_prompt_length=9000")
    assert check_command(words).ok and load(words).config.retriever.url is None


def test_seed_003s_keys_still_choose_its_dialect() -> None:
    assert load([URL, "retriever.topk=3", "max_turns=4"]).dialect == "search-r1"
    assert load([URL, "retriever.topk=3"], "search-r1").dialect == "search-r1"
