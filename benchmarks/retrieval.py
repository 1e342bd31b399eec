"""Passages by BM25: in process beside other libraries, and over HTTP with one client and with 64 at once.

    python benchmarks/retrieval.py [--passages 118000] [--queries 200] [--clients 64]
    python benchmarks/retrieval.py --dense [--passages 10000] [--queries 200]

Passages are made up: 8 to 40 words each of 60,000, drawn by Zipf's law; a query is five words of one of them, common
ones among them. Rivals are measured where they are installed: bm25s by its own `retrieve`, with numba too, and
rank_bm25 over the same words. Processor seconds in process, wall time over HTTP; the server is a process of its own.

`--dense` is the index of an encoder alone, faiss's, beside all scores in numpy: vectors of 768 numbers are drawn, and
the encoder is left out, whose time depends on the model and the device.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from trainer.retrieval import Retriever, bm25
from trainer.retrieval.corpus import Corpus

IN_PROCESS_MS, OVER_HTTP_MS = 0.5, 3.0  # the reach, per query
TOPK, VOCABULARY, WORDS = 3, 60_000, 5
PAUSE_S = 0.5  # between a paced client's searches


def made_up(passages: int, dice: random.Random) -> list[str]:
    words = ["".join(dice.choices("abcdefghijklmnopqrstuvwxyz", k=dice.randint(3, 9))) for _ in range(VOCABULARY)]
    draw = np.random.default_rng(0)
    share = 1 / np.arange(1, VOCABULARY + 1)
    lengths = draw.integers(8, 40, passages)
    drawn = draw.choice(VOCABULARY, lengths.sum(), p=share / share.sum())
    ends = np.cumsum(lengths)
    return [" ".join(words[i] for i in drawn[end - n : end]) for n, end in zip(lengths, ends, strict=True)]


def per_query_ms(search: Callable[[str], object], queries: Sequence[str]) -> float:
    search(queries[0])
    began = time.process_time()
    for query in queries:
        search(query)
    return (time.process_time() - began) / len(queries) * 1e3


def in_process(texts: list[str], queries: Sequence[str]) -> bool:
    index = bm25.Index(Corpus("made-up", [str(i) for i in range(len(texts))], texts, "none"))
    ours = per_query_ms(lambda query: index.search([query], TOPK), queries)
    print(f"in process: ours {ours:.2f} ms a query, index {index.seconds:.1f} s; reach {IN_PROCESS_MS} ms")
    for name, count, search in rivals(texts):
        if search is None:
            print(f"  {name}: not installed")
            continue
        rival = per_query_ms(search, queries[:count])
        print(f"  {name}: {rival:.2f} ms a query, {rival / ours:.0f} times ours")
    return ours <= IN_PROCESS_MS


def rivals(texts: list[str]) -> Iterator[tuple[str, int, Callable[[str], object] | None]]:
    """Name, how many queries it is given, and its search; None where it is not installed."""
    library = bm25.library()
    tokens = library.tokenize(texts, show_progress=False)
    for backend in ("numpy", "numba"):
        name = f"bm25s {library.__version__}, its own retrieve ({backend})"
        if backend == "numba" and not installed("numba"):
            yield name, 0, None
            continue
        model = library.BM25(method=bm25.METHOD, k1=bm25.K1, b=bm25.B, backend=backend)
        model.index(tokens, show_progress=False)

        def search(query: str, model: Any = model) -> object:
            return model.retrieve(library.tokenize([query], show_progress=False), k=TOPK, show_progress=False)

        yield name, 50, search
    if not installed("rank_bm25"):
        yield "rank_bm25", 0, None
        return
    from rank_bm25 import BM25Okapi

    other = BM25Okapi([text.split() for text in texts], k1=bm25.K1, b=bm25.B)
    version = importlib.metadata.version("rank_bm25")
    yield f"rank_bm25 {version}", 5, lambda query: np.argsort(other.get_scores(query.split()))[-TOPK:]


class Drawn:
    """In an encoder's place: a unit vector for each text, drawn from it."""

    name, kind, digest, width = "drawn", "e5", "none", 768

    def passages(self, texts: Sequence[str]) -> Any:
        found = np.array(
            [np.random.default_rng(zlib.crc32(each.encode())).standard_normal(self.width) for each in texts]
        )
        return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)

    queries = passages


