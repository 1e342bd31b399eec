"""Passages by an encoder: as all scores in plain numpy order them, over HTTP, kept on disk; and what is no use."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from tests.trainer.encoders import tiny
from tests.trainer.retrievers import PASSAGES, serving
from tests.trainer.runs import DEADLINE_S, running
from tests.trainer.test_retrieval_server import post
from trainer.errors import ConfigError, DataError, ModelError
from trainer.retrieval import Retriever
from trainer.retrieval.__main__ import parse, run
from trainer.retrieval.corpus import read
from trainer.retrieval.index import Embedded, Index, Source, made

needs_faiss = pytest.mark.skipif(find_spec("faiss") is None, reason="no faiss here: pip install 'ray-devkit[dense]'")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny(tmp_path_factory.mktemp("encoders") / "e5-tiny")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write(tmp_path / "corpus.jsonl", PASSAGES.values())


def write(path: Path, texts: Any) -> Path:
    path.write_text("".join(json.dumps({"id": str(i), "contents": text}) + "\n" for i, text in enumerate(texts)))
    return path


def index_of(corpus: Path, encoder: Path, notes: list[str] | None = None) -> Embedded:
    index = made(Source(str(corpus), str(encoder)), ([] if notes is None else notes).append)
    assert isinstance(index, Embedded)
    return index


def kept(index: Embedded) -> Any:
    """By another reader than ours."""
    with safe_open(index.path, "np") as file:
        return file.get_tensor("embeddings").astype(np.float64)


def words(dice: np.random.Generator) -> str:
    return " ".join(dice.choice(["faust", "tragedy", "short", "atomic", "74", "who", "wrote", "king"], 5))


@needs_faiss
def test_the_best_are_those_of_all_scores_in_numpy(tmp_path: Path, encoder: Path) -> None:
    """In order and score, ties too; alone as among others; however many are wanted."""
    dice = np.random.default_rng(0)
    texts = [words(dice) for _ in range(400)]
    texts += texts[:100]  # of twins, the first in the corpus comes first
    index = index_of(write(tmp_path / "corpus.jsonl", texts), encoder)
    queries = [words(dice) for _ in range(40)]
    vectors, asked = kept(index), index.encoder.queries(queries).astype(np.float64)  # type: ignore[attr-defined]
    for topk in (1, 3, 50, 1000):
        found = index.search(queries, topk)
        for query, hits in zip(asked, found, strict=True):
            scores = np.array([(vector * query).sum() for vector in vectors])
            order = np.argsort(-scores, kind="stable")[:topk]
            assert [row for row, _ in hits] == order.tolist()
            assert [score for _, score in hits] == pytest.approx(scores[order], abs=1e-12)
    together, alone = index.search(queries, 3), [index.search([query], 3)[0] for query in queries]
    for one, other in zip(together, alone, strict=True):
        assert [row for row, _ in one] == [row for row, _ in other]
        assert [score for _, score in one] == pytest.approx([score for _, score in other], abs=1e-5)
    assert index.search([], 3) == []


@needs_faiss
def test_embeddings_are_made_once(corpus: Path, encoder: Path, tmp_path: Path) -> None:
    notes: list[str] = []
    first = index_of(corpus, encoder, notes)
    [note] = notes
    assert note == f"embedding 4 passages by e5-tiny, kept in {first.path}" and first.made
    was = first.path.stat()
    again = index_of(corpus, encoder, notes)
    assert not again.made and again.path == first.path and len(notes) == 1
    assert (first.path.stat().st_mtime_ns, first.path.stat().st_ino) == (was.st_mtime_ns, was.st_ino)
    assert again.search(["faust"], 3) == first.search(["faust"], 3)

    other = index_of(corpus, tiny(tmp_path / "e5-other", seed=1), notes)  # another encoder has a file of its own
    assert other.made and other.path != first.path
    assert notes[1].endswith(f"; those beside it are another encoder's: {first.path.name}")
    with corpus.open("a") as file:  # and another corpus
        file.write('{"id": "more", "contents": "more"}\n')
    assert index_of(corpus, encoder, notes).made and len(notes) == 3 and "those beside" not in notes[2]


@needs_faiss
def test_what_another_wrote_under_its_name_is_not_read(corpus: Path, encoder: Path, tmp_path: Path) -> None:
    own, other = index_of(corpus, encoder).path, index_of(corpus, tiny(tmp_path / "e5-other", seed=1)).path
    whole = own.read_bytes()
    shutil.copy(other, own)
    with pytest.raises(DataError, match="can't be used: its encoder is ") as caught:
        index_of(corpus, encoder)
    assert caught.value.hint == "delete it: it is made again from the corpus"
    own.write_bytes(whole[:-1])
    with pytest.raises(DataError, match=r"can't be used: it has \d+ bytes of \d+"):
        index_of(corpus, encoder)
    size = 4 * 4 * 32
    own.write_bytes(whole[:-size] + other.read_bytes()[-size:])  # its numbers under this one's header
    with pytest.raises(DataError, match="passage 1 has another vector by this encoder"):
        index_of(corpus, encoder)
    own.write_bytes(whole[:-size] + b"\0" * size)  # as of a copy that was broken off
    with pytest.raises(DataError, match="passage 1 has another vector by this encoder"):
        index_of(corpus, encoder)
    own.unlink()
    assert index_of(corpus, encoder).made


@needs_faiss
def test_the_api_and_what_it_says_of_itself(corpus: Path, encoder: Path) -> None:
    index = index_of(corpus, encoder)
    [wanted] = index.search(["who wrote faust"], 4)
    with serving(topk=2, index=index) as url:
        body = b'{"queries": ["who wrote faust", "atomic"], "topk": 4, "return_scores": true}'
        status, said = post(url, body)
        assert status == 200 and [len(found) for found in said["result"]] == [4, 4]
        documents = [{"id": str(row), "contents": PASSAGES[str(row)]} for row, _ in wanted]
        assert [hit.pop("document") for hit in said["result"][0]] == documents
        for hit, (_, score) in zip(said["result"][0], wanted, strict=True):
            assert hit == {"score": round(hit["score"], 4)} and hit["score"] == pytest.approx(score, abs=1e-4)
        for body in (b'{"queries": ["who wrote faust"]}', b'{"query": "who wrote faust", "topk": null}'):
            assert post(url, body) == (200, {"result": [documents[:2]]})
        assert post(url, b'{"queries": [], "topk": 3}') == (200, {"result": []})
        assert len(post(url, b'{"queries": [""], "topk": 1000}')[1]["result"][0]) == 4
        health = Retriever(url).health()
        assert (health.digest, health.encoder, health.passages) == (
            index.corpus.digest,
            index.said()["encoder_digest"],
            4,
        )
        assert health.said["encoder"] == "e5-tiny" and health.said["encoder_kind"] == "e5"
        assert health.said["method"] == "dense" and health.said["queries"] == 5
    with serving() as url:
        assert Retriever(url).health().encoder is None and Retriever(url).health().said["method"] == "bm25"


@pytest.fixture
def _signals() -> Iterator[None]:
    """As they were before the command."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def command(*options: str) -> list[str]:
    return [sys.executable, "-m", "trainer.retrieval", *options]


