"""`python -m trainer.retrieval --corpus FILE [--encoder MODEL] [--host 127.0.0.1] [--port 8000] [--topk 3]`: a server.

One line on stdout says where it listens, once it does. SIGTERM and Ctrl-C end it. With `--embed` it makes the
embeddings alone, says where they are, and ends.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence

from trainer.commands import Parser, outcome
from trainer.errors import ConfigError
from trainer.retrieval.client import TOPK
from trainer.retrieval.index import Embedded, Source, made
from trainer.retrieval.kinds import KINDS
from trainer.retrieval.meeting import count

PORT = 8000  # Search-R1's


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    about = "Passages of a corpus by BM25, or by an encoder, over HTTP."
    parser = Parser(prog="python -m trainer.retrieval", description=about)
    parser.add_argument("--corpus", required=True, metavar="FILE", help="JSON lines with id and contents")
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0: other nodes may ask, without a password")
    parser.add_argument("--port", type=int, default=PORT, help=f"{PORT} by default; 0: one that is free")
    parser.add_argument("--topk", type=int, default=TOPK, help="passages of a request that does not say how many")
    parser.add_argument("--encoder", metavar="MODEL", help="a folder or hub name: by its embeddings, not by BM25")
    parser.add_argument("--encoder-kind", choices=[*KINDS], help="for an encoder whose name does not say it")
    parser.add_argument("--device", default="cpu", help="the encoder's: cpu by default; cuda, cuda:1")
    parser.add_argument("--index", metavar="FILE", help="faiss's of the corpus by this encoder, as Search-R1's")
    parser.add_argument("--embed", action="store_true", help="make the embeddings of the corpus, and end")
    parser.add_argument("--verbose", action="store_true", help="tracebacks of errors")
    return parser.parse_args(argv)


def run(options: argparse.Namespace) -> int:
    """Raises TrainerError: the corpus, encoder or address is not to be had, a package is not installed."""
    given = {"--embed": options.embed, "--encoder-kind": options.encoder_kind, "--index": options.index}
    if options.encoder is None and any(given.values()):
        word = next(word for word, value in given.items() if value)
        raise ConfigError(f"{word} is of use with --encoder alone", hint="name one: --encoder intfloat/e5-base-v2")
    if options.embed and options.index:
        raise ConfigError("--embed has nothing to make with --index", hint="leave one of them out")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # while embeddings are written, it leaves no part of them
    source = Source(options.corpus, options.encoder, options.encoder_kind, options.device, options.index)
    return embed(source) if options.embed else serve(source, options)


def embed(source: Source) -> int:
    """Only makes what a server would have to make first."""
    index = made(source, tell)
    assert isinstance(index, Embedded)
    how = f"made in {index.seconds:.1f} s" if index.made else "there already"
    print(f"embeddings of {count(len(index.corpus))} in {index.path}, {how}")
    return 0


def serve(source: Source, options: argparse.Namespace) -> int:
    """Until it is ended."""
    from trainer.retrieval.server import MOST_TOPK, Server, bind, url_of

    if not 1 <= options.topk <= MOST_TOPK:
        raise ConfigError(f"--topk {options.topk}: out of range", hint=f"give a number from 1 to {MOST_TOPK}")
    source.require()
    with bind(options.host, options.port) as listener:  # what is wrong with it shows before an hour of indexing
        index = made(source, tell)
        url = url_of(listener, options.host)
        held = f"{count(len(index.corpus))} of {index.corpus.name}, digest {index.corpus.digest}"
        said = index.said()
        by = (
            f", by {said['encoder']} ({said['encoder_kind']}), digest {said['encoder_digest']}"
            if source.encoder
            else ""
        )

        def ready() -> None:
            print(f"retriever at {url}: {held}{by}, indexed in {index.seconds:.1f} s", flush=True)

        async def until_ended() -> None:
            end, loop = asyncio.Event(), asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, end.set)
            await Server(index, options.topk).run(listener, ready, end)

        asyncio.run(until_ended())
    return 0


def tell(line: str) -> None:
    print(f"note: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(outcome(lambda: run(parse(None)), verbose="--verbose" in sys.argv, long=True))