def dense_in_process(texts: list[str], queries: Sequence[str]) -> bool:
    """The index of an encoder beside brute force over the same vectors: the same rows, and how long they take."""
    if not installed("faiss"):
        print("faiss: not installed")
        return False
    from trainer.retrieval import dense

    encoder: Any = Drawn()
    with tempfile.TemporaryDirectory() as folder:
        held = Corpus("made-up", [str(i) for i in range(len(texts))], texts, "none")
        index = dense.Index(held, str(Path(folder, "made-up.jsonl")), encoder, lambda line: None)
        vectors = np.array(embeddings_of(index.path, len(texts), encoder.width))
    asked = dict(zip(queries, encoder.queries(queries), strict=True))
    encoder.queries = lambda texts: np.array([asked[text] for text in texts])

    def best(scores: Any) -> list[int]:
        some = np.argpartition(-scores, TOPK)[:TOPK]
        return [int(row) for row in some[np.argsort(-scores[some])]]

    def brute(query: str) -> list[int]:
        return best(vectors @ asked[query])

    def all_brute(_: str) -> list[list[int]]:
        return [best(scores) for scores in encoder.queries(queries) @ vectors.T]

    same = all([row for row, _ in index.search([query], TOPK)[0]] == brute(query) for query in queries)
    ours, numpys = wall_ms(lambda query: index.search([query], TOPK), queries), wall_ms(brute, queries)
    many = len(queries)
    together = wall_ms(lambda _: index.search(queries, TOPK), queries[:9]) / many
    numpys_together = wall_ms(all_brute, queries[:9]) / many
    print(f"dense, in process: ours {ours:.2f} ms a query, {together:.3f} ms each of {many} at once")
    print(f"  numpy's brute force: {numpys:.2f} ms, {numpys_together:.3f} ms; same passages: {'yes' if same else 'no'}")
    return same


def embeddings_of(path: Path, passages: int, width: int) -> Any:
    return np.memmap(path, np.float32, "r", path.stat().st_size - 4 * passages * width, (passages, width))


def wall_ms(search: Callable[[str], object], queries: Sequence[str]) -> float:
    """The median: both use several cores, which others use, too."""
    search(queries[0])
    seconds = []
    for query in queries:
        began = time.perf_counter()
        search(query)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds) * 1e3


def installed(name: str) -> bool:
    try:
        __import__(name)
    except ImportError:
        return False
    return True


@contextmanager
def server(texts: list[str]) -> Iterator[str]:
    """The URL of one in a process of its own, as it is started by hand."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "made-up.jsonl")
        path.write_text("".join(json.dumps({"id": str(i), "contents": text}) + "\n" for i, text in enumerate(texts)))
        command = [sys.executable, "-m", "trainer.retrieval", "--corpus", str(path), "--port", "0"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[2].rstrip(":")
        finally:
            process.terminate()
            process.communicate()


def timed(retriever: Retriever, queries: Sequence[str], pause_s: float, seconds: list[float]) -> None:
    """Adds how long each search took."""
    time.sleep(pause_s * random.random())
    for query in queries:
        began = time.perf_counter()
        [found] = retriever.search([query])
        seconds.append(time.perf_counter() - began)
        assert found
        time.sleep(pause_s)


def at_once(url: str, clients: int, queries: Sequence[str], each: int, pause_s: float) -> tuple[list[float], float]:
    """Seconds of each search, and of all of them."""
    retriever, seconds = Retriever(url, TOPK, timeout=120), list[float]()
    dice = random.Random(2)
    threads = [
        threading.Thread(target=timed, args=(retriever, dice.choices(queries, k=each), pause_s, seconds))
        for _ in range(clients)
    ]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return seconds, time.perf_counter() - began


def over_http(texts: list[str], queries: Sequence[str], clients: int) -> bool:
    with server(texts) as url:
        alone, _ = at_once(url, 1, queries, len(queries), 0.0)
        busy, took = at_once(url, clients, queries, 20, 0.0)
        paced, _ = at_once(url, clients, queries, 8, PAUSE_S)
    one, per_query = statistics.median(alone) * 1e3, took / len(busy) * 1e3
    print(f"over HTTP: one client {said(alone)}; reach {OVER_HTTP_MS:g} ms")
    print(
        f"  {clients} clients that never rest: {said(busy)}; {1e3 / per_query:.0f} queries/s, {per_query:.2f} ms each"
    )
    print(f"  {clients} clients, a search every {PAUSE_S:g} s each: {said(paced)}")
    return one <= OVER_HTTP_MS and per_query <= OVER_HTTP_MS


def said(seconds: Sequence[float]) -> str:
    cuts = statistics.quantiles(seconds, n=20)
    return f"p50 {cuts[9] * 1e3:.2f} ms, p95 {cuts[18] * 1e3:.2f} ms"


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dense", action="store_true")
    parser.add_argument("--passages", type=int, default=None)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--clients", type=int, default=64)
    args = parser.parse_args(words)
    args.passages = args.passages or (10_000 if args.dense else 118_000)
    dice = random.Random(1)
    texts = made_up(args.passages, dice)
    queries = [" ".join(dice.sample(text.split(), WORDS)) for text in dice.sample(texts, args.queries)]
    print(f"{args.passages:,} passages, {args.queries} queries of {WORDS} words, top {TOPK}")
    if args.dense:
        return 0 if dense_in_process(texts, queries) else 1
    reached = in_process(texts, queries)
    return 0 if over_http(texts, queries, args.clients) and reached else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