@needs_faiss
@pytest.mark.usefixtures("_signals")
def test_the_command_embeds_and_serves(
    corpus: Path, encoder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(corpus.parent)
    options = ("--corpus", "corpus.jsonl", "--encoder", str(encoder))
    for how in (r"made in [\d.]+ s", "there already"):
        assert run(parse([*options, "--embed"])) == 0
        out, err = capsys.readouterr()
        line = rf"embeddings of 4 passages in corpus\.jsonl\.\w{{16}}-\w{{16}}\.safetensors, {how}\n"
        assert re.fullmatch(line, out), out
        made_now = "note: embedding 4 passages by e5-tiny, kept in corpus.jsonl."
        assert err.startswith(made_now) if how != "there already" else err == ""
    with running(command(*options, "--port", "0"), corpus.parent) as served:
        line = served.wait_for_line("retriever at ", DEADLINE_S)
        said = re.fullmatch(
            r"retriever at (\S+): 4 passages of corpus\.jsonl, digest (\w{16}), by e5-tiny \(e5\), digest (\w{16}), .*",
            line,
        )
        assert said, line
        health = Retriever(said[1]).health()
        assert (health.digest, health.encoder) == (said[2], said[3])
        served.process.send_signal(signal.SIGTERM)
        assert served.wait() == 0 and len(served.lines) == 1, served.text


@pytest.mark.usefixtures("_signals")
@needs_faiss
def test_a_signal_while_it_embeds_leaves_nothing(corpus: Path, encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainer.retrieval.encoder import Encoder

    monkeypatch.setattr(Encoder, "passages", lambda self, texts: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(KeyboardInterrupt):
        run(parse(["--corpus", str(corpus), "--encoder", str(encoder), "--embed"]))
    assert [each.name for each in corpus.parent.iterdir()] == ["corpus.jsonl"]


@needs_faiss
def test_an_index_that_search_r1_has_built(corpus: Path, encoder: Path, tmp_path: Path) -> None:
    """In the steps of its index_builder.py; flat, and its HNSW64 for CPUs. Nothing is embedded, and all is checked."""
    import faiss

    own = index_of(corpus, encoder)
    vectors = kept(own).astype(np.float16).astype(np.float32)  # as its --use_fp16 has them
    wanted = own.search(["who wrote faust", "atomic number"], 3)
    own.path.unlink()

    def built(kind: str, given: Any, metric: int = faiss.METRIC_INNER_PRODUCT) -> str:
        index = faiss.index_factory(given.shape[1], kind, metric)
        index.add(given)
        faiss.write_index(index, str(tmp_path / "e5.index"))
        return str(tmp_path / "e5.index")

    def read_it(path: str) -> Index:
        return made(Source(str(corpus), str(encoder), index=path), pytest.fail)

    for kind in ("Flat", "HNSW64"):
        for found, as_wanted in zip(
            read_it(built(kind, vectors)).search(["who wrote faust", "atomic number"], 3), wanted, strict=True
        ):
            assert [row for row, _ in found] == [row for row, _ in as_wanted]
            assert [score for _, score in found] == pytest.approx([score for _, score in as_wanted], abs=1e-3)
    (tmp_path / "none.index").write_bytes(b"no index")
    others = kept(index_of(corpus, tiny(tmp_path / "e5-other", seed=1))).astype(np.float32)
    for path, said in (
        (lambda: built("Flat", vectors[:3]), "it has 3 vectors of 32 numbers, not 4 of 32"),
        (lambda: built("Flat", vectors[:, :16].copy()), "it has 4 vectors of 16 numbers, not 4 of 32"),
        (lambda: built("Flat", vectors, faiss.METRIC_L2), "it is not of inner products"),
        (lambda: built("Flat", others), "passage 1 has another vector by this encoder"),
        (lambda: built("Flat", vectors[[0, 1, 3, 2]]), "passage 3 has another vector by this encoder"),
        (lambda: str(tmp_path / "none.index"), "faiss cannot read it"),
        (lambda: str(tmp_path / "gone.index"), "there is no such file"),
    ):
        with pytest.raises(DataError, match=said) as caught:
            read_it(path())
        assert "e5_Flat.index" in caught.value.hint


SERVED = """
import json, sys
from trainer.retrieval import Retriever
from trainer.retrieval.index import Source
from trainer.retrieval.serving import RetrieverServer

served = RetrieverServer(Source("corpus.jsonl", sys.argv[1]), 2).start()
[found] = Retriever(served.url).search(["who wrote faust"])
print(json.dumps([[each.id for each in found], served.passages, Retriever(served.url).health().encoder]))
"""


@needs_faiss
def test_what_a_run_starts_serves_the_same(corpus: Path, encoder: Path) -> None:
    """As Ray's actor does; test_retrieval_ray.py has it on a node."""
    index = index_of(corpus, encoder)
    with running([sys.executable, "-c", SERVED, str(encoder)], corpus.parent) as run:
        assert run.wait() == 0, run.text
        [wanted] = index.search(["who wrote faust"], 3)
        assert json.loads(run.lines[-1]) == [[str(row) for row, _ in wanted], 4, index.said()["encoder_digest"]]


def test_without_faiss_it_says_what_to_install(corpus: Path, encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ConfigError, match="faiss is not installed") as caught:
        index_of(corpus, encoder)
    assert caught.value.hint == "pip install 'ray-devkit[dense]' on every node that serves them"


@pytest.mark.usefixtures("_signals")
@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        (("--encoder", "{corpus}"), ModelError, "there is no folder"),
        (("--encoder", "{empty}"), ModelError, "has no config.json"),
        (("--encoder", "{gone}/e5"), ModelError, "there is no folder"),
        (("--encoder", "{empty}", "--device", "tpu"), ConfigError, "--device tpu"),
    ],
)
@needs_faiss
def test_encoders_of_no_use(corpus: Path, tmp_path: Path, options: tuple[str, ...], kind: Any, said: str) -> None:
    (tmp_path / "e5").mkdir()
    given = [word.format(corpus=corpus, empty=tmp_path / "e5", gone=tmp_path / "gone") for word in options]
    with pytest.raises(kind) as caught:
        run(parse(["--corpus", str(corpus), "--port", "0", "--encoder-kind", "e5", *given]))
    assert said in caught.value.message and "\n" not in caught.value.message + caught.value.hint


@pytest.mark.usefixtures("_signals")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--embed",), "--embed is of use with --encoder alone"),
        (("--index", "e5_Flat.index"), "--index is of use with --encoder alone"),
        (("--encoder", "x", "--index", "y", "--embed"), "--embed has nothing to make with --index"),
        (("--encoder-kind", "e5"), "--encoder-kind is of use with --encoder alone"),
        (("--encoder-kind", "dpr", "--encoder", "x"), "invalid choice: 'dpr'"),
        (("--encoder", "/models/mine"), "which kind of encoder /models/mine is does not show in its name"),
        (("--encoder", "/e5/bge"), "which kind of encoder /e5/bge is does not show in its name"),
    ],
)
def test_options_of_no_use(corpus: Path, options: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", sys)  # whether it is installed is not asked here
    with pytest.raises(ConfigError) as caught:
        run(parse(["--corpus", str(corpus), "--port", "0", *options]))
    assert said in caught.value.message and caught.value.hint


@needs_faiss
def test_the_embeddings_are_the_corpuss(corpus: Path, encoder: Path) -> None:
    """Its contents as they stand, title and all, behind the encoder's own words."""
    index = index_of(corpus, encoder)
    wanted = index.encoder.passages(read(str(corpus)).contents)  # type: ignore[attr-defined]
    np.testing.assert_allclose(kept(index), wanted, atol=1e-7)
